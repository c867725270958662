"""Meta-Dropout: learned gates, and their noise in the inner loop."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, learners, strategies
from mlti_jax.backbones import Context
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext, _gradient
from tests.support.regulariser_cases import maml, start, tasks  # noqa: F401
from tests.support.tasks import KEY, make_task, objective, stack_tasks, take


def numpy_forward(model, own, x, epsilon):
    """Two blocks with gates and the head, in float64; `epsilon` for each block."""
    h = np.asarray(x, np.float64)
    for layer, gate, e in zip(model[:-1], own, epsilon, strict=False):
        alpha = h @ np.asarray(gate["kernel"], np.float64) + np.asarray(gate["bias"])
        h = (h @ np.asarray(layer["kernel"], np.float64)) * np.log1p(np.exp(alpha + e))
        h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
        h = np.where(h > 0, h, 0.01 * h)
    return h @ np.asarray(model[-1]["kernel"]) + np.asarray(model[-1]["bias"])


@pytest.fixture(scope="module")
def gated(maml, tasks):
    strategy = strategies.metadropout(eval_samples=3)
    variables = start(maml, strategy, tasks.support.x[0])
    larger = jax.tree.map(lambda a: a + 0.3, variables.strategy)
    return strategy, variables.replace(strategy=larger)


def test_the_query_keeps_the_gate_without_noise(maml, tasks, gated):
    strategy, variables = gated
    task = take(tasks, 0)
    context = TaskContext(KEY, True, strategy.perturb(variables))
    unadapted = learners.maml(backbones.mlp((6, 7)), 3, steps=0)
    _, aux = unadapted.loss(variables, task, context)
    model, own = variables.params["model"], variables.strategy
    expected = numpy_forward(model, own, task.query.x, (0.0, 0.0))
    np.testing.assert_allclose(aux.outputs, expected, rtol=1e-3, atol=1e-4)
    assert own[2] == {}  # the head has no gate


def test_the_inner_loop_sees_fresh_noise_averaged_over_draws(maml, tasks, gated):
    strategy, variables = gated
    task = take(tasks, 1)
    head = learners.maml(backbones.mlp((6, 7)), 3, steps=2, adapted_layers=(-1,))
    context = TaskContext(KEY, perturbation=strategy.perturb(variables))
    phi = head.adapt(variables, task.support, context)
    # By hand: gradient descent on the head's weights with the same draws.
    model, own = variables.params["model"], variables.strategy
    w = np.asarray(model[2]["kernel"], np.float64)
    b = np.asarray(model[2]["bias"], np.float64)
    y = np.asarray(task.support.y)
    for keys in jax.random.split(KEY, (2, 3)):
        gradient_w, gradient_b = np.zeros_like(w), np.zeros_like(b)
        for key in keys:
            epsilon = [
                np.asarray(jax.random.normal(jax.random.fold_in(key, layer), (6, size)))
                for layer, size in ((0, 6), (1, 7))
            ]
            identity = [
                *model[:2],
                {"kernel": np.eye(7), "bias": np.zeros(7)},
            ]
            h = numpy_forward(identity, own, task.support.x, epsilon)
            logits = h @ w + b
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            gradient_w += h.T @ (p - y) / len(y) / 3
            gradient_b += (p - y).mean(0) / 3
        w, b = w - 0.01 * gradient_w, b - 0.01 * gradient_b
    np.testing.assert_allclose(phi[2]["kernel"], w, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(phi[2]["bias"], b, rtol=1e-3, atol=1e-5)


def test_noise_acts_at_test_time_through_the_support_only(maml, tasks, gated):
    strategy, variables = gated
    task = take(tasks, 0)
    context = TaskContext(KEY, perturbation=strategy.perturb(variables))
    loss = jax.jit(lambda key: maml.loss(variables, task, context.replace(key=key))[1])
    first, second = loss(jax.random.key(1)), loss(jax.random.key(2))
    assert np.abs(np.asarray(first.outputs - second.outputs)).max() > 1e-6
    # Outputs before adaptation do not use the support set, so they have no noise.
    np.testing.assert_array_equal(first.outputs_before, second.outputs_before)
    same = maml.predict(variables, task.support, task.query.x, context)
    assert same.shape == first.outputs.shape


@pytest.mark.slow
def test_gates_at_one_without_noise_are_vanilla(maml, tasks):
    strategy = strategies.metadropout(noise=0.0)
    variables = start(maml, strategy, tasks.support.x[0])
    one = np.log(np.e - 1)  # softplus of it is 1
    own = tuple(
        {"kernel": 0 * g["kernel"], "bias": 0 * g["bias"] + one} if g else {}
        for g in variables.strategy
    )
    for layer in (0, 1):
        loss, aux = objective(
            maml, strategy, variables.replace(strategy=own), tasks, layer=layer
        )
        vanilla, expected = objective(
            maml, strategies.vanilla(), variables, tasks, layer=layer
        )
        np.testing.assert_allclose(loss, vanilla, rtol=1e-5)
        np.testing.assert_allclose(aux.outputs, expected.outputs, atol=1e-4)


def test_noise_networks_are_learned(maml, tasks, gated):
    strategy, variables = gated

    @jax.jit
    @jax.grad
    def gradient(own):
        return objective(maml, strategy, variables.replace(strategy=own), tasks)[0]

    for leaf in jax.tree.leaves(gradient(variables.strategy)):
        assert np.abs(np.asarray(leaf)).max() > 0


@pytest.mark.slow
def test_recomputed_steps_draw_the_same_noise(tasks, gated):
    strategy, variables = gated
    plain = learners.maml(backbones.mlp((6, 7)), 3, steps=2)
    recomputed = learners.maml(backbones.mlp((6, 7)), 3, steps=2, remat=True)

    def gradient(learner):
        def loss(params):
            changed = variables.replace(params=params)
            return objective(learner, strategy, changed, tasks)[0]

        return jax.jit(jax.grad(loss))(variables.params)

    chex.assert_trees_all_close(
        gradient(plain), gradient(recomputed), rtol=1e-4, atol=1e-6
    )


def test_metadropout_on_convolutions_gates_every_block():
    learner = learners.maml(backbones.conv4(3, blocks=2), 3, steps=1)
    strategy = strategies.metadropout()
    variables = start(learner, strategy, jnp.zeros((4, 8, 8, 1)))
    shapes = [jax.tree.map(np.shape, g) for g in variables.strategy]
    assert shapes[0] == {"kernel": (3, 3, 1, 3), "bias": (3,)}
    assert shapes[1] == {"kernel": (3, 3, 3, 3), "bias": (3,)}
    images = stack_tasks([make_task(s, shape=(8, 8, 1)) for s in range(2)])
    loss, _ = objective(learner, strategy, variables, images, size=2)
    assert np.isfinite(loss)


@pytest.mark.parametrize("unrolled", [True, False])
def test_training_equals_a_plain_loop(unrolled, monkeypatch):
    """Both ways to compute the draws, in float64, second derivatives included."""
    monkeypatch.setattr(_gradient, "are_native_images", lambda x: not unrolled)
    steps, samples, rate = 2, 2, 0.1
    with jax.enable_x64(True):
        learner = learners.maml(
            backbones.conv4(3, blocks=3),
            3,
            steps=steps,
            adapted_layers=(2, 3),
            inner_learning_rate=rate,
        )
        strategy = strategies.metadropout(samples=samples)
        task = make_task(0, shape=(8, 8, 1))
        variables = start(learner, strategy, task.support.x)
        task, variables = jax.tree.map(
            lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a,
            (task, variables),
        )
        trained = (variables.params, variables.strategy)

        def loss(trained):
            params, own = trained
            changed = variables.replace(params=params, strategy=own)
            context = TaskContext(KEY, True, strategy.perturb(changed))
            value, aux = learner.loss(changed, task, context)
            return value, aux.state

        def plain_loss(trained):
            params, own = trained

            def hook(layer, linear, epsilon=0.0):
                alpha = linear.apply(own[layer]["kernel"]) + own[layer]["bias"]
                return linear.output * jax.nn.softplus(alpha + epsilon)

            def noisy(key):
                def with_noise(layer, linear):
                    drawn = jax.random.fold_in(key, layer)
                    epsilon = jax.random.normal(drawn, linear.output.shape)
                    return hook(layer, linear, epsilon)

                return with_noise

            model, (_, key_inner, _) = params["model"], jax.random.split(KEY, 3)
            keys = jax.random.split(key_inner, (steps, samples))
            state = variables.state

            def of_set(adapted, batch, hook, state):
                context = Context(train=True, hook=hook)
                whole = (*model[:2], *adapted)
                out, new = learner.stack.apply(whole, state, batch.x, context=context)
                return -(jax.nn.log_softmax(out) * batch.y).sum(1).mean(), new

            def of_draws(adapted, step):
                return (
                    sum(
                        of_set(adapted, task.support, noisy(key), state)[0]
                        for key in keys[step]
                    )
                    / samples
                )

            adapted = model[2:]
            for step in range(steps):
                gradient = jax.grad(of_draws)(adapted, step)
                adapted = jax.tree.map(lambda p, g: p - rate * g, adapted, gradient)
            _, first = of_set(model[2:], task.support, noisy(keys[0, 0]), state)
            state = (*first[:2], *state[2:])  # the first draw, shared layers only
            return of_set(adapted, task.query, hook, state)

        got = jax.jit(jax.value_and_grad(loss, has_aux=True))(trained)
        expected = jax.jit(jax.value_and_grad(plain_loss, has_aux=True))(trained)
        chex.assert_trees_all_close(got, expected, rtol=1e-10, atol=1e-12)


def test_metadropout_refusals():
    with pytest.raises(InputError, match="eval_samples is 0"):
        strategies.metadropout(eval_samples=0)
    with pytest.raises(InputError, match="noise >= 0"):
        strategies.metadropout(noise=-0.1)
