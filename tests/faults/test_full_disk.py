"""A full disk and limits of file sizes: one message, nothing lost, and resumable."""

import contextlib
import os
import subprocess

import numpy as np
import pytest

from mlti_jax.data.builders import pose
from tests.support.raw_files import dump
from tests.support.runs_to_break import (
    CASES,
    SECONDS,
    finish,
    start,
    trace,
    write_data,
)

pytestmark = pytest.mark.slow
# Cached programs would be cut off too, which JAX reports with warnings.
NO_CACHE = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
# No checkpoint fits; some fit, then the disk is full.
SIZES = ("250k", "450k", "550k")


@contextlib.contextmanager
def small_disk(folder, size):
    """Mount a file system of a size, where this process may."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True)
    except FileNotFoundError:
        pytest.skip("this machine has no command `mount`")
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield lambda larger: subprocess.run(
            ["mount", "-o", f"remount,size={larger}", str(folder)], check=True
        )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_data(folder)
    finish(CASES["protonet"].flags(folder, folder / "run"))
    return folder, trace(folder / "run")


def limited(module, kilobytes):
    """Return a program that runs a command with a limit of file sizes."""
    return (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, "
        f"({kilobytes * 1024}, resource.RLIM_INFINITY)); sys.argv[0] = 'run'; "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )


def assert_one_message(process, message):
    _, said = process.communicate(timeout=SECONDS)
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    assert process.returncode == 2, said
    assert len(errors) == 1
    assert message in errors[0]
    assert said.rstrip().endswith(errors[0])
    assert "Traceback" not in said


@pytest.mark.parametrize("size", SIZES)
def test_a_full_disk_is_one_message_and_the_run_resumes(whole, tmp_path, size):
    folder, found = whole
    flags = CASES["protonet"].flags(folder, tmp_path / "disk" / "run")
    with small_disk(tmp_path / "disk", size) as enlarge:
        for _ in range(2):  # again at once: the same message
            assert_one_message(start(flags), "No space left on device")
        enlarge("50m")
        finish(flags)
        assert trace(tmp_path / "disk" / "run") == found


@pytest.mark.parametrize("kilobytes", [4, 64])
def test_a_limit_of_file_sizes_is_one_message_and_the_run_resumes(
    whole, tmp_path, kilobytes
):
    folder, found = whole
    flags = CASES["protonet"].flags(folder, tmp_path / "run")
    process = start(flags, "-c", limited("experiments.run", kilobytes), env=NO_CACHE)
    assert_one_message(process, "File too large")
    finish(flags)
    assert trace(tmp_path / "run") == found


def test_records_that_do_not_fit_are_one_message(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in pose._FILES.values():
        x = rng.integers(0, 256, (2, 5, 128 * 128), np.uint8)
        dump((x, rng.random((2, 5, 1), np.float32)), folder / name)
    flags = ["--dataset=pose", f"--raw={folder}", f"--data_dir={tmp_path / 'out'}"]
    process = start(flags, "-c", limited("mlti_jax.data.prepare", 40), env=NO_CACHE)
    assert_one_message(process, "File too large")
    process = start(flags, "-m", "mlti_jax.data.prepare")
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
