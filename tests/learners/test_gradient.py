"""Gradient-based learners against finite differences and PyTorch."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from mlti_jax import backbones, learners
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext, adapt
from mlti_jax.learners._update_rules import transform_modes
from mlti_jax.types import Batch
from tests.support.tasks import init, make_task, task_loss

KEY = jax.random.key(0)


@functools.cache
def small(name, **options):
    options = {"inner_learning_rate": 0.1, "steps": 3, **options}
    return learners.make(name, backbones.mlp((6, 7)), 3, **options)


def small_maml(**options):
    return small("maml", **options)


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def embed(learner, variables, task, key, layer, train):
    return learner.embed(variables, task, TaskContext(key, train), layer)


# ----------------------------------------------------------------- the inner loop


def test_adapt_by_hand_on_a_quadratic():
    # L = 0.5 a w^2: each step multiplies w by (1 - lr a).
    a, lr, w0, steps = 0.7, 0.2, 1.5, 4

    def result(w):
        return adapt(lambda w, i: 0.5 * a * w**2, w, lambda g: lr * g, steps)

    np.testing.assert_allclose(result(w0), w0 * (1 - lr * a) ** steps, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(result)(w0), (1 - lr * a) ** steps, rtol=1e-6)


def test_first_order_takes_inner_gradients_as_constants():
    def result(w, second_order):
        loss = lambda w, i: 0.25 * w**4  # noqa: E731
        return adapt(loss, w, lambda g: 0.1 * g, 1, second_order=second_order)

    np.testing.assert_allclose(jax.grad(result)(2.0, True), 1 - 0.1 * 3 * 4, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(result)(2.0, False), 1.0, rtol=1e-6)


@functools.cache
def value_and_gradient(learner):
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)

    def loss(params):
        changed = variables.replace(params=params)
        return learner.loss(changed, task, TaskContext(KEY, True), 0)[0]

    return jax.jit(jax.value_and_grad(loss))(variables.params)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_adapt_equals_a_python_loop(num_steps, remat):
    def loss(w, index):
        return jnp.sum(jnp.sin(w * (index + 1.0)) ** 2)

    def with_adapt(w):
        return adapt(loss, w, lambda g: 0.1 * g, num_steps, remat=remat).sum()

    def with_loop(w):
        for index in range(num_steps):
            w = w - 0.1 * jax.grad(loss)(w, index)
        return w.sum()

    w = jnp.array([0.3, -1.2, 2.0])
    got = jax.jit(jax.value_and_grad(with_adapt))(w)
    expected = jax.value_and_grad(with_loop)(w)
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_remat_does_not_change_the_meta_gradient():
    plain = value_and_gradient(small_maml())
    remat = value_and_gradient(small_maml(remat=True))
    assert plain is not remat
    chex.assert_trees_all_close(remat, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "steps", "layer"),
    [
        ("maml", 1, 0),
        ("maml", 1, 1),
        ("maml", 3, 1),
        ("anil", 3, 0),
        ("metasgd", 2, 0),
        ("meta_curvature", 2, 1),
    ],
)
def test_meta_gradient_equals_finite_differences(name, steps, layer):
    with jax.enable_x64(True):
        learner = small(name, steps=steps)
        task = jax.tree.map(lambda a: a.astype(np.float64), make_task(1))
        variables = init(learner, KEY, task.support.x)
        variables = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), variables)
        if layer:
            task, _ = embed(learner, variables, task, KEY, layer, True)
        # Away from where rules begin, which is the same for all parameters.
        rule = jax.tree.map(
            lambda a: a + 0.05 * jax.random.normal(KEY, a.shape, a.dtype),
            variables.params["rule"],
        )
        flat, unravel = ravel_pytree({**variables.params, "rule": rule})

        @jax.jit
        def loss(flat):
            changed = variables.replace(params=unravel(flat))
            return task_loss(learner, changed, task, KEY, layer, True)[0]

        gradient = jax.jit(jax.grad(loss))(flat)
        rng = np.random.default_rng(0)
        for _ in range(8):
            direction = rng.normal(size=flat.shape)
            h = 1e-5
            numeric = (loss(flat + h * direction) - loss(flat - h * direction)) / (
                2 * h
            )
            np.testing.assert_allclose(
                gradient @ direction, numeric, rtol=1e-5, atol=1e-8
            )


def torch_maml_loss(torch, params, task, lr, steps, first_adapted):
    """MAML reimplemented in PyTorch: two blocks and a head, from `first_adapted` on.

    `lr` is a number, or MetaSGD's step sizes in the order of the adapted parameters.
    """
    functional = torch.nn.functional
    tensor = lambda a: torch.from_numpy(np.array(a, np.float64))  # noqa: E731

    def forward(layers, h, start):
        for layer in layers[start:-1]:
            h = h @ layer["kernel"]
            h = functional.batch_norm(
                h, None, None, layer["norm"]["scale"], layer["norm"]["offset"], True
            )
            h = functional.leaky_relu(h, 0.01)
        return h @ layers[-1]["kernel"] + layers[-1]["bias"]

    def loss(layers, h, y, start):
        return (
            -(y * functional.log_softmax(forward(layers, h, start), -1)).sum(-1).mean()
        )

    leaves, structure = jax.tree.flatten(params)
    leaves = [tensor(leaf).requires_grad_() for leaf in leaves]
    layers = jax.tree.unflatten(structure, leaves)
    xs, ys, xq, yq = map(
        tensor, (task.support.x, task.support.y, task.query.x, task.query.y)
    )
    adapted = list(layers)
    rates = None
    if not isinstance(lr, float):
        rates = [tensor(rate).requires_grad_() for rate in jax.tree.leaves(lr)]
    for _ in range(steps):
        moved, own = jax.tree.flatten(tuple(adapted[first_adapted:]))
        grads = torch.autograd.grad(loss(adapted, xs, ys, 0), moved, create_graph=True)
        factors = [lr] * len(grads) if rates is None else rates
        new = [p - f * g for p, f, g in zip(moved, factors, grads, strict=True)]
        adapted[first_adapted:] = jax.tree.unflatten(own, new)
    total = loss(adapted, xq, yq, 0)
    total.backward()
    grads = [leaf.grad.numpy() for leaf in leaves]
    grads = jax.tree.unflatten(structure, grads)
    if rates is not None:
        return float(total.detach()), grads, [rate.grad.numpy() for rate in rates]
    return float(total.detach()), grads


@pytest.mark.parity
def test_maml_equals_pytorch_on_the_same_weights():
    torch = pytest.importorskip("torch")
    learner = small_maml(steps=4)
    task = make_task(3)
    variables = init(learner, KEY, task.support.x)

    def loss(model):
        changed = variables.replace(params={"model": model, "rule": ()})
        return task_loss(learner, changed, task, KEY, 0, True)[0]

    ours, gradient = jax.jit(jax.value_and_grad(loss))(variables.params["model"])
    theirs, their_gradient = torch_maml_loss(
        torch, variables.params["model"], task, 0.1, 4, first_adapted=1
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    chex.assert_trees_all_close(gradient, their_gradient, rtol=2e-3, atol=2e-5)


@pytest.mark.parity
def test_metasgd_equals_pytorch_on_the_same_weights():
    torch = pytest.importorskip("torch")
    learner = small("metasgd", steps=3)
    task = make_task(3)
    variables = init(learner, KEY, task.support.x)
    rng = np.random.default_rng(0)
    rates = jax.tree.map(
        lambda a: jnp.asarray(rng.uniform(0.05, 0.15, a.shape), jnp.float32),
        variables.params["rule"],
    )
    params = {"model": variables.params["model"], "rule": rates}

    def loss(params):
        changed = variables.replace(params=params)
        return task_loss(learner, changed, task, KEY, 0, True)[0]

    ours, gradient = jax.jit(jax.value_and_grad(loss))(params)
    theirs, of_model, of_rates = torch_maml_loss(
        torch, params["model"], task, rates, 3, first_adapted=1
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    chex.assert_trees_all_close(gradient["model"], of_model, rtol=2e-3, atol=2e-5)
    for got, expected in zip(jax.tree.leaves(gradient["rule"]), of_rates, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-5)


# ------------------------------------------------------------- compositions and rules


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("metasgd", {}),
        ("meta_curvature", {}),
        ("anil", {"adapted_layers": (-1,)}),
    ],
)
def test_rules_at_their_start_are_maml(name, options):
    task = make_task(2)
    other, maml = small(name), small_maml(**options)
    variables = init(other, KEY, task.support.x)
    plain = init(maml, KEY, task.support.x)
    chex.assert_trees_all_equal(variables.params["model"], plain.params["model"])
    for train in (True, False):
        # One operation at a time: a compiler may round a product and a sum at once.
        loss, aux = other.loss(variables, task, TaskContext(KEY, train), 0)
        expected, expected_aux = maml.loss(plain, task, TaskContext(KEY, train), 0)
        assert loss == expected
        np.testing.assert_array_equal(aux.outputs, expected_aux.outputs)


@pytest.mark.parametrize("shape", [(3,), (4, 5), (3, 3, 2, 4), (1, 1, 2, 3)])
def test_transform_modes_against_loops(shape):
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=shape)
    modes = (shape[0] * shape[1], *shape[2:]) if len(shape) == 4 else shape
    matrices = [rng.normal(size=(n, n)) for n in modes]
    expected = gradient.reshape(modes)
    for mode, matrix in enumerate(matrices):
        result = np.zeros_like(expected)
        for index in np.ndindex(*modes):
            for k in range(modes[mode]):
                source = (*index[:mode], k, *index[mode + 1 :])
                result[index] += matrix[index[mode], k] * expected[source]
        expected = result
    got = transform_modes(jnp.asarray(gradient), tuple(map(jnp.asarray, matrices)))
    np.testing.assert_allclose(got, expected.reshape(shape), rtol=1e-4, atol=1e-5)


def test_options_are_checked_by_name():
    with pytest.raises(InputError, match="option of learner metasgd 'inner_lr'"):
        learners.make("metasgd", backbones.mlp(), 2, inner_lr=0.1)
    with pytest.raises(InputError, match="steps of metasgd is -1"):
        learners.make("metasgd", backbones.mlp(), 2, steps=-1)
    with pytest.raises(InputError, match="unknown distance 'manhattan'"):
        learners.make("protonet", backbones.mlp(), 2, distance="manhattan")
    with pytest.raises(InputError, match="positive scale"):
        learners.make("matchingnet", backbones.mlp(), 2, scale=0.0)


def test_adapted_layers_change_and_no_others():
    learner = small_maml()
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    phi = jax.jit(learner.adapt)(variables, task.support, TaskContext(KEY))
    theta = variables.params["model"]
    assert learner.adapted_layers == (1, 2)
    chex.assert_trees_all_equal(phi[0], theta[0])
    for layer in (1, 2):
        for before, after in zip(
            *map(jax.tree.leaves, (theta[layer], phi[layer])), strict=True
        ):
            assert np.abs(np.asarray(before - after)).max() > 0


def test_number_of_steps_in_training_and_at_test():
    task = make_task(1)
    learner = small_maml(steps=1, eval_steps=3)
    other = small_maml(steps=3)
    variables = init(learner, KEY, task.support.x)
    same = task_loss(learner, variables, task, KEY, 0, False)[0]
    chex.assert_trees_all_close(
        same, task_loss(other, variables, task, KEY, 0, True)[0]
    )
    assert (
        abs(float(task_loss(learner, variables, task, KEY, 0, True)[0] - same)) > 1e-5
    )


def test_loss_before_is_that_of_the_unadapted_network():
    learner = small_maml()
    task = make_task(1)
    variables = init(learner, KEY, task.support.x)
    aux = task_loss(learner, variables, task, KEY, 0, True)[1]
    none = dataclasses.replace(learner, steps=0)
    loss, unadapted = task_loss(none, variables, task, KEY, 0, True)
    np.testing.assert_allclose(aux.loss_before, loss, rtol=1e-6)
    np.testing.assert_allclose(aux.outputs_before, unadapted.outputs, rtol=1e-5)
    assert not np.allclose(aux.outputs, aux.outputs_before)


@pytest.mark.parametrize("layers", [(), (4,), (-5,)])
def test_wrong_adapted_layers(layers):
    with pytest.raises(InputError, match="adapted_layers"):
        small_maml(adapted_layers=layers)


def test_regression_with_the_same_code():
    learner = learners.maml(
        backbones.mlp((8, 8)),
        1,
        objective=learners.REGRESSION,
        inner_learning_rate=0.05,
    )
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(12, 3)), jnp.float32)
    batch = Batch(x, x.sum(1, keepdims=True))
    task = make_task(1).replace(support=batch, query=batch)
    variables = init(learner, KEY, x)
    loss, aux = task_loss(learner, variables, task, KEY, 0, True)
    by_hand = np.mean((np.asarray(aux.outputs) - np.asarray(batch.y)) ** 2)
    np.testing.assert_allclose(loss, by_hand, rtol=1e-5)
    assert loss < aux.loss_before


def test_unknown_learner():
    with pytest.raises(InputError, match="unknown learner 'mml'.*maml, matchingnet"):
        learners.make("mml", backbones.mlp(), 2)
