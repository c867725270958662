"""ProtoNet with Conv4 and MLTI against PyTorch: loss, gradient, averages, one step.

The PyTorch side has its own network, learner and interpolation, written from the paper
with `torch.nn`. Both sides get the same weights and images. The random draws of MLTI
(partners, lambda, pairs of classes, boxes) are read off from what the strategy does to
images whose channels number the samples.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlti_jax import backbones, learners, strategies
from mlti_jax.learners import TaskContext
from mlti_jax.types import Batch, Task
from tests.support.tasks import init

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

WAYS, SHOTS, QUERIES, SIDE, FILTERS = 3, 2, 4, 32, 5
SIZES = (WAYS * SHOTS, WAYS * QUERIES)  # of support and query sets
TASKS = 2
LABELS = tuple(np.repeat(np.arange(WAYS), number) for number in (SHOTS, QUERIES))
LEARNING_RATE = 1e-3
KEY = jax.random.key(5)


# ---------------------------------------------------------------------- PyTorch side


class Conv4(torch.nn.Module):
    """Four blocks of convolution, batch norm, ReLU and pooling, in this order."""

    def __init__(self):
        super().__init__()
        blocks = []
        for channels in (3, FILTERS, FILTERS, FILTERS):
            blocks.append(
                torch.nn.Sequential(
                    torch.nn.Conv2d(channels, FILTERS, 3, padding=1, bias=False),
                    torch.nn.BatchNorm2d(FILTERS),
                    torch.nn.ReLU(),
                    torch.nn.MaxPool2d(2),
                )
            )
        self.blocks = torch.nn.Sequential(*blocks)

    def forward(self, images):
        return self.blocks(images).flatten(1)


def logits_of(network, support, query):
    """Minus the squared distances to the means of the classes."""
    vectors = network(torch.cat([support, query]))  # one batch: one set of statistics
    own, asked = vectors[: len(support)], vectors[len(support) :]
    labels = torch.from_numpy(LABELS[0])
    means = torch.stack([own[labels == each].mean(dim=0) for each in range(WAYS)])
    return torch.stack([-((asked - mean) ** 2).sum(dim=1) for mean in means], dim=1)


def loss_of(network, support, query):
    labels = torch.from_numpy(LABELS[1])
    return torch.nn.functional.cross_entropy(logits_of(network, support, query), labels)


# ------------------------------------------------------------------------- both sides


def make_tasks(dtype):
    """Images of each task and set, `[T, n, H, W, C]`, with different class means."""
    rng = np.random.default_rng(0)
    sets = []
    for labels in LABELS:
        means = 0.5 * rng.normal(size=(TASKS, WAYS, 1, 1, 3))
        noise = rng.normal(size=(TASKS, len(labels), SIDE, SIDE, 3))
        sets.append((means[:, labels] + noise).astype(dtype))
    return sets


def to_task(sets):
    """Our tasks `[T]`."""
    batches = [
        Batch(
            x=jnp.asarray(x),
            y=jnp.tile(jnp.eye(WAYS, dtype=x.dtype)[labels], (TASKS, 1, 1)),
        )
        for x, labels in zip(sets, LABELS, strict=True)
    ]
    return Task(support=batches[0], query=batches[1], domain=jnp.arange(TASKS))


def to_torch(images):
    return torch.from_numpy(np.moveaxis(np.asarray(images), -1, -3).copy())


def parameters(tree):
    """Our parameters or gradients in the order of `Conv4.parameters()`."""
    for layer in tree["model"]:
        yield np.transpose(layer["kernel"], (3, 2, 0, 1))
        yield layer["norm"]["scale"]
        yield layer["norm"]["offset"]


def averages(state):
    """Our running averages in the order of `running_averages`."""
    return [layer["norm"][name] for layer in state for name in ("mean", "var")]


def running_averages(network):
    return [
        getattr(block[1], name)
        for block in network.blocks
        for name in ("running_mean", "running_var")
    ]


class Sides(NamedTuple):
    """The same network twice, with random running averages."""

    learner: object
    variables: object
    network: Conv4


def make_sides(dtype):
    learner = learners.protonet(backbones.conv4(FILTERS), WAYS, norm="running")
    example = np.zeros((2, SIDE, SIDE, 3), np.float32)
    variables = init(learner, jax.random.key(0), example)
    rng = np.random.default_rng(1)
    variables = jax.tree.map(  # positive, as variances must be
        lambda leaf: jnp.asarray(leaf + 0.2 * rng.random(leaf.shape), dtype), variables
    )
    network = Conv4().to(getattr(torch, dtype))
    with torch.no_grad():
        for theirs, ours in (
            *zip(network.parameters(), parameters(variables.params), strict=True),
            *zip(running_averages(network), averages(variables.state), strict=True),
        ):
            theirs.copy_(torch.from_numpy(np.array(ours)))
    return Sides(learner, variables, network)


def assert_close(theirs, ours, tolerance):
    """Compare tensors, relative to the largest value of each."""
    for one, other in zip(theirs, ours, strict=True):
        other = np.asarray(other)
        difference = np.abs(one.detach().numpy() - other).max()
        assert difference <= tolerance * np.abs(other).max()


# ------------------------------------------------------------- the draws of MLTI


class Draw(NamedTuple):
    """How a new task is made from task i and its partner j.

    Attributes:
      share: lambda; or 0 and 1, inside and outside of a box, `[H, W]`.
      partner: j.
      rows: for support and query, the partner's sample of each sample.
    """

    share: np.ndarray
    partner: int
    rows: tuple[np.ndarray, np.ndarray]


def read_draws(strategy, dtype):
    """Apply a strategy to images that have channel k = 1 if they are sample k."""
    number = TASKS * sum(SIZES)
    ids = np.arange(number).reshape(TASKS, -1)
    ids = np.split(ids, [SIZES[0]], axis=1)
    images = [
        np.broadcast_to(
            np.eye(number, dtype=dtype)[of_set][:, :, None, None],
            (*of_set.shape, SIDE, SIDE, number),
        )
        for of_set in ids
    ]
    mixed = strategy.transform(to_task(images), KEY, TASKS)
    draws = []
    for i in range(TASKS):
        shares, rows, partners = [], [], set()
        for of_set, batch in zip(ids, (mixed.support, mixed.query), strict=True):
            x = np.asarray(batch.x)[i, 0]  # the only version of the task
            own = x[np.arange(len(x)), :, :, of_set[i]]
            (share,) = np.unique(own, axis=0)  # one lambda or box for all samples
            shares.append(share)
            rest = x.copy()
            rest[np.arange(len(x)), :, :, of_set[i]] = 0
            other = rest.max(axis=(1, 2)).argmax(axis=1)
            np.testing.assert_allclose(
                rest[np.arange(len(x)), :, :, other], 1 - own, atol=1e-7
            )
            task, row = np.nonzero(other[:, None, None] == of_set)[1:]
            partners |= set(task.tolist())
            rows.append(row)
        np.testing.assert_array_equal(*shares)  # the same for support and query
        (partner,) = partners
        _check_pairs_of_classes(rows)
        draws.append(Draw(shares[0], partner, tuple(rows)))
    return draws


def _check_pairs_of_classes(rows):
    """All samples of a class have partners of one class, the same in both sets."""
    pairs = {
        (own, other)
        for labels, of_set in zip(LABELS, rows, strict=True)
        for own, other in zip(labels.tolist(), labels[of_set].tolist(), strict=True)
    }
    assert len(pairs) == len({other for _, other in pairs}) == WAYS
    for labels, of_set in zip(LABELS, rows, strict=True):
        assert len(set(of_set.tolist())) == len(labels)  # each sample once


def interpolate(sets, draws):
    """Eq. 6: each class of task i is mixed with one of task j."""
    new = []
    for images, kind in zip(sets, (0, 1), strict=True):
        tasks = []
        for i, draw in enumerate(draws):
            other = images[draw.partner][draw.rows[kind]]
            share = torch.from_numpy(draw.share)
            tasks.append(share * images[i] + (1 - share) * other)
        new.append(torch.stack(tasks))
    return new


# ------------------------------------------------------------------------------ tests


def compare_a_step(strategy, dtype, tolerance):
    """Compare loss, gradient, running averages, and the parameters after a step."""
    sides, sets = make_sides(dtype), make_tasks(dtype)
    own = sides.variables

    @jax.jit
    def objective(params, tasks):
        return strategies.meta_objective(
            sides.learner, strategy, own.replace(params=params), tasks, KEY, 0, TASKS
        )

    gradient = jax.value_and_grad(objective, has_aux=True)
    (loss, aux), grads = gradient(own.params, to_task(sets))
    optimizer = optax.adam(LEARNING_RATE)
    updates, _ = optimizer.update(grads, optimizer.init(own.params))
    after = optax.apply_updates(own.params, updates)

    images = [to_torch(of_set) for of_set in sets]
    if strategy.transform is not None:
        key = jax.random.split(KEY, 5)[2]  # `meta_objective` gives it to `transform`
        images = interpolate(images, read_draws(with_key(strategy, key), dtype))
    network = sides.network.train()
    torch_optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    before = {name: each.clone() for name, each in network.named_buffers()}
    total, statistics = 0.0, []
    for support, query in zip(*images, strict=True):
        for name, each in network.named_buffers():  # all tasks start from the same
            each.copy_(before[name])
        part = loss_of(network, support, query) / TASKS
        part.backward()
        total += part.item()
        statistics.append([each.clone() for each in running_averages(network)])
    theirs = [each.grad for each in network.parameters()]
    assert loss.dtype == dtype
    np.testing.assert_allclose(total, loss, rtol=tolerance)
    assert_close(theirs, parameters(grads), tolerance)
    mean = [sum(each) / TASKS for each in zip(*statistics, strict=True)]
    assert_close(mean, averages(aux.state), tolerance)
    torch_optimizer.step()
    assert_close(network.parameters(), parameters(after), tolerance)


def with_key(strategy, key):
    """The strategy with a key in place of the one that `transform` is given."""
    transform = strategy.transform
    return strategy._replace(
        transform=lambda tasks, _, size: transform(tasks, key, size)
    )


STRATEGIES = {
    "vanilla": strategies.vanilla(),
    "mixup": strategies.mlti(setting="non_label_sharing", partners="cross"),
    "cutmix": strategies.mlti(
        setting="non_label_sharing", method="cutmix", partners="cross"
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_equals_pytorch(name):
    with jax.enable_x64(True):
        compare_a_step(STRATEGIES[name], "float64", 1e-10)


def test_a_step_in_single_precision():
    """With the kernels that runs use; rounding is larger."""
    compare_a_step(STRATEGIES["cutmix"], "float32", 2e-5)


def test_running_averages_at_test_time():
    with jax.enable_x64(True):
        sides, sets = make_sides("float64"), make_tasks("float64")
        task = jax.tree.map(lambda leaf: leaf[0], to_task(sets))
        context = TaskContext(KEY, False)
        ours = sides.learner.predict(
            sides.variables, task.support, task.query.x, context
        )
        network = sides.network.eval()
        theirs = logits_of(network, *(to_torch(of_set[0]) for of_set in sets))
        assert_close([theirs], [ours], 1e-10)
        # A query does not depend on the others, as it would with batch statistics.
        single = sides.learner.predict(
            sides.variables, task.support, task.query.x[:1], context
        )
        np.testing.assert_allclose(single, ours[:1], rtol=1e-10)
