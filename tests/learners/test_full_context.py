"""Full-context embeddings against NumPy loops and finite differences."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from mlti_jax import backbones, learners, strategies
from mlti_jax.data import ClassPool
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.learners._base import shared_features
from mlti_jax.learners._full_context import FullContext
from mlti_jax.training import Episode, Evaluator, base_config
from mlti_jax.types import Batch
from tests.support.tasks import init, make_task, stack_tasks, take, task_loss

KEY = jax.random.key(0)
SIZE = 4


@functools.cache
def small():
    return learners.matchingnet(
        backbones.mlp((6,)), 3, full_context=True, context_steps=3
    )


apply = jax.jit(FullContext.apply, static_argnums=0)
embed = jax.jit(lambda *args: small().embed(*args, TaskContext(KEY, False), 1))


@jax.jit
@jax.value_and_grad
def value_and_gradient(params, task, state):
    variables = learners.Variables(params, state)
    return small().loss(variables, task, TaskContext(KEY, True), 0)[0]


def moved(variables):
    """Away from the start, where biases are zero."""
    rng = np.random.default_rng(0)
    context = jax.tree.map(
        lambda a: a + 0.3 * rng.normal(size=a.shape).astype(np.float32),
        jax.device_get(variables.params["context"]),
    )
    return variables.replace(params={**variables.params, "context": context})


@functools.cache
def setup():
    learner = small()
    tasks = stack_tasks([make_task(seed) for seed in range(3)])
    return learner, tasks, moved(init(learner, KEY, tasks.support.x[0]))


def random_sets(number=5, queries=3):
    rng = np.random.default_rng(1)
    support = Batch(
        x=jnp.asarray(rng.normal(size=(number, SIZE)), jnp.float32),
        y=jnp.eye(2)[jnp.arange(number) % 2],
    )
    return support, jnp.asarray(rng.normal(size=(queries, SIZE)), jnp.float32)


def random_params():
    rng = np.random.default_rng(2)
    shapes = jax.eval_shape(lambda: FullContext(1).init(KEY, SIZE))
    return jax.tree.map(
        lambda a: jnp.asarray(0.5 * rng.normal(size=a.shape), jnp.float32), shapes
    )


# ------------------------------------------------------------------ another way


def numpy_lstm(params, x, recurrent, cell):
    """One step for one sample, gate by gate and number by number."""
    size = len(cell)
    w, u, b = (
        np.asarray(params[k], np.float64) for k in ("input", "recurrent", "bias")
    )
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
    new_h, new_cell = np.zeros(size), np.zeros(size)
    for d in range(size):
        i, f, g, o = (
            sum(x[j] * w[j, gate * size + d] for j in range(len(x)))
            + sum(recurrent[j] * u[j, gate * size + d] for j in range(len(recurrent)))
            + b[gate * size + d]
            for gate in range(4)
        )
        new_cell[d] = sigmoid(f) * cell[d] + sigmoid(i) * np.tanh(g)
        new_h[d] = sigmoid(o) * np.tanh(new_cell[d])
    return new_h, new_cell


def numpy_context(params, support, query, steps):
    """g(x_i, S) and f(x, S) as appendix A has them."""
    support, query = np.asarray(support, np.float64), np.asarray(query, np.float64)
    number, size = support.shape
    forward, backward = {}, {}
    h, cell = np.zeros(size), np.zeros(size)
    for i in range(number):
        h, cell = numpy_lstm(params["forward"], support[i], h, cell)
        forward[i] = h
    h, cell = np.zeros(size), np.zeros(size)
    for i in range(number - 1, -1, -1):
        h, cell = numpy_lstm(params["backward"], support[i], h, cell)
        backward[i] = h
    g = np.array([forward[i] + backward[i] + support[i] for i in range(number)])
    results = []
    for x in query:
        h, cell = x, np.zeros(size)
        for _ in range(steps):
            a = np.array([np.exp(h @ g_i) for g_i in g])
            a /= a.sum()
            r = sum(a_i * g_i for a_i, g_i in zip(a, g, strict=True))
            h_hat, cell = numpy_lstm(params["attention"], x, [*h, *r], cell)
            h = h_hat + x
        results.append(h)
    return g, np.array(results)


@pytest.mark.parametrize("steps", [1, 4])
def test_equals_numpy_loops(steps):
    support, query = random_sets()
    params = random_params()
    got = apply(FullContext(steps), params, support, query)
    expected = numpy_context(params, support.x, query, steps)
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-5)


def test_logits_of_the_learner_equal_numpy_loops():
    learner, tasks, variables = setup()
    task = take(tasks, 1)
    h, _ = embed(variables, task)
    g, f = numpy_context(variables.params["context"], h.support.x, h.query.x, 3)
    cosine = g @ f.T / np.outer(np.linalg.norm(g, axis=1), np.linalg.norm(f, axis=1))
    a = np.exp(cosine) / np.exp(cosine).sum(axis=0)
    expected = a.T @ np.asarray(task.support.y)
    logits = task_loss(learner, variables, task, KEY, 0, False)[1].outputs
    np.testing.assert_allclose(jax.nn.softmax(logits), expected, rtol=1e-4)
    plain = jax.nn.softmax(learner.classify(h.support, h.query.x))
    assert np.abs(plain - expected).max() > 1e-3


def test_gradient_equals_finite_differences():
    _, tasks, variables = setup()
    with jax.enable_x64(True):
        task, variables = jax.tree.map(
            lambda a: jnp.asarray(np.asarray(a), jnp.float64),
            (take(tasks, 1), variables),
        )
        flat, unravel = ravel_pytree(variables.params)

        def loss(flat):
            return value_and_gradient(unravel(flat), task, variables.state)

        gradient, _ = ravel_pytree(loss(flat)[1])
        rng = np.random.default_rng(0)
        for _ in range(8):
            direction = rng.normal(size=flat.shape)
            h = 1e-5
            above, below = (loss(flat + s * h * direction)[0] for s in (1, -1))
            np.testing.assert_allclose(
                gradient @ direction, (above - below) / (2 * h), rtol=1e-5, atol=1e-8
            )


# --------------------------------------------------------------------- the sets


@pytest.mark.parametrize("where", ["front", "middle", "end"])
def test_padding_in_the_support_changes_nothing(where):
    support, query = random_sets()
    real = {
        "front": [2, 3, 4, 5, 6],
        "middle": [0, 1, 4, 5, 6],
        "end": [0, 1, 2, 3, 4],
    }[where]
    padded = Batch(
        x=jnp.full((7, SIZE), 9.0).at[np.array(real)].set(support.x),
        y=jnp.eye(2)[jnp.zeros(7, int)].at[np.array(real)].set(support.y),
        weight=jnp.zeros(7).at[np.array(real)].set(1.0),
    )
    context = functools.partial(apply, FullContext(4), random_params())
    support_h, query_h = context(support, query)
    padded_h, padded_query_h = context(padded, query)
    chex.assert_trees_all_close(
        (padded_h[np.array(real)], padded_query_h),
        (support_h, query_h),
        rtol=1e-5,
        atol=1e-6,
    )
    # Without the weights the same samples do count.
    counted = context(padded.replace(weight=None), query)[1]
    assert np.abs(counted - query_h).max() > 1e-3


def test_padding_changes_neither_loss_nor_gradient():
    _, tasks, variables = setup()
    task = take(tasks, 0)
    size = task.support.y.shape[0]
    pad = lambda a: jnp.concatenate([a[:2], 7 + a[:2], a[2:]])  # noqa: E731
    weight = np.ones(size + 2, np.float32)
    weight[2:4] = 0
    support = Batch(
        x=pad(task.support.x), y=pad(task.support.y), weight=jnp.asarray(weight)
    )
    padded = task.replace(support=support)
    params, state = variables.params, variables.state
    chex.assert_trees_all_close(
        value_and_gradient(params, padded, state),
        value_and_gradient(params, task, state),
        rtol=1e-3,
        atol=1e-5,
    )


def test_order_of_the_support_matters():
    support, query = random_sets()
    backwards = jax.tree.map(lambda leaf: leaf[::-1], support)
    params, context = random_params(), FullContext(4)
    one = apply(context, params, support, query)[0]
    other = apply(context, params, backwards, query)[0][::-1]
    assert np.abs(one - other).max() > 1e-2
    # Read from the other end, with the two directions exchanged, it is the same.
    swapped = {**params, "forward": params["backward"], "backward": params["forward"]}
    other = apply(context, swapped, backwards, query)[0][::-1]
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ as a learner


def test_vmap_equals_a_loop_and_jit_changes_nothing():
    learner, tasks, variables = setup()

    def loss(task):
        return learner.loss(variables, task, TaskContext(KEY, True), 0)

    batched = jax.jit(jax.vmap(loss))(tasks)
    without_jit = loss(take(tasks, 0))
    chex.assert_trees_all_close(take(batched, 0), without_jit, rtol=1e-4, atol=1e-5)
    for index in (1, 2):
        alone = task_loss(learner, variables, take(tasks, index), KEY, 0, True)
        chex.assert_trees_all_close(take(batched, index), alone, rtol=1e-4, atol=1e-5)


def test_gradient_reaches_every_parameter():
    task = make_task(0)
    variables = init(small(), KEY, task.support.x)  # where training begins
    _, gradient = value_and_gradient(variables.params, task, variables.state)
    assert len(jax.tree.leaves(gradient["context"])) == 9
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), path
        # Gates are parts of one array: each of them must be reached.
        parts = np.split(leaf, 4, axis=-1) if path[0].key == "context" else [leaf]
        for part in parts:
            assert np.abs(part).max() > 0, path


def test_parameters_have_the_shapes_of_flattened_embeddings():
    learner = learners.matchingnet(backbones.conv4(2), 3, full_context=True)
    x = jnp.zeros((4, 32, 32, 1))
    params = jax.eval_shape(lambda: learner.init(KEY, x)).params
    size = 2 * 2 * 2  # 32 pixels halved four times, and two filters
    for name, recurrent in [("forward", 1), ("backward", 1), ("attention", 2)]:
        shapes = {k: v.shape for k, v in params["context"][name].items()}
        assert shapes == {
            "input": (size, 4 * size),
            "recurrent": (recurrent * size, 4 * size),
            "bias": (4 * size,),
        }


def test_predict_and_ready_features_equal_the_loss():
    learner, tasks, variables = setup()
    task = take(tasks, 2)
    whole, aux = task_loss(learner, variables, task, KEY, 0, False)
    outputs = jax.jit(learner.predict)(variables, task.support, task.query.x, KEY)
    np.testing.assert_allclose(outputs, aux.outputs, rtol=1e-4, atol=1e-5)
    features = jax.jit(functools.partial(shared_features, learner, variables))
    ready = task.replace(
        support=task.support.replace(x=features(task.support.x)),
        query=task.query.replace(x=features(task.query.x)),
    )
    loss, _ = task_loss(learner, variables, ready, KEY, len(learner.stack), False)
    np.testing.assert_allclose(loss, whole, rtol=1e-5)


def test_evaluation_on_features_of_the_pool_equals_one_without(monkeypatch):
    learner, _, variables = setup()
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(4), 10)
    x = 2 * rng.normal(size=(4, 5))[label] + rng.normal(size=(40, 5))
    pool = ClassPool.from_arrays(x.astype(np.float32), label)
    evaluator = Evaluator(learner, strategies.vanilla(), Episode(3, 2, 4))
    assert evaluator._features_pay(pool, 8)
    with_features = evaluator(variables, pool, KEY, 8)
    monkeypatch.setattr(Evaluator, "_features_pay", lambda *_: False)
    np.testing.assert_allclose(evaluator(variables, pool, KEY, 8), with_features)


def test_without_it_nothing_changes():
    plain = learners.matchingnet(backbones.mlp((6,)), 3)
    task = make_task(1)
    variables = init(plain, KEY, task.support.x)
    assert set(variables.params) == {"model"}
    model, state = jax.jit(plain.stack.init)(KEY, task.support.x)
    chex.assert_trees_all_equal(variables.params["model"], model)
    chex.assert_trees_all_equal(variables.state, state)
    with_context = init(small(), KEY, task.support.x)
    chex.assert_trees_all_equal(with_context.params["model"], model)
    h, _ = embed(variables, task)
    logits = task_loss(plain, variables, h, KEY, 1, False)[1].outputs
    expected = jax.jit(plain.classify)(h.support, h.query.x)
    np.testing.assert_array_equal(logits, expected)


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "3"])
def test_wrong_steps(steps):
    with pytest.raises(InputError, match=f"context_steps is {steps!r}"):
        learners.matchingnet(backbones.mlp(), 2, context_steps=steps)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_wrong_full_context(value):
    with pytest.raises(InputError, match=f"full_context is {value!r}"):
        learners.matchingnet(backbones.mlp(), 2, full_context=value)


def test_protonet_has_none():
    with pytest.raises(InputError, match="option of learner protonet 'full_context'"):
        learners.make("protonet", backbones.mlp(), 2, full_context=True)


def test_options_of_the_config_are_those_of_the_learner():
    options = base_config().learner.matchingnet.to_dict()
    learner = learners.make("matchingnet", backbones.mlp(), 2, **options)
    assert learner.full_context is None
    options["full_context"] = True
    learner = learners.make("matchingnet", backbones.mlp(), 2, **options)
    assert learner.full_context == FullContext(options["context_steps"])
