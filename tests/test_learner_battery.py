"""Every learner on every network: one table, one battery of checks.

A new learner is a row of `LEARNERS`, a new network a row of `NETWORKS`.

Compilation is nearly all of the time. So a combination has one compiled program, the
losses of all tasks; all else is run as plain Python, whose single operations are
compiled once for all learners on a network, and NumPy. In double precision, where
rounding is no excuse for a difference.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_task
from sklearn.datasets import load_digits

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.backbones import Stack
from mlti_jax.errors import InputError
from mlti_jax.training import (
    Episode,
    Evaluator,
    adam,
    init_state,
    make_run_steps,
    paired_difference,
)
from mlti_jax.types import Batch, Task

KEY = jax.random.key(0)
WAYS, TASKS = 2, 2


# ------------------------------------------------------------------------ the table


class LearnerRow(NamedTuple):
    """A learner.

    Attributes:
      options: for `learners.make`.
      regression: whether it can fit real numbers.
      networks: on which of `NETWORKS` it is tested; None for all that fit.
    """

    options: dict[str, Any]
    regression: bool = False
    networks: tuple[str, ...] | None = None


INNER_LOOP = LearnerRow({"steps": 1, "inner_learning_rate": 0.1}, regression=True)
LEARNERS = {
    "maml": INNER_LOOP,
    "anil": INNER_LOOP,
    "metasgd": INNER_LOOP,
    "meta_curvature": INNER_LOOP,
    "protonet": LearnerRow({}),
    "matchingnet": LearnerRow({}),
    "sl": LearnerRow({"steps": 2}, networks=("mlp",)),
    "mtl": LearnerRow({"steps": 20}, networks=("mlp",)),
}


MakeTask = Callable[[int, int], Task]  # from a seed, and samples a class in each set


def vectors(*shape: int) -> MakeTask:
    """Tasks of random arrays."""

    def task(seed: int, size: int) -> Task:
        task = make_task(seed, WAYS, size, size, shape)
        return task.replace(groups=np.arange(WAYS))

    return task


def angles(*shape: int) -> MakeTask:
    """The same, with a real number to predict for each sample."""

    def task(seed: int, size: int) -> Task:
        task = vectors(*shape)(seed, size)

        def regression(batch: Batch) -> Batch:
            return batch.replace(y=batch.x.mean(axis=(1, 2)))

        return task.replace(
            support=regression(task.support), query=regression(task.query)
        )

    return task


def sentences(seed: int, size: int) -> Task:
    """Tasks of samples with one to four tokens, of 20 that there are."""
    rng = np.random.default_rng(seed)
    task = vectors(1)(seed, size)

    def words(batch: Batch) -> Batch:
        mask = np.arange(4) < rng.integers(1, 5, (len(batch.y), 1))
        ids = rng.integers(0, 20, mask.shape)
        x = {"ids": ids.astype(np.int32), "mask": mask.astype(np.float32)}
        return batch.replace(x=x)

    return task.replace(support=words(task.support), query=words(task.query))


class NetworkRow(NamedTuple):
    """A network.

    Attributes:
      make: the network without a head.
      task: makes tasks for it.
      objective: classification or regression.
      slow: whether its tests are left out with `-m 'not slow'`.
      needs: a package without which it is skipped.
    """

    make: Callable[[], Stack]
    task: MakeTask
    objective: learners.Objective = learners.CLASSIFICATION
    slow: bool = False
    needs: str = "jax"


# Equal sizes wherever there is a choice: equal operations are compiled once.
tiny_albert = functools.partial(
    backbones.albert,
    vocabulary=20,
    embedding=4,
    hidden=4,
    layers=2,
    heads=2,
    intermediate=4,
    positions=4,
)
NETWORKS = {
    "mlp": NetworkRow(lambda: backbones.mlp((4, 4)), vectors(4)),
    "conv4": NetworkRow(lambda: backbones.conv4(2, blocks=2), vectors(8, 8, 2)),
    "resnet12": NetworkRow(
        lambda: backbones.resnet12((2, 2)), vectors(8, 8, 2), slow=True
    ),
    "pose": NetworkRow(
        lambda: backbones.pose(0.04), angles(32, 32, 1), learners.REGRESSION, slow=True
    ),
    "word_mean": NetworkRow(
        lambda: backbones.word_mean((4,)), sentences, needs="wordllama"
    ),
    "albert": NetworkRow(tiny_albert, sentences, slow=True),
}

# Parameters that no loss depends on: learner, network and parameter, as patterns, and
# the reason. Only these may be without a gradient, and they must be.
UNREACHED = [
    (
        ".*",
        "albert",
        "model/1/key_bias",
        "adds the same to the scores of all tokens, which the softmax takes away",
    ),
]


def fits(learner: str, network: str) -> bool:
    row = LEARNERS[learner]
    regression = NETWORKS[network].objective is learners.REGRESSION
    named = row.networks is None or network in row.networks
    return named and (row.regression or not regression)


every_combination = pytest.mark.parametrize(
    ("learner", "network"),
    [
        pytest.param(
            learner,
            network,
            id=f"{learner}-{network}",
            marks=pytest.mark.slow if NETWORKS[network].slow else (),
        )
        for network in NETWORKS
        for learner in LEARNERS
        if fits(learner, network)
    ],
)


def test_the_table_is_complete():
    assert set(LEARNERS) == set(learners.LEARNERS)
    assert set(NETWORKS) == set(backbones.BACKBONES)


# --------------------------------------------------------------------- what is run


def double(tree):
    """NumPy arrays, real numbers as float64."""
    arrays = jax.tree.map(np.asarray, tree)
    real = lambda a: np.issubdtype(a.dtype, np.floating)  # noqa: E731
    return jax.tree.map(lambda a: a.astype(np.float64) if real(a) else a, arrays)


def noise(tree, seed: int):
    """Normal noise for every entry."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: rng.normal(size=a.shape), tree)


