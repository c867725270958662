"""Config files and work directories that `experiments.run` must refuse."""

from __future__ import annotations

import re
import shutil

import pytest

from experiments import run
from tests.support.cli import ROOT
from tests.support.hostile import (
    DAMAGED_JSON,
    Row,
    edited,
    fifo_in,
    file_in,
    filled,
    folder_in,
    instead,
    params,
    resealed,
    run_args,
    time_limit,
)

# ------------------------------------------------------ experiments.run: config files

SOURCE = "from mlti_jax.training import base_config\ndef get_config(arg=''):\n    "


def config_file(id, message, prepare, name="hostile_config.py"):
    return Row(
        id, message, (f"--config={{tmp}}/{name}", "--workdir={tmp}/work"), prepare
    )


def source(id, message, text):
    return config_file(id, message, file_in("hostile_config.py", text))


CONFIG_FILES = [
    config_file("missing", "does not exist; available configs: .*quick", lambda tmp: 0),
    source("syntax", "line 1: SyntaxError", "def get_config(:\n"),
    config_file("folder", "config.py' is not a file", folder_in("hostile_config.py")),
    config_file("fifo", "config.py' is not a file", fifo_in("hostile_config.py")),
    Row(
        "device",
        "/dev/null' is not a file",
        ("--config=/dev/null", "--workdir={tmp}/work"),
    ),
    source("empty", "get_config", ""),
    source("not-utf8", "config.py", b"\xff\xfe = 1\n"),
    source("nul", "config.py", b"x = 1\0\n"),
    source("reads-nothing", "line 3: FileNotFoundError", SOURCE + "open('nowhere')\n"),
    source(
        "wrong-type",
        "config.py: TypeError.*'steps'",
        SOURCE + "config = base_config()\n    config.train.steps = 'many'\n",
    ),
    Row(
        "argument-of-no-use",
        "quickstart.py takes no argument after the colon",
        (
            f"--config={ROOT}/experiments/configs/quickstart.py:learner=maml",
            "--workdir={tmp}/work",
        ),
    ),
    source("raises", "line 3: ZeroDivisionError", SOURCE + "return 1 / 0\n"),
    source("raises-on-import", "line 1: ZeroDivisionError", "1 / 0\n"),
    source("imports-nothing", "ModuleNotFoundError", "import no_such_module\n"),
    source("no-get-config", "get_config", "config = {}\n"),
    source(
        "returns-none",
        "get_config returns None; expected a ConfigDict",
        SOURCE + "return None\n",
    ),
    source(
        "returns-number",
        "get_config returns 3; expected a ConfigDict",
        SOURCE + "return 3\n",
    ),
    source(
        "returns-dict",
        "get_config returns {}; expected a ConfigDict",
        SOURCE + "return {}\n",
    ),
    source(
        "exits",
        "config.py, line 4: SystemExit",
        "import sys\n" + SOURCE + "sys.exit(0)\n",
    ),
    source(
        "exits-on-import", "config.py, line 2: SystemExit", "import sys\nsys.exit(3)\n"
    ),
    source("recursion", "RecursionError", SOURCE + "return get_config(arg)\n"),
    source(
        "other-fields",
        "the config has no field backbone.name",
        "from ml_collections import ConfigDict\n"
        "def get_config(arg=''):\n    return ConfigDict({'seed': 0})\n",
    ),
    source("empty-names", "strategy is empty", SOURCE + "return base_config()\n"),
]


@pytest.mark.parametrize("row", params(CONFIG_FILES, quick=2))
def test_config_files(row, refuse):
    refuse(run, row)


# ------------------------------------------------- experiments.run: work directories


def workdir(id, message, path, prepare=lambda tmp: 0):
    return Row(id, message, run_args(f"--workdir={path}"), prepare)


