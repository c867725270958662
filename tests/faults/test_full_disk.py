"""A full disk and limits of file sizes: one message, nothing lost, and resumable."""

import contextlib
import os
import subprocess

import pytest

from tests.support.runs_to_break import CASES, start, trace, write_data

pytestmark = pytest.mark.slow
SECONDS = 120
# One checkpoint takes about 90 KB: none fits, one or two fit.
SIZES = ("300k", "700k")


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
    process = start(CASES["protonet"].flags(folder, folder / "run"))
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    return folder, trace(folder / "run")


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
        process = start(flags)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
        assert trace(tmp_path / "disk" / "run") == found


@pytest.mark.parametrize("kilobytes", [4, 64])
def test_a_limit_of_file_sizes_is_one_message_and_the_run_resumes(
    whole, tmp_path, kilobytes
):
    folder, found = whole
    flags = CASES["protonet"].flags(folder, tmp_path / "run")
    program = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, "
        f"({kilobytes * 1024}, resource.RLIM_INFINITY)); sys.argv[0] = 'run'; "
        "runpy.run_module('experiments.run', run_name='__main__')"
    )
    # Cached programs would be cut off too, which JAX reports with warnings.
    env = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = start(flags, "-c", program, env=env)
    assert_one_message(process, "File too large")
    process = start(flags)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert trace(tmp_path / "run") == found
