"""Without optional packages: the package imports, and errors name the missing extra."""

import json
import pathlib
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
OPTIONAL = (
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
    "safetensors",
    "sklearn",
    "submitit",
    "tensorflow_datasets",
    "tokenizers",
    "torch",
    "wordllama",
)
# What is called, the package that it misses first, and the extra that has it.
CASES = {
    "data.load('nci')": ("tensorflow_datasets", "data"),
    "data.load('rainbow_mnist')": ("tensorflow_datasets", "data"),
    "data.from_table({'y': [0, 1], 't': [0, 1]}, label='y', task='t')": (
        "pandas",
        "own",
    ),
    "data.from_folder('images', size=8)": ("PIL", "own"),
    "backbones.word_mean()": ("safetensors", "text"),
    "plotting.learning_curves({'run': 'run'})": ("matplotlib", "plot"),
    "executors.Local(None, at_once=1)": ("submitit", "cluster"),
    "report.write_page(report.Page('title', ()), 'page.html')": ("jinja2", "plot"),
}
PROGRAM = f"""
import importlib.abc
import json
import sys


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
from experiments.sweeps import executors
from mlti_jax import backbones, data, plotting, report

messages = {{}}
for call in {list(CASES)!r}:
    try:
        eval(call)
        messages[call] = "no error"
    except Exception as error:
        messages[call] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(messages))
"""


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("working_directory")
    for name in ("fern", "moss", "oak"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(4):
            (folder / "images" / name / f"{i}.png").touch()
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text(
        '{"step": 1, "split": "train", "accuracy": 0.5}\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("call", CASES)
def test_missing_packages_name_their_extra(messages, call):
    package, extra = CASES[call]
    assert messages[call].startswith("InputError")
    assert repr(package) in messages[call]
    assert f"pip install -e '.[{extra}]'" in messages[call]


def test_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for _, extra in CASES.values():
        assert extra in project["optional-dependencies"]