def named_leaves(tree) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


class Case(NamedTuple):
    """A combination: the learner, variables far from where they start, and tasks."""

    learner: learners.Learner
    variables: learners.Variables
    tasks: list[Task]

    def loss(self, task: Task, layer: int = 0, train: bool = True, **changes):
        """`learner.loss`, not compiled."""
        variables = self.variables.replace(**changes)
        return self.learner.loss(variables, task, KEY, layer, train)


@functools.cache
def network(name: str) -> Stack:
    pytest.importorskip(NETWORKS[name].needs)
    return NETWORKS[name].make()


@functools.cache
def case(learner: str, name: str) -> Case:
    row = NETWORKS[name]
    made = learners.make(
        learner,
        network(name),
        outputs=row.task(0, 1).query.y.shape[1],
        facts={"base_classes": WAYS, "base_groups": WAYS},
        objective=row.objective,
        **LEARNERS[learner].options,
    )
    # Batches of four for all, so that they share compiled operations.
    size = 1 if made.joint_statistics else 2
    tasks = [double(row.task(seed, size)) for seed in range(TASKS)]
    shapes = jax.eval_shape(lambda x: made.init(KEY, x), tasks[0].support.x)
    params = jax.tree_util.tree_map_with_path(
        lambda path, n: ("scale" in str(path)) + 0.4 * n, noise(shapes.params, 1)
    )
    state = jax.tree.map(lambda n: 0.5 + abs(n), noise(shapes.state, 2))
    return Case(made, learners.Variables(params, state), tasks)


def without_before(result):
    """Loss and aux, less what the network was before adaptation: one pass less."""
    loss, aux = result
    return loss, aux.replace(loss_before=(), outputs_before=(), weight=())


@functools.cache
def losses_of_all(learner: str, network: str):
    """`(params, tasks) -> (losses, aux)`, under `vmap` and `jit`."""
    of = case(learner, network)

    def loss(params, task):
        return without_before(of.loss(task, params=params))

    return jax.jit(jax.vmap(loss, (None, 0)))


