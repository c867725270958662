"""Write `report.html` into the work directory of a run or a comparison."""

from __future__ import annotations

import errno
import pathlib
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mlti_jax._internal.extras import require
from mlti_jax._internal.progress import say
from mlti_jax._internal.storage import digest
from mlti_jax.errors import InputError
from mlti_jax.learners import Variables
from mlti_jax.report._page import Page, write_page
from mlti_jax.report._pages import (
    REPORT,
    Method,
    Verdict,
    comparison_page,
    run_page,
)
from mlti_jax.training import Experiment
from mlti_jax.training._workdir import tested_variables

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class Temperature(Protocol):
    """What a report shows of a `Calibration`."""

    @property
    def temperature(self) -> float:
        """The number that divides logits."""


def write_run(
    experiment: Experiment,
    result: Mapping[str, Any],
    workdir: str | pathlib.Path | None,
    *,
    variables: Variables | None = None,
    calibration: Temperature | None = None,
) -> None:
    """Write `report.html` of a finished run into its work directory.

    Shows the data, the settings, learning curves, the distribution of the metric over
    test tasks, calibration, predictions on at most 200 of the fixed test tasks, and
    some training tasks. A report of the same result is not written again.

    The result is safe before this is called, so what goes wrong here does not raise:
    a missing package or a read-only disk is printed, a fault of the report is a
    `RuntimeWarning`.

    Args:
      experiment: what was run.
      result: the content of `results.json`.
      workdir: the work directory; nothing is written if None.
      variables: the variables that were tested; None to restore them from `workdir`.
      calibration: temperature scaling; None if the run has none.

    Raises:
      OSError: if the disk is full or fails.
    """
    if workdir is None:
        return
    folder = pathlib.Path(workdir)
    temperature = None if calibration is None else calibration.temperature
    fingerprint = digest({"result": dict(result), "temperature": temperature})

    def page() -> Page:
        found = variables
        if found is None:
            found, _ = tested_variables(experiment, folder)
        return run_page(experiment, result, folder, found, temperature, fingerprint)

    _write(folder, fingerprint, page)


def write_comparison(
    methods: Mapping[str, Method],
    results: Mapping[str, Mapping[str, Any]],
    workdir: str | pathlib.Path | None,
    *,
    verdicts: Mapping[str, Verdict] | None = None,
    runs: int = 1,
) -> None:
    """Write `report.html` of a comparison into the directory above its runs.

    Shows the paired difference of each method from the first, over all test tasks and
    by task of origin, learning curves, and links to the reports of the runs, which are
    in `workdir / name`. Errors are handled as in `write_run`.

    Args:
      methods: what was run, by name.
      results: the content of `results.json`, by the same names.
      workdir: the directory; nothing is written if None.
      verdicts: the difference of each other method from the first, by name: its mean,
        the half-width of its interval, and a word such as `helps`. None to compute it
        from the results, for a single run of each method.
      runs: the number of runs of each method, whose results are averaged.
    """
    if workdir is None:
        return
    folder = pathlib.Path(workdir)
    fingerprint = digest({name: dict(result) for name, result in results.items()})

    def page() -> Page:
        return comparison_page(
            methods, results, folder, verdicts or {}, runs, fingerprint
        )

    _write(folder, fingerprint, page)


def _write(folder: pathlib.Path, fingerprint: str, page: Callable[[], Page]) -> None:
    path = folder / REPORT
    if _is_current(path, fingerprint):
        return
    try:
        for package in ("jinja2", "matplotlib"):
            require(package, "plot")
    except InputError as error:
        say(f"{path} was not written: {error}")
        return
    try:
        write_page(page(), path)
    except OSError as error:
        # The run wrote its result here, so only an earlier run can be read-only.
        if error.errno not in _READ_ONLY:
            raise
        say(f"{path} was not written: {error.strerror}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        warnings.warn(
            f"{path} was not written, but the results are complete: "
            f"{type(error).__name__}: {error} "
            f"({pathlib.Path(place.filename).name}, line {place.lineno})",
            RuntimeWarning,
            stacklevel=3,
        )
    else:
        say(f"report: {path}")


def _is_current(path: pathlib.Path, fingerprint: str) -> bool:
    """Whether a report exists that shows the same result, and can be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return f'content="{fingerprint}"' in file.read(4096)
    except OSError:
        return False
