"""Saved learners: the same bits elsewhere, and one clear error for each damage."""

import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys

import chex
import numpy as np
import pytest

import mlti_jax
from mlti_jax.api import _serialization as serialization
from mlti_jax.data import from_table
from mlti_jax.errors import InputError
from tests.support.api_cases import class_splits, fitted, samples, task

ROOT = pathlib.Path(__file__).parents[2]
SAVED = ["protonet", "maml", "anil_domains", "regression"]


def arrays_file(folder):
    (path,) = folder.glob("arrays-*.npz")
    return path


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def change_manifest(folder, change):
    """Changes the manifest, and its checksum with it."""
    found = manifest(folder)
    del found["sha256"]
    change(found)
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    found["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(found))


def change_arrays(folder, change):
    """Changes the arrays, and the checksum with them."""
    path = arrays_file(folder)
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    change_manifest(folder, lambda m: m["arrays"].update(sha256=digest))


@pytest.mark.slow
@pytest.mark.parametrize("name", SAVED)
def test_a_loaded_learner_is_the_same(name, tmp_path):
    fit = fitted(name)
    fit.save(tmp_path / "model")
    loaded = mlti_jax.load(tmp_path / "model")
    chex.assert_trees_all_equal(loaded.variables, fit.variables)
    assert loaded.facts == fit.facts
    assert loaded.inputs == fit.inputs
    assert loaded.classes == fit.classes
    assert repr(loaded.calibration) == repr(fit.calibration)  # types as well
    assert loaded.config.to_dict() == fit.config.to_dict()
    assert loaded.result == json.loads(json.dumps(fit.result))
    if name == "regression":
        x = samples("x", 6)
        support, query = (x, x[:, 0]), x
    elif name == "anil_domains":
        x = np.concatenate([samples("inactive", 3), samples("active", 3)])
        support, query = (x, np.repeat(["inactive", "active"], 3)), x
    else:
        support, (query, _) = task("abc", 3)
    one, other = fit.adapt(*support), loaded.adapt(*support)
    np.testing.assert_array_equal(one.predict(query), other.predict(query))
    if name != "regression":
        np.testing.assert_array_equal(
            one.predict_proba(query), other.predict_proba(query)
        )


@pytest.mark.slow
def test_a_fresh_process_predicts_the_same_bits(tmp_path):
    fit = fitted("protonet")
    fit.save(tmp_path / "model")
    (x, y), (query, _) = task("abc", 3)
    np.savez(tmp_path / "task.npz", x=x, y=y, query=query)
    script = (
        "import sys, numpy as np, mlti_jax; folder = sys.argv[1];"
        "task = np.load(folder + '/task.npz');"
        "model = mlti_jax.load(folder + '/model').adapt(task['x'], task['y']);"
        "np.savez(folder + '/found.npz', labels=model.predict(task['query']),"
        "         probabilities=model.predict_proba(task['query']))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    model = fit.adapt(x, y)
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_array_equal(found["labels"], model.predict(query))
        np.testing.assert_array_equal(
            found["probabilities"], model.predict_proba(query)
        )


def test_the_files_are_plain(tmp_path):
    """Anyone can read them, without this package and without executing anything."""
    fit = fitted("protonet")
    fit.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert names[1] == "manifest.json"
    with np.load(arrays_file(tmp_path), allow_pickle=False) as file:
        assert all(file[name].dtype == np.float32 for name in file.files)
        kernel = file["params.model.0.kernel"]
    np.testing.assert_array_equal(kernel, fit.variables.params["model"][0]["kernel"])
    found = manifest(tmp_path)
    assert found["format_version"] == 3
    assert found["package_version"] == mlti_jax.__version__
    assert found["inputs"]["leaves"] == [["", [6], "float32"]]
    assert found["calibration"]["temperature"] == fit.temperature
    assert found["result"]["mean"] == fit.result["mean"]
    assert str(ROOT) not in json.dumps(found)


@pytest.mark.slow
def test_saving_replaces_a_learner_and_nothing_else(tmp_path):
    fitted("protonet").save(tmp_path / "model")
    fitted("maml").save(tmp_path / "model")
    assert mlti_jax.load(tmp_path / "model").config.learner.name == "maml"
    arrays_file(tmp_path / "model")  # one only
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        fitted("maml").save(tmp_path / "other")
    with pytest.raises(InputError, match="is a file"):
        fitted("maml").save(tmp_path / "other" / "thesis.tex")


@pytest.mark.slow
def test_a_save_that_is_cut_short_leaves_the_learner_before(tmp_path, monkeypatch):
    fitted("protonet").save(tmp_path)

    def cut_short(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(serialization, "write_json", cut_short)
    with pytest.raises(OSError, match="No space"):
        fitted("maml").save(tmp_path)
    assert mlti_jax.load(tmp_path).config.learner.name == "protonet"
    monkeypatch.undo()
    fitted("maml").save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_loaded_learner_evaluates_tasks_that_it_is_given(tmp_path):
    fit = fitted("protonet")
    fit.save(tmp_path)
    loaded = mlti_jax.load(tmp_path)
    found = loaded.evaluate(class_splits(), num_tasks=20)
    np.testing.assert_array_equal(found.per_task, fit.evaluate(num_tasks=20).per_task)
    with pytest.raises(InputError, match="has no tasks of its own"):
        loaded.evaluate()


@pytest.mark.slow
def test_a_table_is_read_as_in_training_after_loading(tmp_path):
    columns = {f"f{i}": [] for i in range(6)} | {"assay": [], "active": []}
    for assay in range(5):
        for label in ("no", "yes"):
            for row in 100 * samples(f"{assay}{label}", 8):
                for i, value in enumerate(row):
                    columns[f"f{i}"].append(float(value))
                columns["assay"].append(f"assay{assay}")
                columns["active"].append(label)
    from tests.support.api_cases import fit_small

    fit = fit_small(from_table(columns, label="active", task="assay"))
    fit.save(tmp_path)
    loaded = mlti_jax.load(tmp_path)
    assert loaded.inputs.kind == "columns"
    first = {name: values[:16] for name, values in columns.items()}
    model = loaded.adapt(first, first["active"])
    expected = fit.adapt(first, first["active"]).predict_proba(first)
    np.testing.assert_array_equal(model.predict_proba(first), expected)
    shuffled = dict(reversed(first.items()))  # columns are found by name
    np.testing.assert_array_equal(model.predict_proba(shuffled), expected)
    del first["f3"]
    with pytest.raises(InputError, match="no column 'f3'"):
        model.predict(first)


# -------------------------------------------------------------------------- damage


@pytest.fixture
def saved(tmp_path):
    fitted("protonet").save(tmp_path / "model")
    return tmp_path / "model"


def expect(folder, message):
    with pytest.raises(InputError, match=message) as error:
        mlti_jax.load(folder)
    assert "\n" not in str(error.value)


def test_missing_files(saved, tmp_path):
    expect(tmp_path / "nothing", "has no manifest.json")
    arrays_file(saved).unlink()
    expect(saved, "lacks arrays-.*copy the whole directory again")
    (saved / "manifest.json").unlink()
    expect(saved, "has no manifest.json")


@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_truncated_files(saved, keep):
    path = arrays_file(saved)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    expect(saved, "is damaged")
    path.write_bytes(content)
    mlti_jax.load(saved)
    text = (saved / "manifest.json").read_bytes()
    (saved / "manifest.json").write_bytes(text[: int(keep * len(text))])
    expect(saved, "is damaged")


def test_foreign_files(saved):
    arrays_file(saved).write_bytes(b"PK\x03\x04 not what it seems")
    expect(saved, "is damaged")
    (saved / "manifest.json").write_text('{"format": "another"}')
    expect(saved, "not a manifest of mlti_jax")
    (saved / "manifest.json").write_text("[1, 2]")
    expect(saved, "expected a dictionary, found a list")
    (saved / "manifest.json").write_bytes(b"\xff\xfe\x00")
    expect(saved, "is damaged")


def test_other_versions(saved):
    change_manifest(saved, lambda m: m.update(format_version=4, package_version="9.0"))
    expect(saved, "saved in format 4 by mlti_jax 9.0.*update mlti_jax")
    change_manifest(saved, lambda m: m.update(format_version=0))
    expect(saved, "format_version is 0")


EDITS = {
    "classes": lambda m: m.update(classes=["x", *m["classes"][1:]]),
    "label_names": lambda m: m["inputs"].update(label_names=["x", "y"]),
    "scale": lambda m: m["inputs"].update(mean=[0.0] * 6, scale=[2.0] * 6),
    "result": lambda m: m["result"].update(mean=0.99),
    "temperature": lambda m: m["calibration"].update(temperature=2.0),
    "seal": lambda m: m.pop("sha256"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_manifest_is_refused(saved, edit):
    found = manifest(saved)
    EDITS[edit](found)
    (saved / "manifest.json").write_text(json.dumps(found))
    expect(saved, "manifest.json is damaged .its content does not match its checksum")


def test_the_first_format_has_no_checksum_of_the_manifest(saved):
    found = manifest(saved)
    del found["sha256"]
    found["format_version"] = 1
    (saved / "manifest.json").write_text(json.dumps(found))
    mlti_jax.load(saved)


def test_what_an_interrupted_save_leaves_is_written_over(saved):
    learner = mlti_jax.load(saved)
    (saved / "manifest.json").unlink()
    (saved / ".0123456789abcdef.tmp").write_text("half")
    learner.save(saved)
    mlti_jax.load(saved)


@pytest.mark.parametrize(
    "field",
    [
        *("format_version", "package_version", "arrays", "facts", "classes"),
        *("inputs", "calibration", "result", "config"),
    ],
)
def test_every_field_is_checked(saved, field):
    change_manifest(saved, lambda m: m.update({field: 0.5}))
    expect(saved, f"{field} is '0.5'; expected")
    change_manifest(saved, lambda m: m.pop(field))
    expect(saved, f"{field} is missing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["facts"].update(setting="none"), "setting is 'none'"),
        (lambda m: m["facts"].update(outputs=0), "facts are"),
        (lambda m: m["facts"].update(outputs=True), "outputs is 'True'"),
        (lambda m: m["facts"].pop("base_groups"), "base_groups is missing"),
        (lambda m: m.update(classes=[1]), "classes is not a list of names"),
        (lambda m: m["calibration"].update(temperature=-1.0), "temperature is -1"),
        (lambda m: m["calibration"].update(temperature="hot"), "temperature is 'hot'"),
        (lambda m: m["calibration"].pop("tasks"), "tasks is missing"),
        (lambda m: m["inputs"].update(kind="telepathy"), "inputs cannot be used"),
        (
            lambda m: m["inputs"].update(leaves=[["", [7], "float32"]]),
            "expected float32",
        ),
        (
            lambda m: m["inputs"].update(leaves=[["", [6], "object"]]),
            "inputs cannot be",
        ),
        (lambda m: m["inputs"].update(leaves=[["", [-6], "float32"]]), "inputs cannot"),
        (lambda m: m["inputs"].update(leaves=[]), "inputs cannot be used"),
        (lambda m: m["inputs"].update(leaves=3), "inputs cannot be used"),
        (lambda m: m["inputs"].update(mean=[0.0] * 6), "inputs cannot be used"),
        (
            lambda m: m["inputs"].update(mean=[0.0] * 6, scale=[0.0] * 6),
            r"scale is 0\.0; expected positive",
        ),
        (lambda m: m["inputs"].update(columns=["a"]), "inputs cannot be used"),
        (
            lambda m: m["config"]["backbone"]["mlp"].update(hidden=[8] * 20_000),
            "20000 layers is too deep",
        ),
        (lambda m: m["inputs"].update(kind="smiles"), "inputs cannot be used"),
        (
            lambda m: m["config"]["backbone"]["mlp"].update(hidden=["a"]),
            "does not define",
        ),
        (lambda m: m["config"].pop("dataset"), "config.dataset is missing"),
        (lambda m: m["config"]["train"].update(steps="x"), "config cannot be used"),
        (lambda m: m["config"]["train"].update(magic=1), "config cannot be used"),
        (
            lambda m: m["config"]["learner"].update(name="x"),
            "does not define a learner",
        ),
        (lambda m: m["config"]["learner"].update(name="maml"), "it belongs to another"),
        (lambda m: m["config"]["backbone"]["mlp"].update(hidden=[8, 9]), "expected"),
        (lambda m: m["config"]["task"].update(ways=None), "config cannot be used"),
        (lambda m: m["result"].pop("mean"), "mean is missing"),
        (lambda m: m["arrays"].update(file="../x.npz"), "lacks ../x.npz"),
        (lambda m: m["arrays"].update(file=""), "lacks"),
        (lambda m: m["arrays"].update(sha256="0"), "is damaged"),
    ],
)
def test_wrong_values_in_the_manifest(saved, change, message):
    change_manifest(saved, change)
    expect(saved, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("params.model.0.kernel"), "lacks params.model.0.kernel"),
        (lambda a: a.update(extra=np.zeros(3)), "has the unexpected extra"),
        (
            lambda a: a.update({"params.model.0.kernel": np.zeros((6, 9), np.float32)}),
            r"is float32\[6, 9\], expected float32\[6, 8\]",
        ),
        (
            lambda a: a.update({"params.model.0.kernel": np.zeros((6, 8))}),
            "is float64",
        ),
        (
            lambda a: a.update(
                {"params.model.0.kernel": np.full((6, 8), np.nan, np.float32)}
            ),
            "has NaN",
        ),
        (
            lambda a: a.update({"params.model.0.kernel": np.array([{}], object)}),
            "is damaged",  # an array of objects would be a pickle
        ),
        (
            lambda a: a.update({"params.model.0.kernel": np.zeros(10**6, np.float32)}),
            "is damaged",  # far larger than it can be
        ),
    ],
)
def test_wrong_arrays(saved, change, message):
    change_arrays(saved, change)
    expect(saved, message)


def test_a_pickle_is_never_executed(saved, tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    def change(arrays):
        arrays["params.model.0.kernel"] = np.array([Harmful()], object)

    change_arrays(saved, change)
    (tmp_path / "executed").rmdir() if (tmp_path / "executed").exists() else None
    expect(saved, "is damaged")
    assert not (tmp_path / "executed").exists()
