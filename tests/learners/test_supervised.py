"""SL and MTL: training on labelled samples, then a head for each test task."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.data._pools import sample_flat
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.learners._supervised import logistic_regression
from mlti_jax.training import Episode, Evaluator, init_state, make_run_steps
from mlti_jax.types import Batch
from tests.support.tasks import init, make_task, stack_tasks, take, task_loss

KEY = jax.random.key(0)


@functools.cache
def make(name, **options):
    facts = {"base_classes": 4, "base_groups": 4}
    return learners.make(name, backbones.mlp((6, 7)), 3, facts=facts, **options)


def class_pool(classes=4, seed=0):
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(classes), 20)
    x = 2 * rng.normal(size=(classes, 5))[label] + rng.normal(size=(len(label), 5))
    return data.ClassPool.from_arrays(x.astype(np.float32), label)


# ------------------------------------------------------------ logistic regression


@pytest.mark.parametrize(("samples", "scale"), [(12, 1.0), (60, 3.0)])
def test_logistic_regression_equals_scikit_learn(samples, scale):
    rng = np.random.default_rng(0)
    label = np.arange(samples) % 3
    h = scale * rng.normal(size=(3, 20))[label] + rng.normal(size=(samples, 20))
    h = h / np.linalg.norm(h, axis=1, keepdims=True)
    batch = Batch(x=jnp.asarray(h), y=jnp.eye(3)[label])
    kernel, bias = jax.jit(logistic_regression, static_argnums=(2, 3))(
        jnp.asarray(h, jnp.float32), batch, 3.0, 500
    )
    theirs = LogisticRegression(C=3.0, tol=1e-8, max_iter=5000).fit(h, label)
    got = jax.nn.softmax(h @ np.asarray(kernel) + np.asarray(bias))
    np.testing.assert_allclose(got, theirs.predict_proba(h), atol=2e-4)
    np.testing.assert_allclose(kernel, theirs.coef_.T, atol=2e-3)


def test_logistic_regression_leaves_padding_out():
    task = make_task(1, shape=(4,))
    h = task.support.x
    plain = logistic_regression(h, task.support, 1.0, 1000)
    padded = Batch(
        x=jnp.concatenate([h, 3 * h[:2]]),
        y=jnp.concatenate([task.support.y, task.support.y[:2]]),
        weight=jnp.array([1.0] * 6 + [0.0] * 2),
    )
    other = logistic_regression(padded.x, padded, 1.0, 3000)
    chex.assert_trees_all_close(other, plain, atol=2e-3)


# ----------------------------------------------------------------------------- SL


def test_flat_batches_hold_samples_of_all_classes():
    pool = class_pool()
    task = sample_flat(pool, KEY, ways=3, shots=10, queries=30)
    assert task.query.x.shape == (120, 5)
    assert task.query.y.shape == (120, 4)
    assert task.support.y.shape == (0, 4)
    assert set(np.asarray(task.query.y).argmax(1).tolist()) == {0, 1, 2, 3}


def test_flat_batches_need_a_size():
    with pytest.raises(InputError, match="set task.queries"):
        sample_flat(class_pool(), KEY, ways=3, shots=1, queries=None)


def numpy_body(layers, x):
    for layer in layers:
        x = x @ np.asarray(layer["kernel"], np.float64)
        x = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
        x = np.where(x > 0, x, 0.01 * x)
    return x


def numpy_unit(z):
    return z / np.maximum(np.linalg.norm(z, axis=-1, keepdims=True), 1e-9)


def test_sl_trains_a_classifier_of_all_base_classes():
    learner = make("sl")
    task = sample_flat(class_pool(), KEY, ways=3, shots=1, queries=3)
    variables = init(learner, KEY, task.query.x)
    loss, aux = task_loss(learner, variables, task, KEY, 0, True)
    *body, head = variables.params["model"]
    h = numpy_body(body, np.asarray(task.query.x, np.float64))
    logits = h @ np.asarray(head["kernel"]) + np.asarray(head["bias"])
    np.testing.assert_allclose(aux.outputs, logits, rtol=1e-3, atol=1e-4)
    y = np.asarray(task.query.y).argmax(1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    by_hand = -np.log(p[np.arange(len(y)), y]).mean()
    np.testing.assert_allclose(loss, by_hand, rtol=1e-4)


def test_sl_starts_a_head_from_the_support_set():
    learner = make("sl", steps=0, norm="batch")
    task = make_task(2)
    variables = init(learner, KEY, task.support.x)
    _, aux = task_loss(learner, variables, task, KEY, 0, False)
    *body, head = variables.params["model"]

    def positive(x):
        h = numpy_body(body, np.asarray(x, np.float64))
        return np.maximum(h @ np.asarray(head["kernel"]) + np.asarray(head["bias"]), 0)

    label = np.asarray(task.support.y).argmax(1)
    z = positive(task.support.x)
    centres = numpy_unit(np.stack([z[label == r].mean(0) for r in range(3)]))
    logits = numpy_unit(positive(task.query.x)) @ centres.T
    np.testing.assert_allclose(aux.outputs, logits, rtol=1e-3, atol=1e-3)


def test_sl_fine_tunes_on_the_support_and_does_not_look_at_queries():
    plain, tuned = make("sl", steps=0), make("sl", steps=40, learning_rate=0.01)
    task = make_task(2)
    variables = init(plain, KEY, task.support.x)

    def support_loss(learner):
        same = task.replace(query=task.support)
        return float(task_loss(learner, variables, same, KEY, 0, False)[0])

    assert support_loss(tuned) < support_loss(plain)
    predict = jax.jit(tuned.predict)
    whole = predict(variables, task.support, task.query.x, KEY)
    some = predict(variables, task.support, task.query.x[:2], KEY)
    np.testing.assert_allclose(some, whole[:2], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------- MTL


def test_mtl_loss_is_over_the_rows_of_the_tasks_classes():
    learner = make("mtl")
    task = data.sample_task(class_pool(), KEY, ways=3, shots=2, queries=3)
    assert task.groups.shape == (3,)
    variables = init(learner, KEY, task.support.x)
    loss, aux = task_loss(learner, variables, task, KEY, 0, True)
    x = np.concatenate([task.support.x, task.query.x]).astype(np.float64)
    h = numpy_unit(numpy_body(variables.params["model"], x))
    rows = np.asarray(variables.params["heads"], np.float64)[np.asarray(task.groups)]
    logits = h @ rows.T
    np.testing.assert_allclose(aux.outputs, logits, rtol=1e-3, atol=1e-4)
    y = np.concatenate([task.support.y, task.query.y]).argmax(1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(p[np.arange(len(y)), y]).mean(), rtol=1e-4)


def test_groups_are_the_drawn_classes():
    pool = class_pool()
    task = data.sample_task(pool, KEY, ways=3, shots=2, queries=2)
    rows = np.asarray(pool.index)
    x = np.asarray(pool.x)
    for way, group in enumerate(np.asarray(task.groups)):
        own = x[rows[group]]
        for sample in np.asarray(task.support.x)[2 * way : 2 * way + 2]:
            assert (own == sample).all(1).any()


def test_mtl_fits_a_head_at_test_time_as_scikit_learn_does():
    learner = make("mtl", norm="batch", steps=500)
    task = make_task(2, shots=4)
    variables = init(learner, KEY, task.support.x)
    _, aux = task_loss(learner, variables, task, KEY, 0, False)
    x = np.concatenate([task.support.x, task.query.x]).astype(np.float64)
    h = numpy_unit(numpy_body(variables.params["model"], x))
    label = np.asarray(task.support.y).argmax(1)
    theirs = LogisticRegression(C=3.0, tol=1e-8, max_iter=5000).fit(h[:12], label)
    np.testing.assert_allclose(
        jax.nn.softmax(aux.outputs), theirs.predict_proba(h[12:]), atol=2e-3
    )


def test_mtl_needs_to_know_the_classes_of_a_training_task():
    task = make_task(1)
    variables = init(make("mtl"), KEY, task.support.x)
    with pytest.raises(InputError, match="needs task.groups"):
        make("mtl").loss(variables, task, TaskContext(KEY, True), 0)


# -------------------------------------------------------------------- both of them


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sl", "mtl"])
def test_both_learn_on_real_digits(name):
    digits = load_digits()
    x = (digits.data / 16).astype(np.float32)
    train = digits.target < 7
    pools = [
        data.ClassPool.from_arrays(x[part], digits.target[part])
        for part in (train, ~train)
    ]
    episode = Episode(ways=3, shots=1, queries=5)
    facts = {"base_classes": 7, "base_groups": 7}
    learner = learners.make(name, backbones.mlp((32, 32)), 3, facts=facts)
    strategy, optimiser = strategies.vanilla(), optax.adam(3e-3)
    state = init_state(learner, strategy, optimiser, KEY, x[:2])
    evaluator = Evaluator(learner, strategy, episode)
    before = evaluator(state.variables, pools[1], KEY, 200).mean()
    run = make_run_steps(learner, strategy, optimiser, episode, 4)
    state, bad_step = run(state, pools[0], KEY, 200)
    assert bad_step == -1
    after = evaluator(state.variables, pools[1], KEY, 200).mean()
    assert after > before + 0.02


@pytest.mark.parametrize("name", ["sl", "mtl"])
def test_vmap_over_tasks_equals_a_loop(name):
    learner = make(name)
    tasks = stack_tasks([make_task(s) for s in range(3)])
    variables = init(learner, KEY, tasks.support.x[0])
    loss = jax.jit(
        jax.vmap(lambda t: learner.loss(variables, t, TaskContext(KEY, False), 0)[0])
    )
    alone = [
        task_loss(learner, variables, take(tasks, i), KEY, 0, False)[0]
        for i in range(3)
    ]
    np.testing.assert_allclose(loss(tasks), alone, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sl", {"objective": learners.REGRESSION}, "does not support regression"),
        ("mtl", {"objective": learners.REGRESSION}, "does not support regression"),
        ("sl", {"learning_rate": 0.0}, "positive learning_rate"),
        ("sl", {"steps": -1}, "steps is -1"),
        ("mtl", {"strength": 0.0}, "positive strength"),
        ("mtl", {"norm": "layer"}, "batch-norm policy"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(InputError, match=message):
        make(name, **options)
