"""The PyTorch implementations ("sides") of a case, and the memory that they need.

`python -m experiments.benchmark.torch.sides CASE SIDE` runs three steps and prints by
how many bytes the process grew. The resident set never shrinks, so every side is
measured in its own process.
"""

from __future__ import annotations

import importlib.util
import pathlib
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence

from experiments.benchmark.cases import Case, find, make_pool
from experiments.benchmark.timing import Steps
from mlti_jax._internal import command_line
from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError

# The plain step; with channels-last images in memory, which is faster on CPU but rarely
# used; with `torch.func.vmap` over tasks; and with `torch.compile`, channels last.
SIDES = ("torch", "torch_channels_last", "torch_vmap", "torch_compile")
# Compiling takes far more memory than the steps.
WITH_MEMORY = SIDES[:3]
STEPS_FOR_MEMORY = 3


def make_step(case: Case, side: str) -> Callable[[], object]:
    """Build a step of one of the `SIDES`.

    Raises:
      NotImplementedError: if this case is not implemented in PyTorch.
    """
    from experiments.benchmark.torch import steps  # imports PyTorch

    pool = make_pool(case)
    if side == "torch_vmap":
        return steps.make_vmap_step(case, *pool)
    if side == "torch_compile":
        return steps.make_compiled_step(case, *pool)
    return steps.make_step(case, *pool, channels_last=side == "torch_channels_last")


def make_sides(
    case: Case, names: Sequence[str] = SIDES
) -> tuple[dict[str, Steps], dict[str, str]]:
    """Build the sides of a case; none if PyTorch is not installed.

    Args:
      case: the step.
      names: of the sides; `torch_channels_last` is skipped for networks on vectors.

    Returns:
      The sides by name, and the reasons for those that are not implemented.
    """
    sides: dict[str, Steps] = {}
    refused: dict[str, str] = {}
    if importlib.util.find_spec("torch") is None:
        return sides, refused
    for side in names:
        if side == "torch_channels_last" and case.backbone == "mlp":
            continue
        try:
            sides[side] = _repeated(make_step(case, side))
        except NotImplementedError as error:
            refused[side] = str(error)
    return sides, refused


def _repeated(step: Callable[[], object]) -> Steps:
    def steps(count: int) -> None:
        for _ in range(count):
            step()

    return steps


def resident_growth(name: str, side: str) -> int:
    """Bytes by which a new process grows while it runs the first steps of a case.

    PyTorch itself, the pool and the parameters are loaded before and do not count.
    """
    command = [sys.executable, "-m", "experiments.benchmark.torch.sides", name, side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{' '.join(command[1:])} failed: {done.stderr[-500:]}")
    return int(done.stdout)


def growth_while(run: Callable[[], object]) -> int:
    """Peak of the resident set while `run` is called, minus its size before."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        before = _peak()
        run()
        return _peak() - before
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(field: str) -> int:
    """Read a size in bytes from /proc/self/status."""
    text = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{field}:")[2].split()[0])


def main(name: str, side: str) -> None:
    """Print the memory growth of one case and side."""
    if side not in WITH_MEMORY:
        raise unknown_name("side", side, WITH_MEMORY)
    steps = _repeated(make_step(find(name), side))
    print(growth_while(lambda: steps(STEPS_FOR_MEMORY)))


if __name__ == "__main__":
    sys.exit(command_line.run(main, __doc__, positional=("CASE", "SIDE")))
