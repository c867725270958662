"""Count fingerprints and 2D descriptors of molecules, computed with RDKit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mlti_jax.data._readers import fingerprints

BITS = 2048
LARGEST_COUNT = 255
LEVELS = 255  # of a descriptor's rank
_KNOTS = 1001

# Descriptors of `rdkit.Chem.Descriptors` that all supported versions have. Left out are
# those that take two thirds of the time: qed, SPS, Ipc, AvgIpc, BertzCT, BalabanJ,
# BCUT2D_*, the extreme EState indices, and the densities of fingerprints.
_NAMES = """
MolWt HeavyAtomMolWt ExactMolWt NumValenceElectrons NumRadicalElectrons MaxPartialCharge
MinPartialCharge MaxAbsPartialCharge MinAbsPartialCharge Chi0 Chi0n Chi0v Chi1 Chi1n
Chi1v Chi2n Chi2v Chi3n Chi3v Chi4n Chi4v HallKierAlpha Kappa1 Kappa2 Kappa3 LabuteASA
TPSA FractionCSP3 HeavyAtomCount NHOHCount NOCount NumAliphaticCarbocycles
NumAliphaticHeterocycles NumAliphaticRings NumAromaticCarbocycles
NumAromaticHeterocycles NumAromaticRings NumHAcceptors NumHDonors NumHeteroatoms
NumRotatableBonds NumSaturatedCarbocycles NumSaturatedHeterocycles NumSaturatedRings
RingCount MolLogP MolMR
EState_VSA1 EState_VSA2 EState_VSA3 EState_VSA4 EState_VSA5 EState_VSA6 EState_VSA7
EState_VSA8 EState_VSA9 EState_VSA10 EState_VSA11 PEOE_VSA1 PEOE_VSA2 PEOE_VSA3
PEOE_VSA4 PEOE_VSA5 PEOE_VSA6 PEOE_VSA7 PEOE_VSA8 PEOE_VSA9 PEOE_VSA10 PEOE_VSA11
PEOE_VSA12 PEOE_VSA13 PEOE_VSA14 SMR_VSA1 SMR_VSA2 SMR_VSA3 SMR_VSA4 SMR_VSA5 SMR_VSA6
SMR_VSA7 SMR_VSA8 SMR_VSA9 SMR_VSA10 SlogP_VSA1 SlogP_VSA2 SlogP_VSA3 SlogP_VSA4
SlogP_VSA5 SlogP_VSA6 SlogP_VSA7 SlogP_VSA8 SlogP_VSA9 SlogP_VSA10 SlogP_VSA11
SlogP_VSA12 VSA_EState1 VSA_EState2 VSA_EState3 VSA_EState4 VSA_EState5 VSA_EState6
VSA_EState7 VSA_EState8 VSA_EState9 VSA_EState10
fr_Al_COO fr_Al_OH fr_Al_OH_noTert fr_ArN fr_Ar_COO fr_Ar_N fr_Ar_NH fr_Ar_OH fr_COO
fr_COO2 fr_C_O fr_C_O_noCOO fr_C_S fr_HOCCN fr_Imine fr_NH0 fr_NH1 fr_NH2 fr_N_O
fr_Ndealkylation1 fr_Ndealkylation2 fr_Nhpyrrole fr_SH fr_aldehyde fr_alkyl_carbamate
fr_alkyl_halide fr_allylic_oxid fr_amide fr_amidine fr_aniline fr_aryl_methyl fr_azide
fr_azo fr_barbitur fr_benzene fr_benzodiazepine fr_bicyclic fr_diazo fr_dihydropyridine
fr_epoxide fr_ester fr_ether fr_furan fr_guanido fr_halogen fr_hdrzine fr_hdrzone
fr_imidazole fr_imide fr_isocyan fr_isothiocyan fr_ketone fr_ketone_Topliss fr_lactam
fr_lactone fr_methoxy fr_morpholine fr_nitrile fr_nitro fr_nitro_arom
fr_nitro_arom_nonortho fr_nitroso fr_oxazole fr_oxime fr_para_hydroxylation fr_phenol
fr_phenol_noOrthoHbond fr_phos_acid fr_phos_ester fr_piperdine fr_piperzine fr_priamide
fr_prisulfonamd fr_pyridine fr_quatN fr_sulfide fr_sulfonamd fr_sulfone
fr_term_acetylene fr_tetrazole fr_thiazole fr_thiocyan fr_thiophene fr_unbrch_alkane
fr_urea
"""
NAMES = tuple(_NAMES.split())


class Features(NamedTuple):
    """A molecule as it is stored.

    Attributes:
      smiles: canonical SMILES of RDKit.
      bits: positions of the Morgan fingerprint of radius 2 that are not 0, uint16
        `[n]`.
      counts: how often each occurs, at most 255, uint8 `[n]`.
      descriptors: float32 `[len(NAMES)]`, may be NaN or infinite.
    """

    smiles: str
    bits: np.ndarray
    counts: np.ndarray
    descriptors: np.ndarray


def parse_smiles(smiles: str) -> Features | None:
    """Return the features of a molecule; None if RDKit can't read it."""
    return fingerprints.read_smiles(smiles, _featurise)


def _featurise(mol: Any) -> Features:
    from rdkit import Chem

    generator, functions = _functions()
    counts = generator.GetCountFingerprintAsNumPy(mol)
    bits = np.flatnonzero(counts)
    descriptors = np.empty(len(functions), np.float32)
    with np.errstate(over="ignore"):  # Too large for float32: infinite.
        for place, function in enumerate(functions):
            try:
                descriptors[place] = function(mol)
            # Python functions in RDKit; single ones fail for exotic atoms.
            except (ArithmeticError, RuntimeError, ValueError):
                descriptors[place] = np.nan
    return Features(
        Chem.MolToSmiles(mol),
        bits.astype(np.uint16),
        counts[bits].clip(max=LARGEST_COUNT).astype(np.uint8),
        descriptors,
    )


@functools.cache
def _functions() -> tuple[Any, tuple[Callable[[Any], float], ...]]:
    from rdkit.Chem import Descriptors, rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=BITS)
    return generator, tuple(getattr(Descriptors, name) for name in NAMES)


class Ranks(NamedTuple):
    """Quantile transform of descriptors, which no outlier can distort.

    Attributes:
      knots: sorted values of each descriptor, float32 `[D, K]`.
    """

    knots: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Ranks:
        """Return the transform to ranks among `values [M, D]`; NaN does not count."""
        order = (np.arange(_KNOTS) + 0.5) / _KNOTS
        knots = np.zeros((values.shape[1], _KNOTS), np.float32)
        for column, row in zip(values.T, knots, strict=True):
            known = np.sort(column[~np.isnan(column)])
            if len(known):
                row[:] = known[(order * len(known)).astype(int)]
        return cls(knots)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return ranks in `0..LEVELS`, uint8 `[M, D]`; NaN is in the middle.

        Equal values, such as the many zeros of a count of groups, have the mean of
        their ranks.
        """
        ranks = np.empty(values.shape, np.uint8)
        for place, (column, knots) in enumerate(zip(values.T, self.knots, strict=True)):
            below = knots.searchsorted(column, "left")
            up_to = knots.searchsorted(column, "right")
            share = (below + up_to) / (2 * len(knots))
            share[np.isnan(column)] = 0.5
            ranks[:, place] = np.rint(LEVELS * share)
        return ranks
