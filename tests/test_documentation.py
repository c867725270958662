"""Python blocks of README and docs, and docstrings' examples, run as they stand.

Commands are not run, but what they name must be there.
"""

import doctest
import importlib
import pathlib
import re
import shlex

import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import interpolation, parallel
from mlti_jax.learners import _inner_loop as inner_loop

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))


def python_blocks(page: pathlib.Path = README, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # What blocks save is not for the project's folder.


@pytest.mark.parametrize("index", range(len(python_blocks())))
def test_readme_blocks_run(index):
    scope = {}
    exec(compile(python_blocks()[index], f"README block {index}", "exec"), scope)
    if "new_tasks" in scope:
        old, new = scope["tasks"].support, scope["new_tasks"].support
        assert new.x.shape == old.x.shape
        assert (np.asarray(new.x) != np.asarray(old.x)).any()
        np.testing.assert_array_equal(new.y, old.y)


def test_readme_blocks_fit_together():
    scope = {}
    for block in python_blocks():
        if "mlti_jax.fit(" not in block:  # long, and a world of its own
            exec(compile(block, "README", "exec"), scope)
    loss, accuracy = scope["objective"](
        scope["variables"], scope["new_tasks"], scope["keys"][0]
    )
    assert np.isfinite(loss)
    assert 0 <= accuracy <= 1


def test_readme_has_the_import_example():
    assert any("interpolation" in block for block in python_blocks())


@pytest.mark.parametrize("module", [interpolation, inner_loop, parallel])
def test_docstring_examples(module):
    scope = {**vars(module), "jnp": jnp}
    failed, tried = doctest.testmod(module, extraglobs=scope)
    assert tried > 0
    assert failed == 0


def test_readme_names_what_there_is():
    from mlti_jax.backbones import BACKBONES
    from mlti_jax.data import DATASETS
    from mlti_jax.learners import LEARNERS
    from mlti_jax.strategies import STRATEGIES

    text = README.read_text()
    for family in (BACKBONES, DATASETS, LEARNERS, STRATEGIES):
        for name in family:
            assert f"`{name}`" in text, name


# ------------------------------------------------------------------- pages of docs


def slow_if_training(page: pathlib.Path):
    training = "mlti_jax.fit(" in page.read_text()
    return pytest.param(
        page, id=page.stem, marks=[pytest.mark.slow] if training else []
    )


@pytest.mark.parametrize("page", map(slow_if_training, PAGES))
def test_pages_blocks_run(page):
    scope = {}
    for block in python_blocks(page):
        exec(compile(block, page.name, "exec"), scope)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        made = target == "RESULTS.md"  # by experiments.report
        assert made or "://" in target or (page.parent / target).exists(), target


def commands() -> list[list[str]]:
    """The commands of all pages that run a module, as their words."""
    found = []
    for page in (README, *PAGES):
        for block in python_blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "python" in words and "-m" in words:
                    found.append(words[words.index("-m") + 1 :])
    return found


def flags_of(module: str) -> set[str]:
    """The names of a command's flags, read from its source and what it shares."""
    text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
    names = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text)
    names += re.findall(r'declare_key_flag\(\s*"(\w+)"', text)
    names += re.findall(r'add_argument\(\s*"--(\w+)"', text)
    for shared in re.findall(r"adopt_module_key_flags\((\w+)\)", text):
        names += flags_of(f"{module.rpartition('.')[0]}.{shared}")
    return set(names)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_name_what_there_is(command):
    module, *words = command
    if module in ("pytest", "pip"):
        return
    flags = dict(word[2:].partition("=")[::2] for word in words if word[:2] == "--")
    fields = [name for name in flags if name.startswith("config.")]
    unknown = set(flags) - set(fields) - flags_of(module)
    assert not unknown
    if "config" in flags:
        path, _, argument = flags["config"].partition(":")
        config_module = importlib.import_module(
            path.removesuffix(".py").replace("/", ".")
        )
        arguments = [argument] if argument else []
        section = config_module.get_config(*arguments)
        for field in fields:
            place = section
            for part in field.split(".")[1:]:
                assert part in place, field
                place = place[part]
