"""Layer stacks: any part can be run alone; normalisation and dropout by hand."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import backbones, ops
from mlti_jax.backbones import Context
from mlti_jax.backbones._layers import BatchNorm, Head
from mlti_jax.backbones._pose import ADAPTED_LAYERS
from mlti_jax.backbones._resnet12 import drop_block
from mlti_jax.errors import InputError

KEY = jax.random.key(0)
NETWORKS = {
    "conv4_28": (backbones.conv4(8), (28, 28, 3)),
    "conv4_84": (backbones.conv4(4), (84, 84, 3)),
    "bio": (backbones.mlp(), (1024,)),
    "cells": (backbones.mlp((64, 64), slope=0.0, dropout=0.2), (2866,)),
    "pose": (backbones.pose(0.1), (128, 128, 1)),
    "resnet12": (backbones.resnet12((4, 5, 6, 7), drop_rate=0.2), (28, 28, 3)),
}
SLOW = ("conv4_84", "pose", "resnet12")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in NETWORKS],
)
@pytest.mark.parametrize("mode", [(True, True), (False, True), (False, False)])
def test_every_split_gives_the_whole(name, mode):
    stack, shape = NETWORKS[name]
    stack = stack.append(Head(5))
    x = jax.random.normal(KEY, (6, *shape))
    params, state = jax.jit(stack.init)(KEY, x)

    @jax.jit
    def run(params, state, h, key):
        train, batch_statistics = mode
        context = Context(key, train=train, batch_statistics=batch_statistics)
        results = [stack.apply(params, state, h, context=context)]
        for layer in range(1, len(stack)):
            middle, new = stack.apply(params, state, h, 0, layer, context)
            results.append(stack.apply(params, new, middle, layer, context=context))
        return results

    whole, *splits = run(params, state, x, KEY)
    assert whole[0].shape == (6, 5)
    for split in splits:
        chex.assert_trees_all_close(split, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("conv4_28", 8),
        ("conv4_84", 5 * 5 * 4),
        ("bio", 500),
        ("cells", 64),
        ("pose", 6),
        ("resnet12", 7),
    ],
)
def test_embedding_sizes(name, size):
    stack, shape = NETWORKS[name]
    x = jnp.zeros((2, *shape))
    h, _ = jax.jit(lambda x: stack.apply(*stack.init(KEY, x), x))(x)
    assert h.reshape(2, -1).shape == (2, size)


def test_batch_norm_by_hand_with_running_averages():
    norm = BatchNorm()
    x = np.random.default_rng(0).normal(2.0, 3.0, (10, 4, 4, 2)).astype(np.float32)
    variables = norm.init(KEY, x, Context())
    out, updated = norm.apply(
        variables, x, Context(train=True), mutable=["batch_stats"]
    )
    flat = x.reshape(-1, 2).astype(np.float64)
    by_hand = (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)
    np.testing.assert_allclose(out, by_hand, atol=1e-4)
    stats = updated["batch_stats"]
    np.testing.assert_allclose(stats["mean"], 0.1 * flat.mean(0), rtol=1e-4)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * flat.var(0, ddof=1), rtol=1e-4)
    running = norm.apply({**variables, **updated}, x, Context(batch_statistics=False))
    by_hand = (x - 0.1 * flat.mean(0)) / np.sqrt(0.9 + 0.1 * flat.var(0, ddof=1) + 1e-5)
    np.testing.assert_allclose(running, by_hand, atol=1e-4)


def test_dense_block_without_norm_by_hand():
    stack = backbones.Stack((backbones.DenseBlock(3, slope=0.1, norm=False),))
    x = jax.random.normal(KEY, (4, 5))
    (params,), state = stack.init(KEY, x)
    assert set(params) == {"kernel", "bias"}
    params = params | {"bias": jnp.array([0.5, -0.5, 0.0])}
    out, new_state = stack.apply((params,), state, x, context=Context(train=True))
    linear = np.asarray(x) @ np.asarray(params["kernel"]) + [0.5, -0.5, 0.0]
    expected = np.where(linear > 0, linear, 0.1 * linear)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_equal(new_state, state)


def test_padding_does_not_enter_the_statistics():
    stack, _ = NETWORKS["bio"]
    x = jax.random.normal(KEY, (6, 1024))
    params, state = jax.jit(stack.init)(KEY, x)
    padded = jnp.concatenate([x, 100 + jnp.zeros((3, 1024))])
    weight = jnp.array([1.0] * 6 + [0.0] * 3)
    context = Context(train=True)
    alone, state_alone = stack.apply(params, state, x, context=context)
    with_padding, state_padded = stack.apply(
        params, state, padded, context=context.replace(weight=weight)
    )
    np.testing.assert_allclose(with_padding[:6], alone, atol=1e-4)
    chex.assert_trees_all_close(state_padded, state_alone, atol=1e-4)


def test_dropout_only_in_training_and_by_key():
    stack, _ = NETWORKS["cells"]
    x = jax.random.normal(KEY, (200, 2866))
    params, state = jax.jit(stack.init)(KEY, x)
    run = jax.jit(
        lambda key, train: stack.apply(
            params, state, x, 0, 1, context=Context(key, train=train)
        )[0],
        static_argnums=1,
    )
    plain, noisy, other = run(KEY, False), run(KEY, True), run(jax.random.key(1), True)
    np.testing.assert_array_equal(run(KEY, True), noisy)
    assert (noisy != other).any()
    kept = np.asarray(noisy)[np.asarray(plain) > 0] > 0
    np.testing.assert_allclose(kept.mean(), 0.8, atol=0.02)
    ratio = (
        np.asarray(noisy)[np.asarray(noisy) > 0]
        / np.asarray(plain)[np.asarray(noisy) > 0]
    )
    np.testing.assert_allclose(ratio, 1 / 0.8, rtol=1e-4)


def test_hook_changes_the_output_before_normalisation():
    stack, shape = NETWORKS["conv4_28"]
    x = jax.random.normal(KEY, (4, *shape))
    params, state = jax.jit(stack.init)(KEY, x)
    seen = []

    def hook(layer, linear):
        seen.append((layer, linear.kernel.shape, linear.output.shape))
        # The same map with its first channel's kernel at zero.
        return linear.apply(linear.kernel * jnp.where(jnp.arange(8) == 0, 0.0, 1.0))

    h, _ = jax.jit(functools.partial(stack.apply, context=Context(hook=hook)))(
        params, state, x
    )
    plain, _ = jax.jit(stack.apply)(params, state, x)
    assert seen[0] == (0, (3, 3, 3, 8), (4, 28, 28, 8))
    assert [layer for layer, _, _ in seen] == [0, 1, 2, 3]
    # A channel of zeros stays at the offset, which is zero.
    np.testing.assert_allclose(h[..., 0], 0.0, atol=1e-6)
    assert np.abs(np.asarray(h - plain)).max() > 1e-3


@pytest.mark.parity
def test_conv4_equals_pytorch_on_the_same_weights():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    stack, shape = NETWORKS["conv4_28"]
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    params, state = jax.jit(stack.init)(KEY, x)
    ours, _ = jax.jit(stack.apply)(params, state, x)
    h = torch.from_numpy(x).permute(0, 3, 1, 2)
    for layer in params:
        kernel = torch.from_numpy(np.array(layer["kernel"])).permute(3, 2, 0, 1)
        h = functional.conv2d(h, kernel, padding=1)
        h = functional.batch_norm(h, None, None, training=True)
        h = functional.max_pool2d(functional.relu(h), 2)
    theirs = h.permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parity
def test_resnet12_equals_pytorch_on_the_same_weights():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    stack, shape = backbones.resnet12((4, 5, 6, 7)), (28, 28, 3)
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    params, state = jax.jit(stack.init)(KEY, x)
    ours, _ = jax.jit(stack.apply)(params, state, x)

    def conv(h, kernel, padding):
        kernel = torch.from_numpy(np.array(kernel)).permute(3, 2, 0, 1)
        h = functional.conv2d(h, kernel, padding=padding)
        return functional.batch_norm(h, None, None, training=True)

    h = torch.from_numpy(x).permute(0, 3, 1, 2)
    for layer in params:
        out = h
        for index in range(3):
            out = conv(out, layer[f"kernel{index}"], padding=1)
            if index < 2:
                out = functional.leaky_relu(out, 0.1)
        out = functional.leaky_relu(out + conv(h, layer["shortcut"], padding=0), 0.1)
        h = functional.max_pool2d(out, 2)
    np.testing.assert_allclose(ours, h.mean(dim=(2, 3)).numpy(), atol=1e-4)


@pytest.mark.parity
def test_pose_equals_pytorch_on_the_same_weights():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    stack, shape = NETWORKS["pose"]
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    params, state = jax.jit(stack.init)(KEY, x)
    ours, _ = jax.jit(stack.apply)(params, state, x)
    h = torch.from_numpy(x).permute(0, 3, 1, 2)
    for index, layer in enumerate(params):
        if index == 3:
            flat = h.permute(0, 2, 3, 1).reshape(3, -1)
            flat = flat @ torch.from_numpy(np.array(layer["kernel"]))
            h = (flat + torch.from_numpy(np.array(layer["bias"]))).reshape(3, 1, 14, 14)
            continue
        kernel = torch.from_numpy(np.array(layer["kernel"])).permute(3, 2, 0, 1)
        if index < 3:  # "SAME" with stride 2 pads at the end
            h = functional.conv2d(functional.pad(h, (0, 1, 0, 1)), kernel, stride=2)
        else:
            h = functional.conv2d(h, kernel, padding=1)
        h = functional.relu(functional.batch_norm(h, None, None, training=True))
        if index == 1:
            h = functional.max_pool2d(h, 2)
    np.testing.assert_allclose(ours, h.mean(dim=(2, 3)).numpy(), atol=1e-4)


def test_pose_has_the_papers_shapes():
    stack = backbones.pose()
    params, _ = jax.eval_shape(stack.init, KEY, jnp.zeros((2, 128, 128, 1)))
    assert params[3]["kernel"].shape == (4096, 196)
    filters = [p["kernel"].shape[-1] for p in (*params[:3], *params[4:])]
    assert filters == [32, 48, 64, 64, 64, 64, 64]
    with_head = len(stack) + 1
    adapted = {layer % with_head for layer in ADAPTED_LAYERS}
    assert adapted == {4, 5, 6, 7, 8}


def test_drop_block_removes_squares_and_keeps_the_mean():
    x = jnp.ones((200, 9, 9, 3))
    got = np.asarray(drop_block(KEY, x, rate=0.2, size=3))
    dropped = got == 0
    assert 0.12 < dropped.mean() < 0.25
    np.testing.assert_allclose(got.mean(), 1.0, rtol=1e-5)
    # Every dropped position lies in a whole square of dropped ones.
    squares = np.lib.stride_tricks.sliding_window_view(dropped, (3, 3), axis=(1, 2))
    whole = squares.all(axis=(-1, -2))
    covered = np.zeros_like(dropped)
    for i in range(3):
        for j in range(3):
            covered[:, i : i + 7, j : j + 7] |= whole
    np.testing.assert_array_equal(covered, dropped)


def test_unknown_backbone():
    with pytest.raises(InputError, match="unknown backbone 'conv5'.*conv4"):
        backbones.make("conv5")


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("mlp", (28, 28, 3), r"needs vectors \[N, D\], got \(2, 28, 28, 3\)"),
        ("conv4", (10,), r"needs images \[N, H, W, C\], got \(2, 10\)"),
        ("conv4", (8, 8, 3), "too small for this many blocks"),
        ("resnet12", (8, 8, 3), "too small for this many blocks"),
        ("pose", (1024,), "needs images"),
        ("word_mean", (32,), "a text backbone takes"),
    ],
)
def test_inputs_that_a_network_cannot_take(name, shape, message):
    if name == "word_mean":
        pytest.importorskip("wordllama")
    with pytest.raises(InputError, match=message):
        backbones.make(name).init(KEY, jnp.zeros((2, *shape)))


@pytest.mark.parametrize("batch_statistics", [True, False])
def test_pooling_before_normalisation_equals_pooling_after_it(batch_statistics):
    """Also where a negative scale turns a maximum into a minimum."""
    block = backbones.conv4(6, blocks=1)
    x = jax.random.normal(jax.random.key(0), (4, 6, 6, 3))
    params, state = block.init(jax.random.key(1), x)
    scale = jnp.asarray([1.0, -1.0, 0.5, -2.0, 0.3, 3.0])
    params = ({**params[0], "norm": {"scale": scale, "offset": 0.1 * scale + 0.2}},)
    context = Context(batch_statistics=batch_statistics)

    def plain(params):
        kernel, norm = params[0]["kernel"], params[0]["norm"]
        h = ops.conv2d(x, kernel)
        mean, var = (
            (h.mean((0, 1, 2)), h.var((0, 1, 2))) if batch_statistics else (0.0, 1.0)
        )
        h = (h - mean) / jnp.sqrt(var + 1e-5) * norm["scale"] + norm["offset"]
        return jax.nn.relu(ops.max_pool(h))

    def ours(params):
        return block.apply(params, state, x, context=context)[0]

    def derivatives(function):
        gradient = jax.grad(lambda p: jnp.sum(jnp.sin(function(p))))
        return jax.jit(lambda p: (function(p), gradient(p)))(params)

    chex.assert_trees_all_close(
        derivatives(ours), derivatives(plain), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bfloat16, jnp.float32])
def test_a_block_has_the_same_dtype_with_a_hook(dtype):
    stack = backbones.conv4(filters=32, blocks=1)
    x = jnp.ones((2, 4, 4, 3), dtype)
    params, state = stack.init(jax.random.key(0), x.astype(jnp.float32))
    layer = stack._layer(0)
    outputs = [
        layer.apply(params[0], state[0], x, backbones.Context(hook=hook))[0]
        for hook in (None, lambda linear: linear.output)
    ]
    assert [out.dtype for out in outputs] == [jnp.float32, jnp.float32]
    np.testing.assert_allclose(*outputs, atol=1e-5)
