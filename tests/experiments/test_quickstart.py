"""The quickstart, at a size for tests."""

import json

import matplotlib.image
import numpy as np
import pytest

from experiments.configs import quickstart
from experiments.side_by_side import run_side_by_side
from mlti_jax.training._evaluation import mean_and_interval


@pytest.mark.slow
def test_quickstart_compares_on_the_same_tasks_and_draws(tmp_path, capsys):
    config = quickstart.get_config()
    config.backbone.conv4.filters = 4
    config.train.update({"steps": 20, "log_every": 5})
    config.eval.update({"every": 10, "num_tasks": 10, "validation_tasks": 5})
    comparison = run_side_by_side(config, str(tmp_path))
    assert json.loads((tmp_path / "comparison.json").read_text()) == comparison
    values = {
        name: np.array(result["per_task"])
        for name, result in comparison["results"].items()
    }
    assert sorted(values) == ["mlti", "vanilla"]
    mean, ci95 = mean_and_interval(values["mlti"] - values["vanilla"])
    assert comparison["difference"]["mlti"] == pytest.approx(
        {"mean": mean, "ci95": ci95}
    )
    printed = capsys.readouterr()
    assert "against vanilla, paired" in printed.out
    assert "5,000 MNIST images" in printed.err
    for name in ("tasks.png", "learning_curves.png"):
        plot = matplotlib.image.imread(tmp_path / name)
        assert plot[..., :3].std() > 0.05  # something is drawn
