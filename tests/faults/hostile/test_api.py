"""Arguments of `fit`, `compare`, `load` and learners that must be refused."""

from __future__ import annotations

import numpy as np
import pytest

import mlti_jax
from mlti_jax import data
from tests.support.api_cases import class_splits, domain_splits, regression_splits
from tests.support.cli import ROOT
from tests.support.hostile import (
    CLASSES,
    FEATURES,
    MOST,
    Refused,
    X,
    Y,
    check_raises,
    file_in,
    fit_small,
    params,
)

# ------------------------------------------------------------- fit, compare and load


def fit(id, message, *args, tasks=None, **options):
    """A row of `fit`; the data are three small tasks with two classes."""
    given = CLASSES if tasks is None else tasks
    return Refused(id, message, lambda tmp: fit_small(given, *args, **options))


def override(field, value, message, *args):
    return fit(f"{field}={value!r:.20}", message, *args, overrides={field: value})


def compare(id, message, strategies):
    return Refused(
        id, message, lambda tmp: mlti_jax.compare(CLASSES, strategies, steps=1)
    )


FITS = [
    fit("steps-zero", "train.steps is 0; expected an integer from 1", steps=0),
    fit("strategy-unknown", "unknown strategy 'mlt'", None, "mlt"),
    fit("steps-negative", "train.steps is -1; expected an integer from 1", steps=-1),
    fit("steps-text", "train.steps is 'many'", steps="many"),
    fit("steps-float", "train.steps is 1.5", steps=1.5),
    fit("steps-huge", "train.steps is 10*; expected an integer from 1", steps=10**30),
    fit("seed-negative", "seed must be from 0", seed=-1),
    fit("seed-huge", "seed must be at most", seed=2**32),
    fit("seed-none", "seed", overrides={"seed": None}),
    fit("ways-large", "ways", ways=99),
    fit("ways-one", "ways", ways=1),
    fit("ways-zero", "ways", ways=0),
    fit("ways-text", "task.ways is 'two'", ways="two"),
    fit("shots-large", "shots=99", shots=99),
    fit("shots-zero", "shots", shots=0),
    fit("shots-negative", "shots", shots=-1),
    fit("learner-unknown", "unknown learner 'mml'", "mml"),
    fit("learner-number", "learner.name is 3", 3),
    fit("strategy-number", "strategy.name is 3", None, 3),
    fit("strategy-empty", "strategy is empty", None, ""),
    fit("strategy-plus", "strategy 'mlti.' has an empty member", None, "mlti+"),
    fit("strategy-twice", "mlti.*twice", None, "mlti+mlti"),
    fit(
        "strategy-not-applicable",
        "taml does not apply to.*protonet",
        "protonet",
        "taml",
    ),
    fit("tasks-text", "tasks is of type str", tasks="none"),
    fit("tasks-empty", "tasks is empty", tasks={}),
    fit("tasks-list", "tasks is of type list", tasks=[X, Y]),
    fit("tasks-one", "leaves|class", tasks={"a": X}),
    fit(
        "tasks-without-test",
        "no test tasks",
        tasks=data.from_arrays(CLASSES, test=None),
    ),
    Refused(
        "overrides-list",
        "overrides",
        lambda tmp: mlti_jax.fit(CLASSES, steps=1, overrides=[("seed", 1)]),
    ),
    override("train.stepz", 1, "unknown config field 'train.stepz'.*'train.steps'"),
    override("learning_rate", 1.0, "unknown config field 'learning_rate'.*train.learn"),
    override("dataset.path", "x", "unknown config field 'dataset.path'"),
    override("train", 1, "unknown config field 'train'"),
    override("train.learning_rate", "fast", "train.learning_rate is 'fast'"),
    override("train.learning_rate", None, "train.learning_rate is None"),
    override("train.learning_rate", float("nan"), "learning_rate must be finite"),
    override("backbone.name", "vgg", "unknown backbone 'vgg'"),
    override("backbone.name", "conv4", "conv4|images"),
    override("backbone.mlp.hidden", ("a",), "hidden"),
    override("backbone.mlp.hidden", (), "hidden"),
    override("backbone.mlp.hidden", 16, "backbone.mlp.hidden is 16"),
    override("backbone.mlp.hidden", (MOST,), "needs at least .* GB of memory"),
    override("backbone.mlp.hidden", (8,) * 20_000, "20000 layers is too deep"),
    override("interpolation.layers", (7,), "layer"),
    override("train.meta_batch_size", 10**12, "meta_batch_size"),
    override("learner.maml.steps", 10**9, "steps of maml is 1000000000", "maml"),
    fit(
        "regression-protonet",
        "protonet",
        "protonet",
        tasks=regression_splits(),
    ),
    fit("domains-ways", "ways", tasks=domain_splits(), ways=3),
    fit("classes-ways", "ways", tasks=class_splits(), ways=5),
    Refused(
        "workdir-file",
        "not a directory",
        lambda tmp: (file_in("x")(tmp), fit_small(CLASSES, workdir=tmp / "x")),
    ),
    compare("compare-one", "strategies", ["mlti"]),
    compare("compare-none", "strategies", []),
    compare("compare-twice", "twice|strategies", ["mlti", "mlti"]),
    compare("compare-text", "strategies", "mlti"),
    compare("compare-unknown", "unknown strategy 'mlt'", ["vanilla", "mlt"]),
    Refused(
        "load-nowhere", "has no manifest.json", lambda tmp: mlti_jax.load(tmp / "no")
    ),
    Refused("load-empty", "has no manifest.json", lambda tmp: mlti_jax.load(tmp)),
    Refused(
        "load-device", "has no manifest.json", lambda tmp: mlti_jax.load("/dev/null")
    ),
]


