"""Fingerprints with RDKit's older interface, which lists the bits that are set."""

import numpy as np
import pytest


def morgan_bits(smiles: str) -> np.ndarray:
    """Morgan fingerprint of radius 2, bool `[1024]`."""
    chem = pytest.importorskip("rdkit.Chem")
    all_chem = pytest.importorskip("rdkit.Chem.AllChem")
    mol = chem.MolFromSmiles(smiles)
    return _bits(all_chem.GetMorganFingerprintAsBitVect(mol, radius=2, nBits=1024))


def path_bits(smiles: str) -> np.ndarray:
    """RDKit's path fingerprint, bool `[1024]`."""
    chem = pytest.importorskip("rdkit.Chem")
    return _bits(chem.RDKFingerprint(chem.MolFromSmiles(smiles), fpSize=1024))


def _bits(vector) -> np.ndarray:
    bits = np.zeros(1024, bool)
    bits[list(vector.GetOnBits())] = True
    return bits
