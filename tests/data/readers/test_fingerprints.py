"""Fingerprints of molecules against RDKit's older interface."""

import csv
import gzip
import os
import pathlib
import time

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


def complete_graph(size):
    """SMILES of metal atoms that are all bonded to each other."""
    numbers = {}
    for first in range(size):
        for second in range(first + 1, size):
            numbers[first, second] = f"%{len(numbers) + 10}"
    return ".".join(
        "[U]" + "".join(text for pair, text in numbers.items() if atom in pair)
        for atom in range(size)
    )


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C" * 100_000, "longer than 4,000 characters"),
        (complete_graph(13), "too many bonds between its atoms"),
        ("[U]" + "([U])" * 300, "too many bonds between its atoms"),
    ],
)
def test_molecules_that_take_too_long(smiles, reason):
    start = time.monotonic()
    assert fingerprints.parse_smiles(smiles) is None
    assert reason in fingerprints.unreadable(smiles)
    assert len(fingerprints.unreadable(smiles)) < 120
    assert time.monotonic() - start < 1


@pytest.mark.slow
def test_large_molecules_are_read():
    for smiles in ("C" * 4000, "c1ccc2ccccc2c1" * 285, "[U]" + "([U])" * 31):
        assert fingerprints.parse_smiles(smiles) is not None


def mol_block(size):
    """A chain of carbon atoms in the format V3000, without coordinates."""
    atoms = "".join(f"M  V30 {i} C 0 0 0 0\n" for i in range(1, size + 1))
    bonds = "".join(f"M  V30 {i} 1 {i} {i + 1}\n" for i in range(1, size))
    return (
        "\n\n\n  0  0  0     0  0            999 V3000\nM  V30 BEGIN CTAB\n"
        f"M  V30 COUNTS {size} {size - 1} 0 0 0\nM  V30 BEGIN ATOM\n{atoms}"
        f"M  V30 END ATOM\nM  V30 BEGIN BOND\n{bonds}M  V30 END BOND\nM  V30 END CTAB\n"
        "M  END\n"
    )


def test_large_mol_blocks():
    assert fingerprints.parse_mol_block(mol_block(3000)).smiles == "C" * 3000
    assert len(mol_block(4200)) < fingerprints.MAX_MOL_BLOCK
    assert fingerprints.parse_mol_block(mol_block(4200)) is None  # too many atoms
    assert fingerprints.parse_mol_block(mol_block(100_000)) is None


@pytest.mark.slow
def test_real_molecules_are_within_the_limits():
    raw = pathlib.Path(os.environ.get("MLTI_RAW_DIR") or "none")
    texts = set()
    for path in raw.glob("metabolism/*.tab"):
        lines = path.read_text().splitlines()[1:]
        texts |= {line.split("\t")[1] for line in lines}
    for path in raw.glob("fsmol/*.csv.gz"):
        with gzip.open(path, "rt", newline="") as file:
            texts |= {row["smiles"] for row in csv.DictReader(file)}
    if not texts:
        pytest.skip("MLTI_RAW_DIR names no folder with metabolism/ or fsmol/ in it")
    assert [
        text for text in texts if fingerprints._fault(text, fingerprints._SMILES)
    ] == []