@pytest.mark.parametrize("row", params(FITS, quick=2))
def test_fit(row, tmp_path):
    check_raises(row, tmp_path)


# Functions of the fitted learner and the folder of a row.
TABLE_X = {f"f{i}": X[:12, i] for i in range(FEATURES)}
LABELS = ["no", "yes"] * 6
LEARNED = [
    Refused(
        "adapt-one-class", "only one class", lambda fit: fit.adapt(X[:4], ["a"] * 4)
    ),
    Refused("adapt-nothing", "support set", lambda fit: fit.adapt(X[:0], [])),
    Refused("adapt-none", "support set", lambda fit: fit.adapt(None, None)),
    Refused(
        "adapt-short", "support set.*one label", lambda fit: fit.adapt(X[:4], [0, 1])
    ),
    Refused(
        "adapt-nan", "support set.*NaN", lambda fit: fit.adapt(X[:2] * np.nan, [0, 1])
    ),
    Refused(
        "adapt-1e35", "support set.*row 0", lambda fit: fit.adapt(X[:2] * 1e35, [0, 1])
    ),
    Refused(
        "adapt-ragged",
        "support set",
        lambda fit: fit.adapt([[1.0], [1.0, 2.0]], [0, 1]),
    ),
    Refused("adapt-text", "support set", lambda fit: fit.adapt("no file", [0, 1])),
    Refused(
        "predict-width",
        "queries",
        lambda fit: fit.adapt(X[:12], LABELS).predict(X[:, :2]),
    ),
    Refused(
        "predict-nothing",
        "queries",
        lambda fit: fit.adapt(X[:12], LABELS).predict(X[:0]),
    ),
    Refused(
        "predict-masked",
        "queries.*masked",
        lambda fit: fit.adapt(X[:12], LABELS).predict(np.ma.masked_less(X, 0)),
    ),
    Refused(
        "predict-column",
        "queries.*'f0'",
        lambda fit: fit.adapt(X[:12], LABELS).predict({**TABLE_X, "f0": ["a"] * 12}),
    ),
    Refused("evaluate-nothing", "has no tasks of its own", lambda fit: fit.evaluate()),
    Refused(
        "evaluate-one", "num_tasks is 1", lambda fit: fit.evaluate(domain_splits(), 1)
    ),
    Refused(
        "evaluate-many", "num_tasks", lambda fit: fit.evaluate(domain_splits(), 10**12)
    ),
    Refused(
        "evaluate-shape", "trained on", lambda fit: fit.evaluate(domain_splits(), 2)
    ),
    Refused("evaluate-dict", "tasks is of type dict", lambda fit: fit.evaluate({}, 2)),
    Refused("save-file", "is a file", lambda fit: fit.save(__file__)),
    Refused("save-elsewhere", "holds other files", lambda fit: fit.save(ROOT)),
]


@pytest.mark.parametrize("row", params(LEARNED))
def test_learner(row, model):
    check_raises(row, mlti_jax.load(model))
