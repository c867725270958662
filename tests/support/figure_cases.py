"""Small configs, results and data for the tests of figures."""

import matplotlib.image
import numpy as np
import pytest

from experiments.configs import rainbow_mnist, tabula_muris
from experiments.figures import task_numbers
from experiments.figures.task_numbers import Panel
from experiments.tables.jobs import Job, Paths
from experiments.tables.results import record
from mlti_jax.data import ClassPool, Splits
from tests.support.table_files import write_run

RAINBOW = next(f for f in task_numbers.FIGURES if f.name == "rainbow_mnist")
MAML, PROTONET = RAINBOW.panels


def assert_drawn(path):
    """Check that an image has the width of a column and is not blank."""
    image = matplotlib.image.imread(path)
    assert image.shape[1] == pytest.approx(5.2 * 200, abs=2)
    assert image.shape[0] > 300
    assert image[..., :3].std() > 0.05


def record_point(tmp_path, panel: Panel, strategy: str, number: int, **options):
    """Record the result of a point of a figure."""
    job = Job(
        panel.run(strategy, number), options.pop("seed", 0), options.pop("steps", 10)
    )
    paths = Paths(tmp_path / "runs")
    checksums = {"train": number, "test": options.pop("test", 7)}
    source = options.pop("source", None)
    write_run(
        paths.work(job),
        job.seed,
        job.steps,
        checksums=checksums,
        source=source,
        **options,
    )
    record(tmp_path / "results", job, paths.work(job))


def small_config(learner="protonet", strategy="mlti", **changes):
    config = rainbow_mnist.get_config(f"learner={learner},strategy={strategy}")
    config.dataset.source = "builtin"
    config.backbone.conv4.filters = 4
    config.update_from_flattened_dict(changes)
    return config


def vectors(validation=False):
    """Return a dataset of binary vectors."""
    rng = np.random.default_rng(0)
    x = (rng.random((3 * 8, 40)) < 0.3).astype(np.float32)
    pool = ClassPool.from_arrays(x, np.repeat(np.arange(3), 8))
    chosen_on = pool if validation else None
    return Splits("bits", "non_label_sharing", pool, chosen_on, pool, "bits")


def vector_config():
    config = tabula_muris.get_config("learner=protonet,strategy=mlti")
    config.backbone.mlp.hidden = (8, 8)
    config.task.update({"ways": 2, "queries": 2})
    config.train.update({"steps": 6, "checkpoint_every": 2})
    config.eval.update({"every": 2, "queries": 2})
    config.eval.update({"num_tasks": 8, "validation_tasks": 8})
    return config


def use_data(monkeypatch, splits):
    monkeypatch.setattr(
        "mlti_jax.training._experiment.data.load", lambda *_, **__: splits
    )
