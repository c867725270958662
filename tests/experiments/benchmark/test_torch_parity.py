"""Losses and meta-gradients of the PyTorch sides equal ours."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmark import evaluation
from experiments.benchmark.cases import make_learner
from mlti_jax.learners import TaskContext
from tests.support.tasks import init, make_task

torch = pytest.importorskip("torch")

from experiments.benchmark.torch import evaluation as torch_evaluation  # noqa: E402
from experiments.benchmark.torch.case import check_case  # noqa: E402
from experiments.benchmark.torch.learners import Model  # noqa: E402
from experiments.benchmark.torch.networks import make_network  # noqa: E402
from experiments.benchmark.torch.steps import loop_losses  # noqa: E402
from tests.support.torch_cases import NAMES, make_case  # noqa: E402

pytestmark = pytest.mark.parity


def in_order(layer):
    """Our parameters of a layer, in the order of the PyTorch sides."""
    if "bias" in layer:
        return [layer["kernel"], layer["bias"]]
    pairs = [("kernel", "norm")]
    if "shortcut" in layer:
        pairs = [(f"kernel{i}", f"norm{i}") for i in range(3)]
        pairs.append(("shortcut", "shortcut_norm"))
    return [
        leaf
        for kernel, norm in pairs
        for leaf in (layer[kernel], layer[norm]["scale"], layer[norm]["offset"])
    ]


def to_tensor(array):
    """A parameter in PyTorch's layout."""
    axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[array.ndim]
    return torch.from_numpy(array.transpose(axes).copy())


def to_rule(leaf):
    """Learned tensors of an update rule: step sizes, or one matrix per mode."""
    if isinstance(leaf, tuple):
        return [torch.from_numpy(matrix.copy()) for matrix in reversed(leaf)]
    return [to_tensor(leaf)]


def of_channels_first(weight, channels, mirror=False):
    """A matrix for images that are flattened as `[C, H, W]` rather than `[H, W, C]`."""
    side = round((weight.shape[1] // channels) ** 0.5)
    images = weight.unflatten(1, (side, side, channels)).movedim(3, 1)
    images = images.flip(2, 3) if mirror else images
    return images.flatten(1)


def to_model(case, params):
    """Converts our parameters, or their gradient, to a PyTorch `Model`."""
    layers = [[to_tensor(leaf) for leaf in in_order(p)] for p in params["model"]]
    if case.backbone == "conv4" and case.adapts:
        layers[-1][0] = of_channels_first(layers[-1][0], case.filters)
    if case.backbone == "pose":
        # With stride 2 our windows start at 0 and theirs at -1: mirror images.
        for own in layers[:3]:
            own[0] = own[0].flip(2, 3)
        layers[3][0] = of_channels_first(layers[3][0], len(layers[2][0]), mirror=True)
    rule = [[to_rule(leaf) for leaf in in_order(p)] for p in params.get("rule", ())]
    if case.adapts and not rule:
        rule = [[[] for _ in own] for own in layers[case.first_adapted :]]
    model = Model(layers, rule)
    for tensor in model.tensors():
        tensor.requires_grad_()
    return model


def random_tasks(case):
    """Two tasks for our side."""
    sizes = (case.ways, case.shots, case.queries)
    tasks = [make_task(seed, *sizes, case.image_shape) for seed in range(2)]
    if case.setting == "regression":
        rng = np.random.default_rng(0)
        tasks = jax.tree.map(
            lambda a: rng.normal(size=a.shape) if a.ndim == 2 else a, tasks
        )
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), tasks)


def to_torch_tasks(case, tasks):
    """The same tasks for the PyTorch sides."""
    x, y = (
        np.stack(
            [
                np.concatenate([getattr(t.support, name), getattr(t.query, name)])
                for t in tasks
            ]
        )
        for name in ("x", "y")
    )
    x = np.moveaxis(x, -1, 2) if x.ndim == 5 else x
    x = x[..., ::-1, ::-1] if case.backbone == "pose" else x
    y = y if case.setting == "regression" else y.argmax(-1)
    return torch.from_numpy(x.copy()), torch.from_numpy(y)


