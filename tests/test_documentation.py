"""Runs the Python blocks of README and docs and the examples of docstrings.

Commands are not executed, but the modules, flags and fields they name must exist.
"""

import ast
import doctest
import importlib
import inspect
import pathlib
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mlti_jax
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.data._registry import DATASETS
from mlti_jax.learners._registry import LEARNERS
from mlti_jax.strategies._registry import STRATEGIES
from mlti_jax.types import Batch, Task

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TOP_LEVEL = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
WITH_EXAMPLES = ("augmentation", "interpolation", "learners", "parallel", "strategies")


def blocks(page: pathlib.Path, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Some blocks save files.


# ------------------------------------------------------------------------- README


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_readme_interpolates_own_tasks():
    block = next(block for block in blocks(README) if "interpolation." in block)
    scope = {}
    exec(compile(block, "README", "exec"), scope)
    old, new = scope["tasks"].support, scope["new_tasks"].support
    assert new.x.shape == old.x.shape
    assert (np.asarray(new.x) != np.asarray(old.x)).any()
    np.testing.assert_array_equal(new.y, old.y)


@pytest.mark.slow
def test_readme_fits_own_tasks():
    block = next(block for block in blocks(README) if "mlti_jax.fit(" in block)
    scope = {}
    exec(compile(block, "README", "exec"), scope)
    assert scope["probabilities"].shape == (3, 2)


@pytest.mark.parametrize(
    "family",
    [
        BACKBONES,
        DATASETS,
        LEARNERS,
        STRATEGIES,
    ],
    ids=["backbones", "datasets", "learners", "strategies"],
)
def test_readme_lists_all_parts(family):
    text = README.read_text()
    assert [name for name in family if f"`{name}`" not in text] == []


def table_rows(text: str) -> list[tuple[str, ...]]:
    lines = re.findall(r"^\| (.* \|.*) \|$", text, re.M)
    return [tuple(cell.strip() for cell in line.split(" |")) for line in lines]


def test_readme_results_are_those_of_the_results_page():
    section = README.read_text().partition("## Results at a glance")[2]
    header, *shown = table_rows(section)
    overview = RESULTS.read_text().partition("## Overview")[2].partition("\n#")[0]
    columns, _, *rows = table_rows(overview)
    places = [columns.index(name) for name in header]
    # All with the paper's settings and more than one seed, for two learners.
    expected = [
        tuple(row[place] for place in places)
        for row in rows
        if row[columns.index("learner")] in ("MAML", "ProtoNet")
        and int(row[columns.index("seeds")]) > 1
        and row[columns.index("paper's difference")]
    ]
    assert shown == expected
    assert len(shown) == 6


def test_readme_commands_are_one_line_each():
    commands = [line for block in blocks(README, "bash") for line in block.split("\n")]
    assert sum(line.startswith("pip install -e ") for line in commands) == 2


# --------------------------------------------------------------------------- pages


def slow_if_training(page: pathlib.Path):
    text = page.read_text()
    training = "mlti_jax.fit(" in text or "mlti_jax.select(" in text
    return pytest.param(
        page, id=page.stem, marks=[pytest.mark.slow] if training else []
    )


@pytest.mark.parametrize("page", map(slow_if_training, PAGES))
def test_page_blocks_run(page):
    scope = {}
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), scope)


@pytest.mark.parametrize(
    "page", [*TOP_LEVEL, *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_links_have_targets(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_have_sources(page):
    for name, _, section in re.findall(r'--8<-- "([^":]+)(:(\w+))?"', page.read_text()):
        text = (ROOT / name).read_text()
        assert not section or f"[start:{section}]" in text


# ------------------------------------------------------------------------ commands


def commands() -> list[list[str]]:
    """The commands of all pages that run a module, split into words."""
    found = []
    for page in (*TOP_LEVEL, *PAGES):
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if "python" in words and "-m" in words:
                    found.append(words[words.index("-m") + 1 :])
    return found


def flags_of(module: str) -> set[str]:
    """The flags of a command, read from its source and from modules it adopts."""
    path = ROOT / module.replace(".", "/")
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text()
    names = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text)
    names += re.findall(r'declare_key_flag\(\s*"(\w+)"', text)
    names += re.findall(r'add_argument\(\s*"--(\w+)"', text)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for shared in re.findall(r"adopt_module_key_flags\((\w+)\)", text):
        names += flags_of(imported[shared])
    return set(names)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_exist(command):
    module, *words = command
    if module in ("pip", "pytest", "venv"):
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


# ---------------------------------------------------------------------- docstrings


def functions_with_examples() -> list:
    """Public functions whose docstrings should have an example."""
    found = []
    for family in WITH_EXAMPLES:
        module = getattr(mlti_jax, family)
        for name in getattr(module, "__all__", ()):
            if inspect.isfunction(getattr(module, name)):
                found.append(pytest.param(module, name, id=f"{family}.{name}"))
    return found


@pytest.mark.parametrize(("module", "name"), functions_with_examples())
def test_docstring_example(module, name):
    function = inspect.unwrap(getattr(module, name))
    assert "Examples:\n" in function.__doc__  # mkdocstrings renders it as code.
    scope = {"jax": jax, "jnp": jnp, "np": np, "Batch": Batch, "Task": Task}
    scope |= {public: getattr(module, public) for public in module.__all__}
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in finder.find(function, name, globs=scope):
        runner.run(test)
    failed, tried = runner.summarize(verbose=False)
    assert tried > 0
    assert failed == 0
