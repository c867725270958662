"""Molecular fingerprints from SMILES, computed with RDKit (extra `bio`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mlti_jax._internal import extras
from mlti_jax._internal.checks import unknown_name

T = TypeVar("T")

BITS = 1024
FINGERPRINTS = ("morgan", "path")

# RDKit takes at most about two seconds for a molecule within these limits, and may
# never end for larger ones. The longest SMILES of Metabolism and FS-Mol has 402
# characters, the longest mol block of NCI 16,000.
MAX_SMILES = 4_000
MAX_MOL_BLOCK = 200_000
MAX_ATOMS = 4_000
# Walks along 7 bonds, the longest path of the path fingerprint, whose cost they bound.
# Drugs have up to 70,000, the cages of NCI (carboranes) up to 1.1 million.
MAX_WALKS = 2_000_000
WALK_LENGTH = 7


class Molecule(NamedTuple):
    """Canonical SMILES and two fingerprints, bool `[1024]`."""

    smiles: str
    morgan: np.ndarray
    path: np.ndarray


def require_rdkit() -> None:
    """Raise `InputError` with the extra to install if RDKit is missing."""
    extras.require("rdkit", "bio")


def featurise(mol: Any) -> Molecule:
    """Return SMILES and fingerprints of an RDKit molecule."""
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


class _Format(NamedTuple):
    """A function of `rdkit.Chem`, and the largest number of characters for it."""

    reader: str
    limit: int


_SMILES = _Format("MolFromSmiles", MAX_SMILES)
_MOL_BLOCK = _Format("MolFromMolBlock", MAX_MOL_BLOCK)


def parse_smiles(smiles: str) -> Molecule | None:
    """Return SMILES and fingerprints of a molecule; None if RDKit can't read it."""
    return _parse(smiles, _SMILES, featurise)


def parse_mol_block(block: str) -> Molecule | None:
    """Parse the mol block of an SDF record; return None if RDKit can't read it."""
    return _parse(block, _MOL_BLOCK, featurise)


def unreadable(smiles: str) -> str:
    """Return a molecule that `parse_smiles` rejects, shortened, and the reason."""
    shown = smiles if len(smiles) <= 60 else f"{smiles[:60]}..."
    fault = _fault(smiles, _SMILES)
    return f"{shown!r} ({fault})" if fault else repr(shown)


def read_smiles(smiles: str, featurise: Callable[[Any], T]) -> T | None:
    """Apply `featurise` to an RDKit molecule; return None if RDKit can't read it."""
    return _parse(smiles, _SMILES, featurise)


def _parse(text: str, form: _Format, featurise: Callable[[Any], T]) -> T | None:
    if _fault(text, form):
        return None
    try:
        mol = _read(text, form, sanitize=True)
        return None if mol is None else featurise(mol)
    except (RuntimeError, ValueError):  # Checks inside RDKit fail.
        return None


def _fault(text: str, form: _Format) -> str:
    """Return why a molecule is not given to RDKit; empty if it is."""
    if len(text) > form.limit:
        return f"longer than {form.limit:,} characters"
    from rdkit import Chem

    try:
        mol = _read(text, form, sanitize=False)  # Only atoms and bonds: always fast.
    except (RuntimeError, ValueError):
        return "invalid"
    if mol is None:
        return ""
    if mol.GetNumAtoms() > MAX_ATOMS:
        return f"more than {MAX_ATOMS:,} atoms"
    bonds = Chem.GetAdjacencyMatrix(mol)
    walks = np.ones(len(bonds))
    for _ in range(WALK_LENGTH):
        walks = bonds @ walks
    return "too many bonds between its atoms" if walks.sum() > MAX_WALKS else ""


def _read(text: str, form: _Format, *, sanitize: bool) -> Any:
    """Return an RDKit molecule; None if the text is invalid."""
    from rdkit import Chem

    silence_rdkit()
    return getattr(Chem, form.reader)(text, sanitize=sanitize)


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