WORKDIRS = [
    workdir("file", "file, not a directory", "{tmp}/file", file_in("file")),
    workdir("under-a-file", "file, not a directory", "{tmp}/file/in", file_in("file")),
    workdir("fifo", "not a directory", "{tmp}/pipe", fifo_in("pipe")),
    workdir("proc", "/proc/x", "/proc/x"),
    workdir("device", "/dev/null", "/dev/null"),
    workdir("long-name", "too long.*shorter path", "{tmp}/" + "a" * 300),
    workdir(
        "lock-folder", r"\.lock is not a regular file", "{tmp}/w", folder_in("w/.lock")
    ),
    workdir(
        "lock-fifo", r"\.lock is not a regular file", "{tmp}/w", fifo_in("w/.lock")
    ),
    workdir("config-folder", "config.json", "{tmp}/w", folder_in("w/config.json")),
    workdir("config-fifo", "config.json", "{tmp}/w", fifo_in("w/config.json")),
    workdir(
        "results-folder",
        "results.json|config.json",
        "{tmp}/w",
        folder_in("w/results.json"),
    ),
    workdir(
        "results-fifo", "results.json|config.json", "{tmp}/w", fifo_in("w/results.json")
    ),
    workdir(
        "checkpoints-only",
        "checkpoints but no config.json",
        "{tmp}/w",
        folder_in("w/checkpoints"),
    ),
]


@pytest.mark.parametrize("row", params(WORKDIRS, quick=2))
def test_work_directories(row, refuse):
    refuse(run, row)


NEW_RUNS = [
    Row(
        f"{name}-{kind}",
        rf"{name} is a (file|folder|directory)|{name}.*not a|has {name}",
        run_args(),
        make(f"work/{name}"),
    )
    for name, kind, make in (
        ("checkpoints", "file", file_in),
        ("tensorboard", "file", file_in),
        ("tensorboard", "fifo", fifo_in),
        ("metrics.jsonl", "folder", folder_in),
        ("metrics.jsonl", "fifo", fifo_in),
    )
]


@pytest.mark.parametrize("row", params(NEW_RUNS))
def test_files_of_a_new_run_in_the_way(row, call, shared, tmp_path):
    """What the run would write is refused before it trains."""
    row.prepare(tmp_path)
    (tmp_path / "work" / "other").write_text("kept")
    with time_limit():
        code, printed = call(run)(*filled(row.args, tmp_path, shared))
    assert (code, printed.err.count("error:"), printed.out) == (2, 1, ""), printed

    assert re.search(row.message, printed.err), printed.err
    assert (tmp_path / "work" / "other").read_text() == "kept"
    assert not (tmp_path / "work" / "results.json").exists()


def damaged(id, message, prepare):
    return Row(id, message, run_args(), prepare)


FINISHED = [
    *(
        damaged(
            f"{name}-{fault}",
            rf"{name} is damaged",
            instead(f"work/{name}", file_in, content),
        )
        for name in ("results.json", "config.json")
        for fault, content in DAMAGED_JSON.items()
        if (name, fault) != ("config.json", "empty-dictionary")
    ),
    damaged(
        "config.json-empty-dictionary",
        "different config|damaged",
        instead("work/config.json", file_in, "{}"),
    ),
    damaged(
        "results.json-folder", "results.json", instead("work/results.json", folder_in)
    ),
    damaged("results.json-fifo", "results.json", instead("work/results.json", fifo_in)),
    damaged(
        "config.json-folder", "config.json", instead("work/config.json", folder_in)
    ),
    damaged("config.json-fifo", "config.json", instead("work/config.json", fifo_in)),
    damaged(
        "results.json-edited",
        "results.json is damaged .its content does not match its checksum",
        edited("work/results.json", lambda found: found.update(mean=0.99)),
    ),
    damaged(
        "results.json-per_task-edited",
        "does not match its checksum",
        edited("work/results.json", lambda found: found["per_task"].append(1.0)),
    ),
    damaged(
        "results.json-wrong-type",
        "results.json is damaged .ways is 'two'",
        resealed("work/results.json", lambda found: found.update(ways="two")),
    ),
    damaged(
        "config.json-edited",
        "config.json is damaged .its content does not match its checksum",
        edited("work/config.json", lambda found: found.update(seed=1)),
    ),
    Row("another-seed", "different config.*seed: 0 -> 1", run_args("--config.seed=1")),
    Row(
        "another-learner",
        "different config.*learner.name: 'maml' -> 'protonet'",
        run_args(argument="learner=protonet"),
    ),
]


@pytest.mark.parametrize("row", params(FINISHED))
def test_damaged_finished_runs(row, refuse, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "work")
    refuse(run, row)
