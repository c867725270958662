"""What tests share: small tasks, and where real data is."""

from __future__ import annotations

import os
import pathlib

# Tests compile hundreds of programs and run each of them once or twice, on a few
# numbers: nearly all of their time is the compiler's, and most of that is spent on
# making the code fast. XLA reads this once, so it is set before JAX is there, and
# the commands that tests start read it too. Tests of the code as it is optimised for
# users: `XLA_FLAGS= python -m pytest`.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false",
)

import jax  # noqa: E402
import pytest  # noqa: E402
from absl import logging  # noqa: E402

# As `experiments.run` has it on a machine with two cores.
jax.config.update("jax_num_cpu_devices", 2)


def pytest_configure(config):
    """Keeps compiled programs for the next run; `--cache-clear` forgets them.

    JAX takes an entry that it can't read for one that isn't there.
    """
    if not hasattr(config, "cache"):  # by -p no:cacheprovider
        return
    settings = {
        "jax_compilation_cache_dir": str(config.cache.mkdir("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)  # for commands that tests start


MOST_MAPS = 10_000


@pytest.fixture(autouse=True)
def forget_programs():
    """Lets compiled programs go before a process has too many of them.

    Each takes several memory maps and about a megabyte. Linux gives a process 65,530
    maps, and XLA crashes where it gets no more.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def keep_verbosity():
    """Tools that are run inside of a test say less; the next test must not."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)


@pytest.fixture
def raw_dir() -> pathlib.Path:
    """The folder of real releases, where there is one."""
    folder = os.environ.get("MLTI_RAW_DIR")
    if not folder:
        pytest.skip("MLTI_RAW_DIR is not set: no real data here")
    return pathlib.Path(folder)
