"""The notebook runs from start to end, with few steps and without `experiments`."""

import json
import os
import pathlib
import re

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "colab.ipynb"
FEWER = {"STEPS": 4, "PAPER_STEPS": 2, "TEST_TASKS": 6, "VALIDATION_TASKS": 4}


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def with_fewer(source: str) -> str:
    """Replace the values in the parameters cell, each of which occurs once."""
    for name, value in FEWER.items():
        source, found = re.subn(rf"(?m)^{name} = \d+", f"{name} = {value}", source)
        assert found == 1, name
    return source


def printed(notebook) -> str:
    return "".join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )


def test_is_valid_and_has_no_outputs(notebook):
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.slow
def test_runs_from_start_to_end(notebook, tmp_path, monkeypatch):
    # Only the package can be imported, as after an install.
    (tmp_path / "mlti_jax").symlink_to(ROOT / "mlti_jax")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    (parameters,) = tagged
    parameters.source = with_fewer(parameters.source)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()
    text = printed(notebook)
    assert "uses the CPU" in text
    assert "% correct" in text
    assert "own data: " in text
    assert text.count("on the same 6 test tasks") == 2  # the paper's experiment too
    figures = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(figures) == 3
    for name in ("tasks.png", "learning_curves.png", "model/manifest.json"):
        assert (tmp_path / "mlti_colab" / name).is_file()
    for name in ("vanilla", "mlti"):
        config = json.loads(
            (tmp_path / "mlti_colab_paper" / name / "config.json").read_text()
        )
        assert config["learner"]["name"] == "maml"
        assert config["task"]["queries"] == 1
        assert config["train"]["precision"] == "default"
