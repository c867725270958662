"""Every learner on every network of `learner_table.py`: one battery of checks.

Compilation takes nearly all of the time. A combination therefore has one compiled
program, the losses of all tasks; everything else runs op by op, where operations are
compiled once for all learners on a network, or in NumPy. In double precision, so that
rounding cannot explain a difference.
"""

import dataclasses
import functools
import re
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import learners
from mlti_jax.backbones import Stack
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.learners import _registry as registry
from mlti_jax.types import Batch, Task
from tests.support.learner_table import (
    LEARNERS,
    NETWORKS,
    UNREACHED,
    WAYS,
    WRAPPED,
    fits,
)
from tests.support.tasks import KEY

TASKS = 2


def combinations(families=tuple(registry.FAMILIES)):
    """Parametrize a test over the learners of some families and their networks."""
    return pytest.mark.parametrize(
        ("learner", "network"),
        [
            pytest.param(
                learner,
                network,
                id=f"{learner}-{network}",
                marks=pytest.mark.slow if NETWORKS[network].slow else (),
            )
            for network in NETWORKS
            for family in families
            for learner in registry.FAMILIES[family]
            if fits(learner, network)
        ],
    )


def test_the_table_is_complete():
    assert set(LEARNERS) == set(registry.LEARNERS)
    assert set(NETWORKS) == set(BACKBONES) | set(WRAPPED)


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
        return self.learner.loss(variables, task, TaskContext(KEY, train), layer)


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


@combinations()
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

    def test_predict_equals_the_outputs_of_loss(self, learner, network):
        of, task = case(learner, network), case(learner, network).tasks[0]
        aux = alone(learner, network, train=False)[1]
        got = of.learner.predict(
            of.variables, task.support, task.query.x, TaskContext(KEY)
        )
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


@combinations(["gradient"])
@pytest.mark.usefixtures("in_double")
def test_inner_loop_changes_only_the_adapted_layers(learner, network):
    of = case(learner, network)
    before = of.variables.params["model"]
    context = TaskContext(KEY, train=True)
    after = of.learner.adapt(of.variables, of.tasks[0].support, context)
    adapted = []
    for layer, pair in enumerate(zip(before, after, strict=True)):
        old, new = map(named_leaves, pair)
        change = {name: np.abs(new[name] - old[name]).max() for name in old}
        if layer in of.learner.adapted_layers:
            assert min(change.values()) > 1e-9, change
            adapted.append(layer)
        else:
            assert not any(change.values()), change
    assert adapted == list(of.learner.adapted_layers)


@combinations(["gradient", "metric"])
@pytest.mark.usefixtures("in_double")
def test_entering_at_any_layer_gives_the_same_loss(learner, network):
    of, task = case(learner, network), case(learner, network).tasks[0]
    whole = alone(learner, network)
    layers = range(1, of.learner.deepest_mixing_layer + 1)
    assert layers
    for layer in layers:
        context = TaskContext(KEY, train=True)
        hidden, state = of.learner.embed(of.variables, task, context, layer)
        result = of.loss(hidden, layer, state=state)
        chex.assert_trees_all_close(result, whole, rtol=1e-7, atol=1e-9)
