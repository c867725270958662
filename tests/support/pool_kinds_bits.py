"""Prints which runs differ between the places of samples, with XLA's default options.

The tests' own options compile faster and fuse differently, so programs that differ only
in where samples come from may round differently.
"""

import pathlib
import sys
import tempfile

import jax
import numpy as np

from mlti_jax.training import build
from mlti_jax.training._loop import run_experiment
from tests.support.pool_kinds import small_config, splits


def main(methods: list[str]) -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    for method in methods:
        runs = {}
        for kind in ("device", "host", "stream"):
            config = small_config(*method.split(","))
            with tempfile.TemporaryDirectory() as folder:
                found = splits(kind, pathlib.Path(folder))
                runs[kind] = run_experiment(build(config, splits=found))
        for kind in ("host", "stream"):
            result = runs[kind].result == runs["device"].result
            leaves = zip(
                jax.tree.leaves(runs[kind].variables),
                jax.tree.leaves(runs["device"].variables),
                strict=True,
            )
            same = all(np.array_equal(a, b) for a, b in leaves)
            print(method, kind, "result", result, "variables", same, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
