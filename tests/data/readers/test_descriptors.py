"""Features of molecules, and their ranks."""

import numpy as np
import pytest

from mlti_jax.data._readers import descriptors

chem = pytest.importorskip("rdkit.Chem")


def test_features_are_rdkits():
    from rdkit.Chem import Descriptors, rdFingerprintGenerator

    found = descriptors.parse_smiles("OC(=O)c1ccccc1OC(C)=O")
    mol = chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    assert found.smiles == chem.MolToSmiles(mol)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    counts = generator.GetCountFingerprint(mol).GetNonzeroElements()
    assert dict(zip(found.bits.tolist(), found.counts.tolist(), strict=True)) == counts
    everything = Descriptors.CalcMolDescriptors(mol)
    expected = [everything[name] for name in descriptors.NAMES]
    np.testing.assert_allclose(found.descriptors, expected, rtol=1e-6)
    assert len(set(descriptors.NAMES)) == 189


def test_molecules_that_rdkit_cannot_read():
    assert descriptors.parse_smiles("C(C)(C)(C)(C)(C)C") is None
    assert descriptors.parse_smiles("not a molecule") is None


def test_ranks_by_hand():
    values = np.array([[0, 1], [0, 2], [0, 3], [5, 4]], np.float32)
    ranks = descriptors.Ranks.of(values)(
        np.array([[0, 0], [5, 5], [-1, np.nan], [9, np.inf]], np.float32)
    )
    # Three of four values are 0: their mean rank is 3/8; 5 has 7/8.
    np.testing.assert_allclose(ranks[:, 0] / 255, [3 / 8, 7 / 8, 0, 1], atol=3e-3)
    np.testing.assert_allclose(ranks[:, 1] / 255, [0, 1, 0.5, 1], atol=3e-3)


def test_ranks_equal_those_of_scipy():
    from scipy.stats import rankdata

    rng = np.random.default_rng(0)
    values = np.stack(
        [rng.standard_cauchy(500), rng.poisson(0.3, 500), np.ones(500)], axis=1
    ).astype(np.float32)
    found = descriptors.Ranks.of(values)(values)
    expected = (rankdata(values, axis=0) - 0.5) / 500
    np.testing.assert_allclose(found / 255, expected, atol=4e-3)


def test_missing_values_are_in_the_middle():
    values = np.array([[np.nan, np.nan], [np.nan, 1], [np.nan, np.inf]], np.float32)
    ranks = descriptors.Ranks.of(values)
    assert ranks(values).dtype == np.uint8
    assert ranks(values)[:, 0].tolist() == [128] * 3
    assert ranks(values)[0, 1] == 128
