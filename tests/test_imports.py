"""What may import what: no cycles, one direction, and a light `import mlti_jax`."""

import subprocess
import sys

import pytest

from tests.support.import_graph import ROOT, cycles, import_graph

# Bottom to top. A module imports its own family and families on lines above its own.
LAYERS = (
    ("_version", "errors"),
    ("_internal",),
    ("types",),
    ("interpolation", "ops", "parallel"),
    ("augmentation", "backbones", "data", "theory"),
    ("learners",),
    ("strategies",),
    ("training",),
    ("plotting",),
    ("report",),
    ("api",),
    ("",),  # mlti_jax itself
)
FAMILIES = sorted(
    name for line in LAYERS for name in line if name and not name.startswith("_")
)
HEAVY = (
    "PIL",
    "anndata",
    "array_record",
    "grain",
    "jinja2",
    "matplotlib",
    "mlxtend",
    "pandas",
    "pyarrow",
    "rdkit",
    "sklearn",
    "submitit",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "torch",
)

GRAPH = import_graph("mlti_jax", "experiments")


def edges(start: str, stop: str) -> list[str]:
    """Imports from the modules of `start` into those of `stop`."""

    def inside(name: str, package: str) -> bool:
        return f"{name}.".startswith(f"{package}.")

    return [
        f"{name} -> {target}"
        for name, targets in GRAPH.items()
        for target in targets
        if inside(name, start) and inside(target, stop)
    ]


def family(module: str) -> str:
    return (module.split(".") + [""])[1]


def test_every_module_is_in_a_layer():
    known = {name for line in LAYERS for name in line}
    found = {family(name) for name in GRAPH if name.split(".")[0] == "mlti_jax"}
    assert found == known


def test_imports_have_no_cycles():
    assert cycles(GRAPH) == []


def test_imports_go_down_the_layers():
    level = {name: i for i, line in enumerate(LAYERS) for name in line}
    upward = [
        f"{name} -> {target}"
        for name, targets in GRAPH.items()
        for target in targets
        if name.split(".")[0] == target.split(".")[0] == "mlti_jax"
        and family(name) != family(target)
        and level[family(target)] >= level[family(name)]
    ]
    assert upward == []


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        ("mlti_jax", "experiments"),
        ("mlti_jax.learners", "mlti_jax.strategies"),
        ("mlti_jax.data", "mlti_jax.learners"),
        ("mlti_jax.data", "mlti_jax.strategies"),
        ("mlti_jax.data", "mlti_jax.training"),
        ("mlti_jax.data", "mlti_jax.api"),
    ],
)
def test_one_direction(start, stop):
    assert edges(start, stop) == []


def test_graph_sees_all_kinds_of_imports():
    # The checks above hold trivially for a graph without edges.
    assert "mlti_jax.types" in GRAPH["mlti_jax.interpolation"]
    assert "mlti_jax.api" in GRAPH["mlti_jax"]
    assert cycles({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b")}) == [
        ["b", "c"]
    ]


def test_import_is_light_and_complete():
    program = f"""
import sys
import mlti_jax

for name in {FAMILIES!r}:
    assert hasattr(mlti_jax, name), name
print(*sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
