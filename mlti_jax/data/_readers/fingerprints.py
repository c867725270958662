"""Molecular fingerprints from SMILES, computed with RDKit (extra `bio`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mlti_jax._internal import extras
from mlti_jax._internal.checks import unknown_name

BITS = 1024
FINGERPRINTS = ("morgan", "path")


class Molecule(NamedTuple):
    """Canonical SMILES and two fingerprints, bool `[1024]`."""

    smiles: str
    morgan: np.ndarray
    path: np.ndarray


def require_rdkit() -> None:
    """Raise `InputError` with the extra to install if RDKit is missing."""
    extras.require("rdkit", "bio")


def featurise(mol: Any) -> Molecule | None:
    """Return SMILES and fingerprints of an RDKit molecule; None for None."""
    if mol is None:
        return None
    from rdkit import Chem

    morgan, path = _generators()
    return Molecule(
        Chem.MolToSmiles(mol),
        morgan.GetFingerprintAsNumPy(mol).astype(bool),
        path.GetFingerprintAsNumPy(mol).astype(bool),
    )


@functools.cache
def silence_rdkit() -> None:
    """Turn off RDKit's messages about unreadable molecules; callers count them."""
    from rdkit import rdBase

    rdBase.DisableLog("rdApp.*")


@functools.cache
def _generators() -> tuple[Any, Any]:
    from rdkit.Chem import rdFingerprintGenerator

    return (
        rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=BITS),
        rdFingerprintGenerator.GetRDKitFPGenerator(fpSize=BITS),
    )


def parse_smiles(smiles: str) -> Molecule | None:
    """Return SMILES and fingerprints of a molecule; None if RDKit can't read it."""
    from rdkit import Chem

    silence_rdkit()
    return featurise(Chem.MolFromSmiles(smiles))


def parse_mol_block(block: str) -> Molecule | None:
    """Parse the mol block of an SDF record; return None if RDKit can't read it."""
    from rdkit import Chem

    silence_rdkit()
    return featurise(Chem.MolFromMolBlock(block))


def fingerprint_matrix(
    texts: Sequence[str], which: str
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the fingerprints of many molecules.

    Args:
      texts: SMILES of M molecules.
      which: one of `FINGERPRINTS`.

    Returns:
      Bits, bool `[M, 1024]`, and a mask of the molecules that RDKit can read, bool
      `[M]`. The bits of the others are all 0.

    Raises:
      InputError: if RDKit is missing or `which` is unknown.
    """
    require_rdkit()
    if which not in FINGERPRINTS:
        raise unknown_name("fingerprint", which, FINGERPRINTS)
    # Tasks share molecules, so each distinct one is parsed once.
    parsed = {text: parse_smiles(str(text)) for text in set(texts)}
    bits = np.zeros((len(texts), BITS), bool)
    readable = np.array([parsed[text] is not None for text in texts])
    for row, text in enumerate(texts):
        if readable[row]:
            bits[row] = getattr(parsed[text], which)
    return bits, readable
