"""The results that FS-Mol's authors publish per test assay.

One file per method, `<method>_summary.csv`, in the folder `baselines` of
https://github.com/microsoft/FS-Mol: average precision, mean and standard deviation over
ten draws, for each assay and support size.
"""

from __future__ import annotations

import pathlib

from mlti_jax.data._readers import files
from mlti_jax.errors import InputError

_SUFFIX = "_summary.csv"


def read_baselines(
    folder: pathlib.Path,
    sizes: tuple[int, ...],
    share: str = "fraction_positive_test",
) -> dict[str, dict[int, dict[str, float]]]:
    """Read the published results.

    Args:
      folder: the folder with the files.
      sizes: support sizes.
      share: the column with the share of actives: of the queries, as in
        `scores.delta_auprc`. The authors' figures subtract that of the support sets,
        `fraction_positive_train`, which is 0.003 to 0.007 larger.

    Returns:
      delta-AUPRC by method, support size and assay: average precision minus the share.

    Raises:
      InputError: if a file is missing or malformed.
    """
    paths = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
    if not paths:
        raise InputError(
            f"--baselines={folder} has no files *{_SUFFIX}; give the folder baselines"
            " of https://github.com/microsoft/FS-Mol"
        )
    return {
        path.name.removesuffix(_SUFFIX): _read(path, sizes, share) for path in paths
    }


def _read(
    path: pathlib.Path, sizes: tuple[int, ...], share: str
) -> dict[int, dict[str, float]]:
    columns = ("TASK_ID", share, *(f"{n}_train" for n in sizes))
    results: dict[int, dict[str, float]] = {size: {} for size in sizes}
    for number, row in files.read_table(path, columns, source="FS-Mol's baselines"):
        for size in sizes:
            text = row[f"{size}_train"]
            if not text:  # The assay is too small for this support size.
                continue
            try:
                precision = float(text.partition("+/-")[0])
                results[size][row["TASK_ID"]] = precision - float(row[share])
            except ValueError:
                raise InputError(
                    f"line {number} of {path} has {text!r} for {size} molecules and"
                    f" {share} {row[share]!r}; expected numbers such as 0.538+/-0.031"
                    " and 0.49"
                ) from None
    return results
