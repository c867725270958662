"""Public names: each exists, has a docstring and an entry in the API reference."""

import ast
import importlib
import inspect
import re

import pytest

import mlti_jax
from tests.support.import_graph import ROOT, modules

FAMILIES = [
    name for name in mlti_jax.__all__ if inspect.ismodule(getattr(mlti_jax, name))
]
NAMES = [
    f"mlti_jax.{family}.{name}"
    for family in FAMILIES
    for name in getattr(getattr(mlti_jax, family), "__all__", ())
]
PUBLIC_MODULES = {
    name: path
    for name, path in modules("mlti_jax").items()
    if not any(part.startswith("_") for part in name.split("."))
}


def resolve(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def entries() -> list[str]:
    """What the pages of the API reference document."""
    text = "\n".join(
        path.read_text() for path in sorted((ROOT / "docs" / "api").glob("*.md"))
    )
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_list_their_exports(family):
    exports = getattr(mlti_jax, family).__all__
    assert exports
    assert len(exports) == len(set(exports))


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_docstrings(name):
    thing = resolve(name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return  # constants and type aliases
    docstring = inspect.getdoc(thing)
    assert docstring
    # Dataclasses and named tuples generate `Name(field, ...)` if they have none.
    assert not docstring.startswith(f"{thing.__name__}(")


def test_high_level_functions_are_exported_twice():
    for name in ("compare", "fit", "load", "select"):
        assert getattr(mlti_jax, name) is getattr(mlti_jax.api, name)


def test_reference_has_every_public_name_once():
    documented = [name for name in entries() if not inspect.ismodule(resolve(name))]
    assert sorted(documented) == sorted(NAMES)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_modules_define_no_other_public_names(name):
    exports = set(getattr(importlib.import_module(name), "__all__", ()))
    assert defined(PUBLIC_MODULES[name].read_text()) - exports - {"__all__"} == set()


def defined(source: str) -> set[str]:
    """The public names that a module defines at its top level, imports excluded."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_defined_names_are_found():
    source = "import a\nB = c = 1\n_d: int = 2\nclass E: ...\ndef f(): ...\n"
    assert defined(source) == {"B", "c", "E", "f"}
