"""Fingerprints of molecules against RDKit's older interface."""

import numpy as np
import pytest

from mlti_jax.data._readers import fingerprints
from tests.support.fingerprints import morgan_bits, path_bits

Chem = pytest.importorskip("rdkit.Chem")


@pytest.mark.parametrize("smiles", ["OCC", "c1ccccc1O", "CC(=O)Nc1ccc(O)cc1"])
def test_fingerprints(smiles):
    mol = Chem.MolFromSmiles(smiles)
    for parsed in (
        fingerprints.parse_smiles(smiles),
        fingerprints.parse_mol_block(Chem.MolToMolBlock(mol)),
    ):
        assert parsed.smiles == Chem.MolToSmiles(mol)
        np.testing.assert_array_equal(parsed.morgan, morgan_bits(smiles))
        np.testing.assert_array_equal(parsed.path, path_bits(smiles))


def test_rejected_molecules():
    assert fingerprints.parse_smiles("C(C)(C)(C)(C)C") is None
    assert fingerprints.parse_smiles("not SMILES") is None
    assert fingerprints.parse_mol_block("") is None
