"""The command `experiments.predict`."""

import csv
import re

import numpy as np
import pytest
from PIL import Image

from experiments import predict
from mlti_jax import data
from mlti_jax.api._fit import choose_config
from mlti_jax.data._own import dataset as own_data
from mlti_jax.training import build, train_and_evaluate
from tests.support.api_cases import SMALL, fit_small, fitted, samples, task
from tests.support.cli import command


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    run = command(predict, monkeypatch, capsys)

    def call(*args, **arguments):
        given = {"output": tmp_path / "out.csv", **arguments}
        argv = [f"--{k}={v}" for k, v in given.items() if v is not None]
        return run(*argv, *args)

    return call


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path, columns):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def table(tasks, per_class=8, **extra):
    """Returns columns of features, label and task."""
    columns = {f"f{i}": [] for i in range(6)} | {"assay": [], "active": []}
    for name in tasks:
        for label in ("no", "yes"):
            for row in samples(f"{name}{label}", per_class):
                for i, value in enumerate(row):
                    columns[f"f{i}"].append(float(value))
                columns["assay"].append(name)
                columns["active"].append(label)
    return {**columns, **extra}


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    names = [f"assay{i}" for i in range(5)]
    fit = fit_small(data.from_table(table(names), label="active", task="assay"))
    fit.save(folder / "model")
    return fit, folder / "model"


def test_tables(cli, table_model, tmp_path):
    fit, model = table_model
    support, query = table(["new"], 4), table(["newer"], 3)
    query["compound"] = [f"c{i}" for i in range(6)]
    write_table(tmp_path / "support.csv", support)
    write_table(tmp_path / "query.csv", query)
    code, printed = cli(
        model=model,
        support=tmp_path / "support.csv",
        query=tmp_path / "query.csv",
        label="active",
    )
    assert code == 0, printed.err
    assert "6 predictions" in printed.out
    rows = read(tmp_path / "out.csv")
    assert list(rows[0]) == [
        *("assay", "active", "compound", "prediction"),
        *("probability_no", "probability_yes"),
    ]
    assert [row["compound"] for row in rows] == query["compound"]
    model = fit.adapt(support, support["active"])
    assert [row["prediction"] for row in rows] == model.predict(query).tolist()
    found = [[float(row[f"probability_{c}"]) for c in ("no", "yes")] for row in rows]
    np.testing.assert_array_equal(np.float32(found), model.predict_proba(query))


def test_arrays(cli, tmp_path):
    fit = fitted("protonet")
    fit.save(tmp_path / "model")
    (x, y), (query, _) = task("abc", 3)
    np.savez(tmp_path / "support.npz", x=x, y=y)
    np.savez(tmp_path / "query.npz", x=query)
    code, printed = cli(
        model=tmp_path / "model",
        support=tmp_path / "support.npz",
        query=tmp_path / "query.npz",
    )
    assert code == 0, printed.err
    rows = read(tmp_path / "out.csv")
    assert [row["row"] for row in rows] == [str(i) for i in range(len(query))]
    expected = fit.adapt(x, y).predict(query).tolist()
    assert [row["prediction"] for row in rows] == expected


def test_learner_of_arrays_accepts_tables(cli, tmp_path):
    fitted("protonet").save(tmp_path / "model")
    (x, y), (query, _) = task("abc", 3)
    columns = {f"gene{i}": x[:, i].tolist() for i in range(6)}
    write_table(tmp_path / "support.csv", {**columns, "label": y.tolist()})
    write_table(
        tmp_path / "query.csv", {f"gene{i}": query[:, i].tolist() for i in range(6)}
    )
    code, printed = cli(
        model=tmp_path / "model",
        support=tmp_path / "support.csv",
        query=tmp_path / "query.csv",
    )
    assert code == 0, printed.err
    expected = fitted("protonet").adapt(x, y).predict(query).tolist()
    assert [row["prediction"] for row in read(tmp_path / "out.csv")] == expected


def test_targets(cli, tmp_path):
    fit = fitted("regression")
    fit.save(tmp_path / "model")
    x = samples("x", 8)
    np.savez(tmp_path / "support.npz", x=x, y=x[:, 0])
    np.savez(tmp_path / "query.npz", x=x[:3])
    code, printed = cli(
        model=tmp_path / "model",
        support=tmp_path / "support.npz",
        query=tmp_path / "query.npz",
    )
    assert code == 0, printed.err
    rows = read(tmp_path / "out.csv")
    assert list(rows[0]) == ["row", "prediction"]
    values = fit.adapt(x, x[:, 0]).predict(x[:3])
    np.testing.assert_allclose([float(r["prediction"]) for r in rows], values)