def padded(task: Task, first: int) -> Task:
    """The task with samples behind its queries that do not count."""

    def longer(leaf):
        rows = leaf[first : first + 1]
        junk = rows if np.issubdtype(leaf.dtype, np.integer) else 50 + rows
        return np.concatenate([leaf, junk, junk])

    x, y = jax.tree.map(longer, (task.query.x, task.query.y))
    weight = np.arange(len(y)) < len(task.query.y)
    return task.replace(query=Batch(x, y, weight.astype(np.float64)))


def together(learner: str, network: str, first: int = 0, params=None):
    """Losses and aux of all tasks, with padding."""
    of = case(learner, network)
    tasks = [padded(task, first) for task in of.tasks]
    tasks = jax.tree.map(lambda *leaves: np.stack(leaves), *tasks)
    params = of.variables.params if params is None else params
    return losses_of_all(learner, network)(params, tasks)


@functools.cache
def alone(learner: str, network: str, index: int = 0, norm=None, train: bool = True):
    """Loss and aux of one task without padding, not compiled."""
    of = case(learner, network)
    if norm not in (None, of.learner.norm):
        of = of._replace(learner=dataclasses.replace(of.learner, norm=norm))
    elif norm is not None:
        return alone(learner, network, index, train=train)
    return of.loss(of.tasks[index], train=train)


@functools.cache
def gradient(learner: str, network: str):
    """The meta-gradient of the first task, not compiled."""
    of = case(learner, network)
    params = jax.tree.map(jnp.asarray, of.variables.params)
    return jax.grad(lambda p: of.loss(of.tasks[0], params=p)[0])(params)


@pytest.fixture
def in_double():
    with jax.enable_x64(True):
        yield


# -------------------------------------------------------------------------- checks


@every_combination
@pytest.mark.usefixtures("in_double")
class TestEveryLearner:
    def test_jit_vmap_and_padding_change_nothing(self, learner, network):
        losses, aux = together(learner, network)
        for index in range(TASKS):
            loss, expected = without_before(alone(learner, network, index))
            assert np.isfinite(loss)
            got = jax.tree.map(lambda leaf, i=index: np.asarray(leaf)[i], aux)
            got = got.replace(outputs=got.outputs[: len(expected.outputs)])
            np.testing.assert_allclose(losses[index], loss, rtol=1e-7)
            chex.assert_trees_all_close(got, expected, rtol=1e-6, atol=1e-7)

    def test_content_of_padding_changes_nothing(self, learner, network):
        losses, aux = together(learner, network)
        others, other_aux = together(learner, network, first=1)
        np.testing.assert_allclose(others, losses, rtol=1e-7)
        chex.assert_trees_all_close(other_aux.metric, aux.metric, rtol=1e-7)
        chex.assert_trees_all_close(other_aux.state, aux.state, rtol=1e-6, atol=1e-7)

    def test_gradient_reaches_every_parameter(self, learner, network):
        leaves = named_leaves(gradient(learner, network))
        size = {name: np.abs(leaf).max() for name, leaf in leaves.items()}
        assert np.isfinite(list(size.values())).all()
        unreached = {name for name in size if size[name] < 1e-10 * max(size.values())}
        expected = {
            name
            for name in size
            for *patterns, _ in UNREACHED
            if all(map(re.fullmatch, patterns, (learner, network, name)))
        }
        assert unreached == expected

    def test_gradient_equals_finite_differences(self, learner, network):
        params = case(learner, network).variables.params
        direction = noise(params, 3)
        if network == "albert":  # reads its table in single precision
            direction["model"][0]["words"][:] = 0

        def loss(size):
            changed = jax.tree.map(lambda p, d: p + size * d, params, direction)
            return together(learner, network, params=changed)[0][0]

        slope = sum(
            np.vdot(np.asarray(g), d)
            for g, d in zip(
                *map(jax.tree.leaves, (gradient(learner, network), direction)),
                strict=True,
            )
        )
        numeric = (loss(1e-6) - loss(-1e-6)) / 2e-6
        np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-7)

    def test_inner_loop_changes_the_adapted_layers_alone(self, learner, network):
        of = case(learner, network)
        if not hasattr(of.learner, "adapted_layers"):
            return
        before = of.variables.params["model"]
        after = of.learner.adapt(of.variables, of.tasks[0].support, KEY, 0, True)
        for layer, pair in enumerate(zip(before, after, strict=True)):
            old, new = map(named_leaves, pair)
            change = {name: np.abs(new[name] - old[name]).max() for name in old}
            if layer in of.learner.adapted_layers:
                assert min(change.values()) > 1e-9, change
            else:
                assert not any(change.values()), change

    def test_entering_at_any_layer_gives_the_whole(self, learner, network):
        of, task = case(learner, network), case(learner, network).tasks[0]
        whole = alone(learner, network)
        for layer in range(1, of.learner.deepest_mixing_layer + 1):
            hidden, state = of.learner.embed(of.variables, task, KEY, layer, True)
            result = of.loss(hidden, layer, state=state)
            chex.assert_trees_all_close(result, whole, rtol=1e-7, atol=1e-9)

    def test_predict_equals_the_outputs_of_loss(self, learner, network):
        of, task = case(learner, network), case(learner, network).tasks[0]
        aux = alone(learner, network, train=False)[1]
        got = of.learner.predict(of.variables, task.support, task.query.x, KEY)
        np.testing.assert_allclose(got, aux.outputs, rtol=1e-7, atol=1e-9)

    def test_batch_norm_policies_differ_at_test_time_only(self, learner, network):
        run = functools.partial(alone, learner, network, 0)
        assert run("batch", train=True)[0] == run("running", train=True)[0]
        test = [run(norm, train=False)[0] for norm in ("batch", "running")]
        normalises = bool(jax.tree.leaves(case(learner, network).variables.state))
        assert (abs(float(test[0] - test[1])) > 1e-6) == normalises

    def test_unknown_norm_policy(self, learner, network):
        with pytest.raises(InputError, match="batch-norm policy"):
            dataclasses.replace(case(learner, network).learner, norm="layer")


