"""The PyTorch sides of the benchmark: whole steps and their parts."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from experiments.benchmark import evaluation  # noqa: E402
from experiments.benchmark.torch import steps as torch_steps  # noqa: E402
from experiments.benchmark.torch import tasks as torch_tasks  # noqa: E402
from experiments.benchmark.torch.case import check_case  # noqa: E402
from experiments.benchmark.torch.evaluation import make_evaluation  # noqa: E402
from experiments.benchmark.torch.learners import make_model  # noqa: E402
from experiments.benchmark.torch.networks import make_network  # noqa: E402
from tests.support.torch_cases import BASES, NAMES, make_case, pool_of  # noqa: E402

pytestmark = pytest.mark.parity
ALL = pytest.mark.parametrize(("learner", "backbone"), NAMES)
BOTH = pytest.mark.parametrize(
    "make", [torch_steps.make_step, torch_steps.make_vmap_step]
)


# ------------------------------------------------------------------- the two sides


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def loss_and_gradient(case, layer, losses, nhwc=False):
    """Loss and gradient for the same random tasks and parameters."""
    case = check_case(case)
    torch.manual_seed(layer)
    pool = torch_tasks.make_task_pool(case, *pool_of(case), nhwc=nhwc)
    network = make_network(case)
    model = make_model(case, network, nhwc)
    x, y = torch_tasks.draw_tasks(case, pool)
    y = y.double() if y.is_floating_point() else y
    total = sum(losses(case, network, model, layer, x.double(), y))
    total.backward()
    return [total.detach(), *(t.grad for t in model.tensors())]


def check_close(one, other):
    for a, b in zip(one, other, strict=True):
        scale = a.abs().max().item() + 1e-6
        np.testing.assert_allclose(a, b, atol=1e-6 * scale)


def steps_of(case, make=torch_steps.make_step, count=2, **options):
    """Runs `count` updates; returns the step and the losses."""
    torch.manual_seed(0)
    step = make(case, *pool_of(case), **options)
    return step, [step().item() for _ in range(count)]


@ALL
@pytest.mark.parametrize("setting", ["as_is", "non_label_sharing", "vanilla"])
@pytest.mark.usefixtures("double_precision")
def test_vmap_has_the_loss_and_gradient_of_the_loop(learner, backbone, setting):
    case = make_case(learner, backbone)
    if setting == "vanilla":
        case = replace(case, strategy="vanilla")
    elif setting == "non_label_sharing" and backbone != "pose":
        case = replace(case, setting=setting, shots=2)
    for layer in check_case(case).layers:
        one = loss_and_gradient(case, layer, torch_steps.loop_losses)
        other = loss_and_gradient(case, layer, torch_steps.vmap_losses)
        check_close(one, other)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("learner", "backbone", "layer"),
    [("protonet", "conv4", 0), ("maml", "mlp", 1)],
)
@pytest.mark.usefixtures("double_precision")
def test_compiled_functions_have_the_loss_and_gradient_of_the_loop(
    learner, backbone, layer, backend, monkeypatch
):
    # "aot_eager" derives the same programs, but runs them without code generation.
    compiler = partial(torch.compile, backend=backend)
    monkeypatch.setattr(torch, "compile", compiler)
    case = make_case(learner, backbone, inner_steps=1)
    one = loss_and_gradient(case, layer, torch_steps.loop_losses)
    compiled = torch_steps.compiled_losses()
    other = loss_and_gradient(case, layer, compiled, nhwc=True)
    check_close(one, other)


@pytest.mark.usefixtures("double_precision")
def test_pytorch_cannot_compile_a_loop_that_creates_a_graph():
    compiled = torch.compile(torch_steps.task_loss, backend="aot_eager")
    functions = torch_steps.Functions(loss=compiled)
    losses = partial(torch_steps.loop_losses, functions=functions)
    with pytest.raises(RuntimeError, match="does not currently support double back"):
        loss_and_gradient(make_case("maml", "mlp"), 0, losses)


def test_compiled_step_prepares_every_layer(monkeypatch):
    layers = []

    def task_loss(case, network, model, inner, layer, x, y):
        layers.append(layer)
        return original(case, network, model, inner, layer, x, y)

    original = torch_steps.task_loss
    monkeypatch.setattr(torch_steps, "task_loss", task_loss)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    case = make_case("protonet", "mlp")
    step = torch_steps.make_compiled_step(case, *pool_of(case))
    assert set(layers) == set(case.layers) == {0, 1}
    assert np.isfinite(step().item())


def test_reason_why_a_case_cannot_be_compiled(monkeypatch):
    def compiled(function, **options):
        def fail(*args):
            raise RuntimeError("no compiler\nand more")

        return fail

    monkeypatch.setattr(torch, "compile", compiled)
    case = make_case("maml", "conv4")
    with pytest.raises(NotImplementedError, match="^torch.compile failed: no compile"):
        torch_steps.make_compiled_step(case, *pool_of(case))


@ALL
@BOTH
def test_steps_change_all_parameters_and_stay_finite(learner, backbone, make):
    case = make_case(learner, backbone)
    before, _ = steps_of(case, make, count=0)
    after, losses = steps_of(case, make, count=3)
    assert np.isfinite(losses).all()
    pairs = zip(before.model.tensors(), after.model.tensors(), strict=True)
    for old, new in pairs:
        assert torch.isfinite(new).all()
        assert not torch.equal(old, new)


@BOTH
def test_dropout_differs_between_tasks_and_steps(make, monkeypatch):
    masks = []

    def dropout(h, p):
        out = original(torch.ones_like(h), p)
        masks.append(out)
        return h * out

    original = torch.nn.functional.dropout
    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    fields = {"slope": 0.0, "dropout": 0.2, "interpolation": None, "hidden": (64, 64)}
    case = make_case("maml", "mlp", **fields)
    x, index = pool_of(BASES["mlp"])
    assert np.isfinite(make(case, x, index)().item())
    # Per task: the frozen layer on both sets, the adapted one per inner step and at the
    # end.
    calls = 2 + case.inner_steps + 1
    loops = 1 if make is torch_steps.make_vmap_step else case.tasks
    assert len(masks) == loops * calls


@pytest.mark.parametrize("backbone", ["conv4", "resnet12", "pose"])
@pytest.mark.usefixtures("double_precision")
def test_channels_last_changes_no_result(backbone):
    case = make_case("maml", backbone)
    one = loss_and_gradient(case, 0, torch_steps.loop_losses)
    other = loss_and_gradient(case, 0, torch_steps.loop_losses, nhwc=True)
    check_close(one, other)


def test_channels_last_steps_keep_the_layout():
    step, losses = steps_of(make_case("maml", "conv4"), channels_last=True)
    assert np.isfinite(losses).all()
    kernels = [t for t in step.model.tensors() if t.ndim == 4]
    assert all(k.is_contiguous(memory_format=torch.channels_last) for k in kernels)


def test_regression_uses_the_given_targets():
    case = make_case("maml", "pose", interpolation=None, inner_steps=0)
    targets = np.full((pool_of(case)[1].size, 1), 7.0)
    _, (loss,) = steps_of(case, count=1, pool_y=targets)
    assert 20 < loss < 60  # outputs are near zero at first


# ------------------------------------------------------------------- interpolation


@pytest.mark.parametrize("method", ["mixup", "cutmix"])
@pytest.mark.parametrize(("learner", "setting"), [
    ("maml", "label_sharing"), ("maml", "non_label_sharing"),
    ("protonet", "label_sharing"),
])  # fmt: skip
def test_mixtures_are_of_two_tasks_and_of_one_set(method, learner, setting):
    base = replace(
        BASES["conv4"], learner=learner, setting=setting, interpolation=method
    )
    case = check_case(replace(base, ways=3, shots=2, queries=4, tasks=5))
    labels = torch_tasks.class_labels(case)
    size = len(labels)
    # Every sample has its own channel, filled with ones.
    x = torch.eye(5 * size).view(5, size, 5 * size, 1, 1).expand(-1, -1, -1, 6, 6)
    torch.manual_seed(0)
    mixed, y = torch_tasks.interpolate(case, x, labels.expand(5, -1))
    share = mixed.mean((3, 4)).view(5, size, 5, size)  # of sample l of j in k of i
    torch.testing.assert_close(share.sum((2, 3)), torch.ones(5, size))
    assert ((share > 0).sum((2, 3)) <= 2).all()
    assert ((share.sum((1, 3)) > 0).sum(1) <= 2).all()
    support = torch.arange(size) < 6
    assert (share * (support[:, None, None] != support)).sum() == 0
    by_class = share.sum(2) @ torch.nn.functional.one_hot(labels, 3).float()
    if learner == "maml" and setting == "label_sharing":
        torch.testing.assert_close(y, by_class)
    else:
        assert torch.equal(y, labels.expand(5, -1))
        for task in by_class:  # one partner for each class, in both sets
            for label in range(3):
                assert len(task[labels == label].unique(dim=0)) == 1


# ------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("backbone", ["conv4", "mlp"])
def test_sides_of_an_evaluation_have_a_row(backbone, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    case = make_case("protonet", backbone, strategy="vanilla", interpolation=None)
    case = replace(case, pool=(2, case.ways, 20))
    running = evaluation.Evaluation(case, "running", tasks=10)
    cases = {"a": running, "b": replace(running, norm="batch", tasks=3)}
    result = evaluation.measure_cases(cases, 1, 0.01)
    sides = {"torch", "torch_channels_last", "torch_compile", "torch_features"}
    sides -= {"torch_channels_last"} if backbone == "mlp" else set()
    assert set(result["rows"]["a"]["ratio"]) == sides
    assert set(result["rows"]["b"]["ratio"]) == sides - {"torch_features"}
    for name, row in result["rows"].items():
        assert row["ratio"][row["fastest"]] == min(row["ratio"].values())
        for side, rate in row["tasks_per_second"].items():
            seconds = row["time"][side]["median_ms"] / 1e3
            assert rate == pytest.approx(cases[name].tasks / seconds)
    assert len(evaluation.table(result).splitlines()) == 2 + 2
    json.dumps(result)


@pytest.mark.parametrize("channels_last", [False, True])
def test_features_first_changes_no_accuracy(channels_last):
    case = make_case("protonet", "conv4", strategy="vanilla", interpolation=None)
    case = replace(case, shots=2, queries=9)
    accuracy = []
    for features_first in (False, True):
        torch.manual_seed(0)
        evaluate = make_evaluation(
            case,
            *pool_of(case),
            running=True,
            tasks_per_pass=4,
            channels_last=channels_last,
            features_first=features_first,
        )
        accuracy.append(evaluate(6))
    assert len(accuracy[0]) == 6
    assert accuracy[0].unique().numel() > 1
    torch.testing.assert_close(*accuracy)


def test_reason_why_an_evaluation_cannot_be_compiled(monkeypatch):
    def compiled(function, **options):
        def fail(*args):
            raise RuntimeError("no compiler\nand more")

        return fail

    monkeypatch.setattr(torch, "compile", compiled)
    case = make_case("maml", "mlp", strategy="vanilla", interpolation=None)
    case = replace(case, pool=(2, case.ways, 20))
    sides, refused = evaluation.make_theirs(evaluation.Evaluation(case, tasks=1))
    assert list(sides) == ["torch"]
    assert refused == {"torch_compile": "no compiler"}


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"setting": "mixed"}, "setting is 'mixed'"),
        ({"interpolation": "cutout"}, "interpolation is 'cutout'"),
        ({"first_adapted": 9}, "first_adapted is 9; expected 0 to 4"),
        ({"interpolation": "mixup", "layers": (0, 4)}, "maml mixes at layers 0 to 3"),
        ({"layers": (0, 1)}, "cutmix works on layer 0 only"),
        ({"learner": "protonet", "interpolation": "mixup", "layers": (4,)}, "0 to 3"),
        ({"image_shape": (16,)}, "conv4 takes 3 axes"),
        ({"setting": "regression"}, "regression has no classes"),
        ({"ways": 3}, "label-sharing tasks have all classes"),
    ],
)
@BOTH
def test_wrong_fields_raise(make, changes, message):
    case = BASES["conv4"]
    with pytest.raises(ValueError, match=message):
        make(replace(case, **changes), *pool_of(case))


@BOTH
@pytest.mark.parametrize(
    ("field", "value"),
    [("learner", "baseline"), ("backbone", "albert"), ("strategy", "metamix")],
)
def test_parts_without_pytorch_implementation_raise(make, field, value):
    case = replace(BASES["conv4"], **{field: value})
    with pytest.raises(NotImplementedError, match=f"{field} '{value}' is not impl"):
        make(case, *pool_of(case))
