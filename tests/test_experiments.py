"""The quickstart and the benchmark, at a size for tests."""

import dataclasses
import json

import jax
import matplotlib.image
import numpy as np
import pytest
from conftest import init, make_task

from experiments import benchmark
from experiments.compare import compare
from experiments.configs import quickstart
from mlti_jax.training import mean_and_interval


@pytest.mark.slow
def test_quickstart_compares_on_the_same_tasks_and_draws(tmp_path, capsys):
    config = quickstart.get_config()
    config.backbone.conv4.filters = 4
    config.train.update({"steps": 20, "log_every": 5})
    config.eval.update({"every": 10, "num_tasks": 10, "validation_tasks": 5})
    comparison = compare(config, str(tmp_path))
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
        picture = matplotlib.image.imread(tmp_path / name)
        assert picture[..., :3].std() > 0.05  # something is drawn


def test_every_case_of_the_benchmark_has_a_pool_that_fits():
    for case in benchmark.ALL_CASES.values():
        x, index = benchmark.make_pool(case)
        assert x.shape[1:] == case.image_shape
        assert index.max() == len(x) - 1
        assert index.shape[-2] >= case.ways
        assert index.shape[-1] >= case.shots + case.queries


@pytest.mark.slow
def test_benchmark_measures_and_prints():
    result = benchmark.measure("protonet_bio", rounds=2, seconds=0.01)
    assert 0 < result["jax"]["min_ms"] <= result["jax"]["median_ms"]
    assert "protonet_bio" in benchmark.table_row(result)
    json.dumps(result)


def to_torch(torch, params):
    """Our parameters in PyTorch's layout, as `torch_steps` keeps them."""
    layers = []
    for layer in params:
        kernel = torch.from_numpy(np.array(layer["kernel"]))
        kernel = kernel.permute(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T
        norm = layer.get("norm")
        rest = [layer["bias"]] if norm is None else [norm["scale"], norm["offset"]]
        layers.append([kernel.clone(), *(torch.from_numpy(np.array(r)) for r in rest)])
        for tensor in layers[-1]:
            tensor.requires_grad_()
    return layers


@pytest.mark.parity
@pytest.mark.parametrize("name", ["maml_28", "maml_bio", "protonet_28", "protonet_bio"])
def test_both_sides_of_the_benchmark_do_the_same_work(name):
    torch = pytest.importorskip("torch")
    from experiments import torch_steps

    small = {"filters": 8, "hidden": (50, 40), "inner_steps": 3}
    case = dataclasses.replace(benchmark.ALL_CASES[name], interpolation=None, **small)
    learner = benchmark.make_learner(case)
    rng = np.random.default_rng(0)
    tasks = [
        make_task(s, case.ways, case.shots, case.queries, case.image_shape)
        for s in range(2)
    ]
    variables = init(learner, jax.random.key(0), tasks[0].support.x)
    variables = variables.replace(
        params=jax.tree.map(
            lambda p: p + 0.01 * rng.normal(size=p.shape), variables.params
        )
    )

    @jax.jit
    @jax.value_and_grad
    def value_and_gradient(params, task):
        changed = variables.replace(params=params)
        return learner.loss(changed, task, jax.random.key(1), 0, True)[0]

    each = [value_and_gradient(variables.params, task) for task in tasks]
    ours, gradient = jax.tree.map(lambda a, b: (a + b) / 2, *each)
    layers = to_torch(torch, variables.params["model"])
    x = np.stack([np.concatenate([t.support.x, t.query.x]) for t in tasks])
    x = torch.from_numpy(np.moveaxis(x, -1, 2) if x.ndim == 5 else x).contiguous()
    y = np.concatenate([tasks[0].support.y, tasks[0].query.y]).argmax(1)
    losses = list(torch_steps.task_losses(case, layers, x, torch.from_numpy(y), 0))
    theirs = sum(losses) / 2
    theirs.backward()
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-3)
    expected = to_torch(torch, gradient["model"])
    for own, other in zip(expected, layers, strict=True):
        for a, b in zip(own, other, strict=True):
            scale = float(b.grad.abs().max()) + 1e-6
            np.testing.assert_allclose(a.detach(), b.grad, atol=2e-3 * scale)