# ----------------------------------------------------------------------- real data

DIGITS_EPISODE = Episode(ways=5, shots=1, queries=3)
# Network, shape of an image, learning rate.
ON_DIGITS = {
    "mlp": (backbones.mlp((32,)), (64,), 1e-2),
    "conv4": (backbones.conv4(8, blocks=2), (8, 8, 1), 1e-2),
}


def digits(part: int, shape: tuple[int, ...]) -> data.ClassPool:
    """Every second of 1,797 scanned digits, 8x8; the two parts have none in common."""
    x, y = load_digits(return_X_y=True)
    x = (x[part::2] / 16).astype(np.float32)
    return data.ClassPool.from_arrays(x.reshape(-1, *shape), y[part::2])


# SL and MTL, which train in other ways, do so in `test_supervised.py`.
@pytest.mark.parametrize("learner", sorted(set(LEARNERS) - {"sl", "mtl"}))
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(n, marks=pytest.mark.slow if n == "conv4" else ())
        for n in ON_DIGITS
    ],
)
def test_training_makes_real_tasks_easier(learner, network):
    stack, shape, learning_rate = ON_DIGITS[network]
    inner = {"inner_learning_rate": 0.3} if LEARNERS[learner] is INNER_LOOP else {}
    made = learners.make(
        learner,
        stack,
        outputs=DIGITS_EPISODE.ways,
        **LEARNERS[learner].options | inner,
    )
    strategy, optimiser = strategies.vanilla(), adam(learning_rate)
    state = init_state(made, strategy, optimiser, KEY, jnp.zeros((2, *shape)))
    evaluate = Evaluator(made, strategy, DIGITS_EPISODE, tasks_per_pass=50)
    before = evaluate(state.variables, digits(1, shape), KEY, 50)
    run = make_run_steps(made, strategy, optimiser, DIGITS_EPISODE, batch_size=4)
    state, bad_step = run(state, digits(0, shape), KEY, 40)
    assert bad_step == -1
    after = evaluate(state.variables, digits(1, shape), KEY, 50)
    difference, interval = paired_difference(after, before)
    assert difference - interval > 0.05, (before.mean(), after.mean())
