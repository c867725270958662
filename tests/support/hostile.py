"""Hostile inputs: how to make them, and what it means to refuse them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import mlti_jax
from experiments import cli
from mlti_jax._internal.storage import digest
from mlti_jax.errors import InputError
from tests.support.cli import ROOT, Call, command, reset_flags

SECONDS = 20  # of one row, on a busy machine
Path = pathlib.Path
Prepare = Callable[[Path], object]  # writes files into the folder of a row


class Row(NamedTuple):
    """A command that must be refused.

    Attributes:
      id: name of the row.
      message: regular expression of the error.
      args: arguments; `{tmp}` is the folder of the row, `{shared}` that of the module.
      prepare: writes files into the folder of the row.
    """

    id: str
    message: str
    args: tuple[str, ...]
    prepare: Prepare = lambda folder: None


class Refused(NamedTuple):
    """A function of the folder of a row that must raise `InputError`."""

    id: str
    message: str
    call: Callable[[Path], object]


class Accepted(NamedTuple):
    """A function of the folder of a row that must work."""

    id: str
    call: Callable[[Path], object]


def params(rows: list[Any], quick: int = 0) -> list[Any]:
    """Return the rows as parameters of a test; all but the first `quick` are slow."""
    return [
        pytest.param(row, id=row.id, marks=() if i < quick else pytest.mark.slow)
        for i, row in enumerate(rows)
    ]


# ---------------------------------------------------------------------------- checking


class TooSlow(BaseException):
    """A row took too long; not an `Exception`, so that no command handles it."""


@contextlib.contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `TooSlow` in the main thread if the context stays open for too long."""

    def stop(*_: object) -> None:
        raise TooSlow(f"not finished after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def caller(
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
) -> Call:
    """Return a function that calls a command in a folder without prepared data."""
    # ml_collections keeps the module of the last config file.
    monkeypatch.delitem(sys.modules, "config_config", raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLTI_DATA_DIR", str(folder / "no_data"))
    return command(module, monkeypatch, capsys)


def check_refused(call: Call, args: tuple[str, ...], message: str, tmp: Path) -> None:
    """Check that a command prints one error, nothing else, and changes no file."""
    before = snapshot(tmp)
    with time_limit():
        code, printed = call(*args)
    assert code == 2, printed
    assert len(re.findall("^error: ", printed.err, re.MULTILINE)) == 1, printed.err
    assert "Traceback" not in printed.err
    assert re.search(message, without(tmp, printed.err), re.DOTALL), printed.err
    assert printed.out == ""
    assert snapshot(tmp) == before


def check_raises(row: Refused, tmp: Path) -> None:
    """Check that a function raises `InputError` and changes no file."""
    with time_limit(), pytest.raises(InputError) as error:
        row.call(tmp)
    text = without(tmp, str(error.value))
    assert re.search(row.message, text, re.DOTALL), text


def without(tmp: object, text: str) -> str:
    """Shorten the folder of a row, whose name has words of the row's name."""
    return text.replace(str(tmp), "TMP")


def snapshot(folder: Path) -> dict[str, str]:
    """Return kind and content of everything in a folder, except lock files."""
    return {
        os.fsencode(path.relative_to(folder)).decode(errors="replace"): _content(path)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }


def _content(path: Path) -> str:
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if path.is_dir() else "special"


# ------------------------------------------------------------------------------ making


def folder_in(name: str) -> Prepare:
    return lambda tmp: (tmp / name).mkdir(parents=True)


def file_in(name: str, content: str | bytes = "") -> Prepare:
    """Return a function that writes a file and its folders."""

    def write(tmp: Path) -> None:
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        (tmp / name).write_bytes(data)

    return write


def fifo_in(name: str) -> Prepare:
    """Return a function that makes a named pipe; reading it would never end."""

    def make(tmp: Path) -> None:
        (tmp / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp / name)

    return make


def device_in(name: str) -> Prepare:
    """Return a function that makes a device like /dev/null, where that is allowed.

    If a faulty program replaced it, nothing else on the machine would suffer.
    """

    def make(tmp: Path) -> None:
        try:
            os.mknod(tmp / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("making a device needs root")

    return make


def instead(name: str, make: Callable[[str], Prepare], *content: Any) -> Prepare:
    """Return a function that replaces a file or folder with something else."""

    def replace(tmp: Path) -> None:
        if (tmp / name).is_dir():
            shutil.rmtree(tmp / name)
        else:
            (tmp / name).unlink(missing_ok=True)
        make(name, *content)(tmp)

    return replace


NESTED = '{"a":' * 100_000 + "1" + "}" * 100_000
DAMAGED_JSON = {
    "empty": "",
    "empty-dictionary": "{}",
    "list": "[]",
    "null": "null",
    "number": "3",
    "nan": '{"mean": NaN}',
    "nested": NESTED,
    "not-utf8": b'{"mean": "\xff"}',
    "cut": '{"mean": 0.5, "ci',
}


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Prepare:
    """Return a function that edits a JSON file by hand, without its checksum."""

    def edit(tmp: Path) -> None:
        found = json.loads((tmp / name).read_text())
        change(found)
        (tmp / name).write_text(json.dumps(found))

    return edit


def resealed(name: str, change: Callable[[dict[str, Any]], object]) -> Prepare:
    """Return a function that edits a JSON file and computes its checksum again."""

    def edit(tmp: Path) -> None:
        found = json.loads((tmp / name).read_text())
        del found["sha256"]
        change(found)
        text = json.dumps(found)
        try:
            seal = digest(found)
        except ValueError:  # NaN has no checksum
            seal = hashlib.sha256(text.encode()).hexdigest()
        (tmp / name).write_text(json.dumps({**found, "sha256": seal}))

    return edit


def flipped(pattern: str) -> Prepare:
    """Return a function that flips a bit in the middle of a file."""

    def flip(tmp: Path) -> None:
        (path,) = tmp.glob(pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return flip


def bomb(path: Path, megabytes: int = 300) -> None:
    """Write an .npz file of zeros that is 1,000 times larger when it is read."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        shape = (megabytes * 2**17,)
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(megabytes):
            member.write(bytes(2**20))


# ------------------------------------------------------------------------- small data

FEATURES = 4


def task_arrays(tasks: int = 5, per_class: int = 6) -> dict[str, np.ndarray]:
    """Arrays x, y and task of label-sharing tasks with two classes."""
    rng = np.random.default_rng(0)
    y = np.tile(np.repeat([0, 1], per_class), tasks)
    x = rng.normal(size=(len(y), FEATURES)) + y[:, None]
    return {"x": x, "y": y, "task": np.repeat(np.arange(tasks), 2 * per_class)}


def write_npz(**changes: Any) -> Prepare:
    """Return a function that writes `own.npz` with other arrays; None removes one."""

    def write(tmp: Path) -> None:
        arrays = {**task_arrays(), **changes}
        given = {name: value for name, value in arrays.items() if value is not None}
        np.savez(tmp / "own.npz", **given)

    return write


def table_text(tasks: int = 5, per_class: int = 6, header: str = "") -> str:
    """A table in CSV: columns task, label and four features."""
    arrays = task_arrays(tasks, per_class)
    names = ",".join(f"f{i}" for i in range(FEATURES))
    lines = [header or f"task,label,{names}"]
    for task, label, x in zip(*(arrays[k] for k in ("task", "y", "x")), strict=True):
        lines.append(f"t{task},{'yes' if label else 'no'},{','.join(map(str, x))}")
    return "\n".join(lines) + "\n"


def write_images(
    folder: Path, classes: int = 6, number: int = 3, size: int = 8, suffix: str = "png"
) -> None:
    rng = np.random.default_rng(0)
    for i in range(classes):
        (folder / f"class{i}").mkdir(parents=True)
        for j in range(number):
            pixels = rng.integers(0, 256, (size, size, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{i}" / f"{j}.{suffix}")


CONFIG = ROOT / "experiments" / "configs" / "own_data.py"
SMALL = (
    *("--config.train.steps=2", "--config.train.meta_batch_size=2"),
    *("--config.task.shots=1", "--config.task.queries=1", "--config.eval.queries=1"),
    *("--config.eval.num_tasks=2", "--config.eval.validation_tasks=2"),
    *("--config.eval.tasks_per_pass=2", "--config.compilation_cache=off"),
    "--config.backbone.mlp.hidden=(4,4)",
)


def run_args(
    *args: str, data: str = "{shared}/tasks.npz", argument: str = "learner=maml"
) -> tuple[str, ...]:
    """Arguments of `experiments.run` for a small run, and further ones.

    Repeated flags of tuples would be concatenated, so each is given once.
    """
    names = {arg.partition("=")[0] for arg in args}
    return (
        f"--config={CONFIG}:{argument}",
        f"--config.dataset.path={data}",
        "--workdir={tmp}/work",
        *(arg for arg in SMALL if arg.partition("=")[0] not in names),
        *args,
    )


def filled(args, tmp, shared):
    """Return arguments with the folders of a row and of shared data."""
    return tuple(
        arg.replace("{tmp}", str(tmp)).replace("{shared}", str(shared)) for arg in args
    )


def call_in_process(module, args, monkeypatch):
    """Return the exit code of the command of a module."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *args])
    reset_flags()
    return cli.run(module.main, module.__doc__)


def fit_small(tasks, *args, steps=2, **options):
    """Fit a tiny network for two steps."""
    overrides = {
        "backbone.mlp.hidden": (4, 4),
        "train.meta_batch_size": 2,
        "task.queries": 1,
        "eval.queries": 1,
        "eval.num_tasks": 2,
        "eval.validation_tasks": 2,
        **options.pop("overrides", {}),
    }
    options = {"shots": 1, "verbose": False, "overrides": overrides, **options}
    return mlti_jax.fit(tasks, *args, steps=steps, **options)


def with_value(array, place, value):
    array = array.astype(float)
    array[place] = value
    return array


def prediction(id, message, prepare=lambda tmp: 0, **flags):
    """A row of `experiments.predict`; the flags replace the valid ones."""
    given = {
        "model": "{tmp}/model",
        "support": "{shared}/support.csv",
        "query": "{shared}/query.csv",
        "output": "{tmp}/out.csv",
        **flags,
    }
    return Row(id, message, tuple(f"--{k}={v}" for k, v in given.items()), prepare)


# Valid data: five tasks with two classes, six classes, and a table of queries.
X, Y, TASK = task_arrays().values()
CLASSES = {f"c{i}": X[6 * i : 6 * i + 6] for i in range(6)}
QUERY = table_text(tasks=1, per_class=2)
MOST = 2**32 - 1  # the largest number that fields accept
HEADER = "task,label,f0,f1,f2,f3"
RAINBOW = f"--config={ROOT}/experiments/configs/rainbow_mnist.py"