def check_against_ours(case):
    """Compares the sum of two tasks' losses and its gradient, in double precision."""
    learner = make_learner(case)
    rng = np.random.default_rng(1)
    example = np.zeros((2, *case.image_shape), np.float32)
    variables = init(learner, jax.random.key(0), example)
    with jax.enable_x64(True):
        tasks = random_tasks(case)
        variables = jax.tree.map(
            lambda a: jnp.asarray(a + 0.02 * rng.normal(size=a.shape)), variables
        )

        @jax.jit
        @jax.value_and_grad
        def loss(params, task):
            changed = variables.replace(params=params)
            return learner.loss(changed, task, TaskContext(jax.random.key(1), True), 0)[
                0
            ]

        each = [loss(variables.params, task) for task in tasks]
        ours, gradient = jax.tree.map(lambda a, b: np.asarray(a + b), *each)
        params = jax.tree.map(np.asarray, variables.params)
        tasks = jax.tree.map(np.asarray, tasks)

    case = check_case(case)
    model = to_model(case, params)
    batch = to_torch_tasks(case, tasks)
    theirs = sum(loop_losses(case, make_network(case), model, 0, *batch))
    theirs.backward()
    np.testing.assert_allclose(theirs.item(), ours, rtol=1e-6)
    expected = to_model(case, gradient).tensors()
    for one, other in zip(expected, model.tensors(), strict=True):
        scale = one.abs().max().item() + 1e-6
        np.testing.assert_allclose(other.grad, one.detach(), atol=1e-5 * scale)


@pytest.mark.parametrize(("learner", "backbone"), NAMES)
def test_loss_and_meta_gradient_equal_ours(learner, backbone):
    check_against_ours(make_case(learner, backbone, interpolation=None))


def test_head_with_several_positions():
    case = make_case("maml", "conv4", interpolation=None)
    check_against_ours(replace(case, image_shape=(32, 32, 2)))


def test_slope_and_dropout_equal_ours(monkeypatch):
    def kept(shape):
        return np.arange(np.prod(shape)).reshape(shape) % 5 > 0

    def torch_dropout(h, p):
        return h * torch.from_numpy(kept(h.shape)) / (1 - p)

    def bernoulli(key, p=0.5, shape=None):
        return jnp.asarray(kept(shape))

    monkeypatch.setattr(torch.nn.functional, "dropout", torch_dropout)
    monkeypatch.setattr(jax.random, "bernoulli", bernoulli)
    changes = {"slope": 0.0, "dropout": 0.2, "interpolation": None}
    check_against_ours(make_case("maml", "mlp", **changes))


@pytest.mark.parametrize("backbone", ["conv4", "mlp"])
@pytest.mark.parametrize(
    ("learner", "norm"),
    [("maml", "batch"), ("protonet", "batch"), ("protonet", "running")],
)
def test_evaluated_logits_and_accuracy_equal_ours(learner, norm, backbone):
    """The evaluator and PyTorch run the same tasks with the same parameters."""
    case = make_case(learner, backbone, strategy="vanilla", interpolation=None)
    case = replace(case, pool=(2, case.ways, 8), queries=5)
    evaluator, parts = evaluation.make_evaluator(evaluation.Evaluation(case, norm))
    rng = np.random.default_rng(1)
    # Random parameters, and positive variances.
    variables = jax.tree.map(
        lambda a: a + jnp.asarray(0.1 * rng.random(a.shape), a.dtype),
        parts.state.variables,
    )
    key = jax.random.key(3)
    accuracy = evaluator(variables, parts.pool, key, 8)
    ours = evaluator.outputs(variables, parts.pool, key, 8)
    tasks, _ = evaluator._draw(parts.pool, key, jnp.arange(8))

    case = check_case(case)
    to_numpy = partial(jax.tree.map, np.asarray)
    params, state = to_numpy((variables.params, variables.state))
    statistics = None
    if norm == "running":
        averages = [own.get("norm", own) for own in state]
        statistics = [tuple(map(to_tensor, (a["mean"], a["var"]))) for a in averages]
    layers = to_model(case, params).layers
    network = make_network(case)
    trained = torch_evaluation.Trained(case, network, layers, statistics)
    singles = [jax.tree.map(lambda a, i=i: np.asarray(a[i]), tasks) for i in range(8)]
    x, y = to_torch_tasks(case, singles)
    forms = {
        "loop": torch_evaluation.first_order_gradient,
        "compiled": torch_evaluation.functional_gradient,
    }
    for gradient in forms.values():
        with torch.no_grad():
            theirs = [torch_evaluation.task_logits(trained, t, gradient) for t in x]
        size = len(theirs[0])
        expected = ours.outputs.reshape(8, size, case.ways)
        np.testing.assert_allclose(torch.stack(theirs), expected, rtol=1e-3, atol=1e-4)
        right = [(t.argmax(1) == own[-size:]) for t, own in zip(theirs, y, strict=True)]
        np.testing.assert_allclose([r.float().mean() for r in right], accuracy)