@pytest.mark.slow
def test_folders_of_images(cli, tmp_path):
    rng = np.random.default_rng(0)

    def write(folder, number, brightness):
        folder.mkdir(parents=True)
        for i in range(number):
            pixels = np.clip(rng.normal(brightness, 20, (12, 12)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")

    for i in range(8):
        write(tmp_path / "train" / f"class{i}", 8, 30 * i)
    fit = fit_small(
        data.from_folder(tmp_path / "train"),
        ways=2,
        shots=2,
        **{"backbone.conv4.filters": 4},
    )
    fit.save(tmp_path / "model")
    write(tmp_path / "support" / "dark", 3, 20)
    write(tmp_path / "support" / "light", 2, 220)
    write(tmp_path / "query", 4, 220)
    code, printed = cli(
        model=tmp_path / "model", support=tmp_path / "support", query=tmp_path / "query"
    )
    assert code == 0, printed.err
    rows = read(tmp_path / "out.csv")
    assert list(rows[0]) == [
        "file",
        "prediction",
        "probability_dark",
        "probability_light",
    ]
    assert [row["file"] for row in rows] == [f"{i}.png" for i in range(4)]
    write(tmp_path / "query" / "inner", 1, 0)
    code, printed = cli(
        model=tmp_path / "model", support=tmp_path / "support", query=tmp_path / "query"
    )
    assert code == 2
    assert "expects only images" in printed.err
    code, printed = cli(
        model=tmp_path / "model",
        support=tmp_path / "query" / "inner",
        query=tmp_path / "query",
    )
    assert code == 2
    assert "one folder of images per class" in printed.err


@pytest.mark.slow
def test_molecules(cli, tmp_path):
    pytest.importorskip("rdkit")
    chains = [f"{'C' * n}{end}" for n in range(1, 9) for end in ("O", "N")]
    smiles = {"smiles": chains * 3, "acid": [0, 1] * 24}
    smiles["assay"] = np.repeat(["one", "two", "three"], 16).tolist()
    fit = fit_small(
        data.from_table(smiles, label="acid", task="assay", smiles="smiles"), shots=2
    )
    fit.save(tmp_path / "model")
    support = {"smiles": ["CCO", "CCN", "CCCN"], "acid": [0, 1, 1]}
    write_table(tmp_path / "support.csv", support)
    write_table(tmp_path / "query.csv", {"name": ["a", "b"], "smiles": ["CO", "CN"]})
    files = {"support": tmp_path / "support.csv", "query": tmp_path / "query.csv"}
    code, printed = cli(model=tmp_path / "model", label="acid", **files)
    assert code == 0, printed.err
    rows = read(tmp_path / "out.csv")
    assert [row["name"] for row in rows] == ["a", "b"]
    assert [row["smiles"] for row in rows] == ["CO", "CN"]
    expected = fit.adapt(support, support["acid"]).predict(["CO", "CN"])
    assert [int(row["prediction"]) for row in rows] == expected.tolist()
    write_table(tmp_path / "query.csv", {"smiles": ["not a molecule"]})
    code, printed = cli(model=tmp_path / "model", label="acid", **files)
    assert code == 2
    assert "RDKit can't read the molecule 'not a molecule'" in printed.err


def test_model_from_a_finished_run(cli, tmp_path):
    names = [f"assay{i}" for i in range(5)]
    write_table(tmp_path / "assays.csv", table(names))
    options = {"path": str(tmp_path / "assays.csv"), "label": "active", "task": "assay"}
    splits = own_data.load(**options)
    config = choose_config(
        splits, {"strategy.name": "mlti", "train.steps": 10, "task.shots": 3}, SMALL
    )
    with config.unlocked():
        config.dataset = {"name": "own_data", **options}
    train_and_evaluate(build(config), tmp_path / "run")
    write_table(tmp_path / "support.csv", table(["new"], 4))
    write_table(tmp_path / "query.csv", table(["newer"], 3))
    code, printed = cli(
        model=tmp_path / "run",
        support=tmp_path / "support.csv",
        query=tmp_path / "query.csv",
        label="active",
    )
    assert code == 0, printed.err
    assert "probabilities are not calibrated" in printed.out
    assert len(read(tmp_path / "out.csv")) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "--model is missing"),
        ({"query": None}, "--query is missing"),
        ({"model": "nowhere"}, "has no manifest.json"),
        ({"support": "nowhere.csv"}, "--support=nowhere.csv: no such file"),
        ({"label": "activ"}, "no column 'activ' .did you mean 'active'"),
        ({"label": "assay"}, "only one class"),
        ({"output": "no/such/folder.csv"}, "does not exist"),
        ({"nonsense": 1}, "unknown flag --nonsense"),
    ],
)
def test_invalid_input_is_reported_in_one_message(
    cli, table_model, tmp_path, change, message
):
    write_table(tmp_path / "support.csv", table(["new"], 4))
    write_table(tmp_path / "query.csv", table(["newer"], 3))
    given = {
        "model": table_model[1],
        "support": tmp_path / "support.csv",
        "query": tmp_path / "query.csv",
        "label": "active",
    }
    code, printed = cli(**{**given, **change})
    assert code == 2
    assert printed.err.count("error:") == 1
    assert "Traceback" not in printed.err
    assert re.search(message, printed.err), printed.err


def test_invalid_files(cli, table_model, tmp_path):
    good = table(["new"], 4)
    write_table(tmp_path / "query.csv", good)
    files = {
        "model": table_model[1],
        "query": tmp_path / "query.csv",
        "label": "active",
    }
    lacking = {name: values for name, values in good.items() if name != "f2"}
    write_table(tmp_path / "lacking.csv", lacking)
    code, printed = cli(**files, support=tmp_path / "lacking.csv")
    assert code == 2
    assert "no column 'f2'" in printed.err
    write_table(tmp_path / "named.csv", {**good, "prediction": good["active"]})
    write_table(tmp_path / "support.csv", good)
    code, printed = cli(
        **{**files, "query": tmp_path / "named.csv"}, support=tmp_path / "support.csv"
    )
    assert code == 2
    assert "column 'prediction'" in printed.err
    assert not (tmp_path / "out.csv").exists()
    (tmp_path / "broken.npz").write_bytes(b"no arrays")
    code, printed = cli(**files, support=tmp_path / "broken.npz")
    assert code == 2
    assert "can't be read" in printed.err


def test_help_has_examples(cli):
    code, printed = cli("--help")
    assert code == 0
    assert "--support=support.csv --label=active" in printed.out
