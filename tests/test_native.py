"""Kernels in C++ and the JAX forms, compared with plain `lax` in float64."""

import os
import pathlib
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, test_util
from scipy import special

from mlti_jax import ops
from mlti_jax._internal import native
from mlti_jax.ops import _convolution, _pool_moments

TOLERANCE = 1e-10
# Odd sizes, channels that are not a multiple of a vector, several parts of the images.
SHAPES = [(2, 4, 4, 16), (3, 5, 7, 3), (1, 3, 3, 37), (9, 32, 32, 33), (2, 2, 3, 8)]
# Images, kernel size, filters, and the native kernels that are used. Sizes that are odd
# or smaller than a tile, channels that are not a multiple of a vector, more tiles or
# rows than are processed at once, and several parts.
CONVOLUTIONS = [
    ((3, 5, 7, 3), (3, 3), 32, "Kernel"),
    ((1, 1, 2, 1), (3, 3), 5, "Kernel"),
    pytest.param((9, 28, 12, 6), (3, 3), 17, "Kernel", marks=pytest.mark.slow),
    ((2, 4, 4, 16), (3, 3), 16, "Winograd"),
    pytest.param((3, 5, 7, 17), (3, 3), 40, "Winograd", marks=pytest.mark.slow),
    pytest.param((17, 8, 9, 18), (3, 3), 33, "Winograd", marks=pytest.mark.slow),
    pytest.param((1, 14, 14, 64), (3, 3), 66, "Winograd", marks=pytest.mark.slow),
    ((2, 3, 3, 32), (3, 3), 32, "Tap"),
    pytest.param((40, 3, 5, 17), (3, 3), 33, "Tap", marks=pytest.mark.slow),
    ((2, 1, 1, 16), (3, 3), 16, "Tap"),
    pytest.param((3, 6, 4, 20), (5, 3), 18, "Tap", marks=pytest.mark.slow),
    pytest.param((7, 14, 12, 16), (1, 1), 36, "Tap", marks=pytest.mark.slow),
]


def has_kernels(dtype):
    return native.available(jax.ShapeDtypeStruct((1,), dtype))


@pytest.fixture(params=["native", "jax"])
def form(request, monkeypatch):
    """Run a test with the native kernels and with the JAX forms."""
    if request.param == "jax":
        monkeypatch.setattr(native, "available", lambda *operands: False)
    elif not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    # Programs compiled with the other form must not be reused.
    jax.clear_caches()
    yield request.param
    jax.clear_caches()


def images(shape, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    values = rng.integers(-2, 3, shape) if ties else rng.normal(size=shape)
    return jnp.asarray(values, jnp.float64)


def plain(x, sign):
    """Pooling with `reduce_window` and moments in two passes."""
    pooled = lax.reduce_window(
        sign * x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )
    return sign * pooled, x.mean((0, 1, 2)), x.var((0, 1, 2))


def signs(channels):
    return jnp.where(jnp.arange(channels) % 3 == 0, -1.0, 1.0)


def loss(function, sign, weights):
    def value(x):
        out = function(jnp.sin(x), sign)
        pairs = zip(weights, out, strict=True)
        return sum(jnp.sum(w * jnp.cos(leaf)) for w, leaf in pairs)

    return value


def close(a, b):
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        scale = max(1.0, float(jnp.abs(right).max(initial=0.0)))
        np.testing.assert_allclose(left, right, atol=TOLERANCE * scale)


@pytest.mark.parametrize("shape", SHAPES)
def test_pool_moments_and_derivatives_equal_lax(form, shape):
    with jax.enable_x64(True):
        x, sign = images(shape), signs(shape[-1])
        close(ops.pool_moments(x, sign), plain(x, sign))
        weights = [images(leaf.shape, 1) for leaf in plain(x, sign)]
        direction = images(shape, 2)

        def derivatives(function):
            value = loss(function, sign, weights)
            gradient = jax.grad(value)
            reverse_twice = jax.grad(lambda x: jnp.vdot(gradient(x), direction))
            return (
                gradient(x),
                jax.jvp(value, (x,), (direction,)),
                jax.jvp(gradient, (x,), (direction,)),  # forward over reverse
                reverse_twice(x),
                jax.jvp(  # forward over forward
                    lambda x: jax.jvp(value, (x,), (direction,))[1], (x,), (direction,)
                ),
                jax.grad(lambda x: jnp.vdot(reverse_twice(x), direction))(x),  # third
            )

        close(jax.jit(lambda: derivatives(ops.pool_moments))(), derivatives(plain))


def test_equal_maxima_share_the_derivative(form):
    with jax.enable_x64(True):
        x, sign = images((3, 6, 6, 20), ties=True), signs(20)
        direction = images(x.shape, 1)
        pooled, tangent = jax.jvp(
            lambda x: ops.pool_moments(x, sign)[0], (x,), (direction,)
        )
        value, pull = jax.vjp(lambda x: ops.pool_moments(x, sign)[0], x)
        cotangent = images(value.shape, 2)
        (by_x,) = pull(cotangent)
        expected_t, expected_x = np.zeros(pooled.shape), np.zeros(x.shape)
        for n, h, w, c in np.ndindex(pooled.shape):
            at = np.s_[n, 2 * h : 2 * h + 2, 2 * w : 2 * w + 2, c]
            equal = np.asarray(x[at]) == float(pooled[n, h, w, c])
            expected_t[n, h, w, c] = np.asarray(direction[at])[equal].mean()
            expected_x[at] = equal / equal.sum() * float(cotangent[n, h, w, c])
        close((tangent, by_x), (expected_t, expected_x))


def test_tasks_are_separate_groups(form):
    with jax.enable_x64(True):
        x = images((3, 2, 6, 5, 9))
        sign = jnp.stack([signs(9), -signs(9), signs(9)])

        def gradient(function):
            def value(x, sign):
                return sum(jnp.sum(jnp.cos(leaf)) for leaf in function(x, sign))

            return jax.grad(value)

        together = jax.jit(jax.vmap(gradient(ops.pool_moments)))(x, sign)
        alone = [gradient(plain)(x[i], sign[i]) for i in range(3)]
        close(together, jnp.stack(alone))
        # The sign is shared, as in frozen layers.
        shared = jax.vmap(ops.pool_moments, (0, None))(x, sign[0])
        close(shared, jax.vmap(plain, (0, None))(x, sign[0]))


def lax_conv(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def all_derivatives(conv):
    """Value, first and second derivatives in both modes."""

    def loss(x, kernel):
        return jnp.sum(jnp.sin(conv(x, kernel)))

    def second(x, kernel):
        gradients = jax.grad(loss, argnums=(0, 1))(x, kernel)
        return sum(jnp.sum(jnp.cos(g)) for g in gradients)

    def run(x, kernel):
        point, direction = (x, kernel), (jnp.cos(x), jnp.cos(kernel))
        return (
            conv(x, kernel),
            jax.jvp(conv, point, direction)[1],
            jax.grad(loss, argnums=(0, 1))(x, kernel),
            jax.grad(second, argnums=(0, 1))(x, kernel),
            jax.jvp(jax.grad(loss, argnums=(0, 1)), point, direction)[1],
        )

    return run


@pytest.mark.parametrize(("shape", "size", "filters", "kernels"), CONVOLUTIONS)
def test_convolution_and_derivatives_equal_lax(form, shape, size, filters, kernels):
    with jax.enable_x64(True):
        x = images((2, *shape))
        kernel = images((2, *size, shape[-1], filters), 1)
        ours = jax.jit(jax.vmap(all_derivatives(ops.conv2d)))(x, kernel)
        one = jax.jit(all_derivatives(lax_conv))
        alone = [one(x[group], kernel[group]) for group in range(2)]
        close(ours, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone))
        gradient = jax.jit(lambda x, g: _convolution._kernel_gradient(x, g, size))
        text = gradient.lower(x, images((2, *shape[:-1], filters))).as_text()
        assert (f"mlti_jax_{kernels}Gradient" in text) == (form == "native")


@pytest.mark.parametrize("shape", [(3, 6, 6, 3), (9, 31, 33, 1), (1, 2, 15, 8)])
def test_first_block_and_derivatives_equal_lax(form, shape):
    with jax.enable_x64(True):
        x, kernel = images((2, *shape)), images((2, 3, 3, shape[-1], 32), 1)
        sign = signs(32)

        def block(x, kernel):
            pooled, mean, variance = plain(lax_conv(x, kernel), sign)
            return jnp.concatenate([pooled.ravel(), mean, variance])

        def ours(x, kernel):
            pooled, mean, variance = ops.conv_pool_moments(x, kernel, sign)
            return jnp.concatenate([pooled.ravel(), mean, variance])

        together = jax.jit(jax.vmap(all_derivatives(ours)))(x, kernel)
        one = jax.jit(all_derivatives(block))
        alone = [one(x[group], kernel[group]) for group in range(2)]
        close(together, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone))
        gradient = jax.jit(jax.grad(lambda k: jnp.sum(jnp.cos(ours(x[0], k)))))
        expected = jax.grad(lambda k: jnp.sum(jnp.cos(block(x[0], k))))(kernel[0])
        close(gradient(kernel[0]), expected)
        text = gradient.lower(kernel[0]).as_text()
        assert ("mlti_jax_FirstBlockCotangentF64" in text) == (form == "native")


def plain_gates(y, bias, noise, sign):
    a, b = jnp.split(y, 2, -1)
    return plain(a * jnp.logaddexp(b + bias + noise, 0.0), sign)


@pytest.mark.parametrize("shape", [(2, 4, 4, 16), (3, 5, 7, 3), (9, 16, 16, 33)])
def test_gates_and_derivatives_equal_lax(form, shape):
    """Three tasks with two draws of the noise for the same y."""
    *positions, channels = shape
    with jax.enable_x64(True):
        y, noise = images((3, *positions, 2 * channels)), images((3, 2, *shape), 1)
        sign = signs(channels)

        bias = images((channels,), 2)

        def flat(out):
            return jnp.concatenate([leaf.ravel() for leaf in out])

        def ours(y, noise, bias=bias):
            def draw(noise):
                return flat(ops.gated_pool_moments(ops.Gated(y, bias, noise), sign))

            return jax.vmap(draw)(noise)

        def expected(y, noise, bias=bias):
            return jnp.stack([flat(plain_gates(y, bias, e, sign)) for e in noise])

        together = jax.jit(jax.vmap(all_derivatives(ours)))(y, noise)
        one = jax.jit(all_derivatives(expected))
        alone = [one(y[task], noise[task]) for task in range(3)]
        close(together, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone))

        # By y and bias alone, as in training: first and second derivatives.
        def derivatives(function):
            return all_derivatives(lambda y, bias: function(y, noise[0], bias))

        own = jax.jit(derivatives(ours))
        close(own(y[0], bias), jax.jit(derivatives(expected))(y[0], bias))
        text = own.lower(y[0], bias).as_text()
        assert ("mlti_jax_GatedPoolCotangentF64" in text) == (form == "native")


def test_gates_in_float32_at_all_magnitudes(form):
    z = np.concatenate([np.linspace(-30, 30, 4001), [-200.0, -80.0, 80.0, 1e30]])
    y = np.stack([np.ones_like(z), z], -1)[:, None, None, :].repeat(2, 1).repeat(2, 2)

    def pooled(y):
        noise = jnp.zeros((*y.shape[:-1], 1), y.dtype)
        gated = ops.Gated(y, jnp.zeros(1), noise)
        return ops.gated_pool_moments(gated, jnp.ones(1))[0]

    value, pull = jax.vjp(jax.jit(pooled), jnp.asarray(y, jnp.float32))
    (by_y,) = pull(jnp.ones_like(value))
    z = z.astype(np.float32).astype(np.float64)
    soft, slope = np.logaddexp(z, 0.0), np.exp(-np.logaddexp(-z, 0.0))
    np.testing.assert_allclose(value.ravel(), soft, rtol=1e-6, atol=1e-37)
    # The four values of a window are equal and share the derivative.
    np.testing.assert_allclose(4 * by_y[:, 0, 0, 0], soft, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(4 * by_y[:, 1, 1, 1], slope, rtol=1e-6, atol=1e-37)
    nan = jnp.full((1, 2, 2, 2), jnp.nan).at[..., 0].set(1.0)
    assert np.isnan(pooled(nan)).all()


@pytest.mark.parametrize("shape", [(), (3, 5), (2, 70_001)])
def test_normal_noise_equals_that_of_jax(form, shape):
    keys = jax.random.split(jax.random.key(3), (2, 3))
    draw = jax.jit(jax.vmap(jax.vmap(lambda key: ops.normal(key, shape))))
    ours = draw(keys)
    for index in np.ndindex(2, 3):
        # XLA rounds u^2 to float32, which in the tails costs two digits.
        expected = jax.random.normal(keys[index], shape)
        np.testing.assert_allclose(ours[index], expected, rtol=2e-6, atol=3e-5)
        lowest = np.nextafter(np.float32(-1), np.float32(0))
        u = jax.random.uniform(keys[index], shape, minval=lowest, maxval=1.0)
        exact = np.sqrt(2) * special.erfinv(np.asarray(u, np.float64))
        if form == "native":
            np.testing.assert_allclose(ours[index], exact, rtol=2e-6, atol=2e-7)
    assert ("mlti_jax_NormalF32" in draw.lower(keys).as_text()) == (form == "native")


def test_normal_noise_of_other_dtypes_and_generators():
    with jax.enable_x64(True):
        key = jax.random.key(0)
        np.testing.assert_array_equal(
            ops.normal(key, (3,)), jax.random.normal(key, (3,), jnp.float64)
        )
    key = jax.random.key(0, impl="rbg")
    np.testing.assert_array_equal(ops.normal(key, (3,)), jax.random.normal(key, (3,)))
    with jax.threefry_partitionable(False):
        key = jax.random.key(0)
        np.testing.assert_array_equal(
            ops.normal(key, (3,)), jax.random.normal(key, (3,))
        )


@pytest.mark.parametrize("corner", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_nan_is_not_lost_in_pooling(form, corner):
    x = jnp.ones((1, 2, 4, 33)).at[(0, *corner)].set(jnp.nan)
    pooled, mean, _ = ops.pool_moments(x, jnp.ones(33))
    assert np.isnan(pooled[:, :, 0]).all()
    np.testing.assert_array_equal(pooled[:, :, 1], 1.0)
    assert np.isnan(mean).all()


@pytest.mark.parametrize("shape", [(0, 8, 8, 16), (2, 0, 4, 3), (0, 6, 6, 3)])
def test_empty_inputs(form, shape):
    kernel = jnp.ones((3, 3, shape[-1], 32))
    value, gradients = jax.value_and_grad(
        lambda x, k: ops.conv2d(x, k).sum(), argnums=(0, 1)
    )(jnp.zeros(shape), kernel)
    assert value == 0
    assert gradients[0].shape == shape
    np.testing.assert_array_equal(gradients[1], 0.0)


@pytest.mark.parametrize(("shape", "size", "filters", "kernels"), CONVOLUTIONS)
def test_kernels_in_float32_equal_those_in_float64(shape, size, filters, kernels):
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=shape), rng.normal(size=(*shape[:-1], filters))
    kernel = rng.normal(size=(*size, shape[-1], filters))

    def run(dtype):
        def values(x, kernel, g):
            y, pull = jax.vjp(ops.conv2d, x, kernel)
            return y, *pull(g)

        return jax.jit(values)(*(jnp.asarray(a, dtype) for a in (x, kernel, g)))

    with jax.enable_x64(True):
        for single, double in zip(run(jnp.float32), run(jnp.float64), strict=True):
            error = np.abs(np.asarray(single, np.float64) - np.asarray(double))
            assert error.max() < 1e-5 * max(1.0, np.abs(double).max())


@pytest.mark.parametrize("shape", [(3, 6, 6, 3), (9, 31, 33, 1), (2, 2, 15, 8)])
def test_first_block_in_float32(form, shape):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=shape), rng.normal(size=(3, 3, shape[-1], 32))

    def gradient(dtype, function):
        def loss(x, kernel):
            return sum(jnp.sum(jnp.cos(leaf)) for leaf in function(x, kernel))

        return jax.jit(jax.grad(loss, 1))(
            jnp.asarray(x, dtype), jnp.asarray(kernel, dtype)
        )

    sign = signs(32)
    with jax.enable_x64(True):
        exact = gradient(jnp.float64, lambda x, k: plain(lax_conv(x, k), sign))
        ours = gradient(jnp.float32, lambda x, k: ops.conv_pool_moments(x, k, sign))
        error = np.abs(np.asarray(ours, np.float64) - np.asarray(exact)).max()
    assert error < 1e-4 * np.abs(exact).max()


def test_first_block_runs_once_if_images_are_differentiated():
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")

    def loss(x, kernel):
        out = ops.conv_pool_moments(x, kernel, jnp.ones(32))
        return sum(jnp.sum(leaf) for leaf in out)

    x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 32))
    text = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(x, kernel).as_text()
    assert "mlti_jax_PoolMomentsF32" in text
    assert "mlti_jax_FirstBlock" not in text


def test_first_block_does_not_store_the_convolution():
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    x, kernel = jnp.ones((8, 84, 84, 3)), jnp.ones((3, 3, 3, 32))

    def loss(kernel, function):
        return sum(jnp.sum(leaf) for leaf in function(x, kernel, jnp.ones(32)))

    def separate(x, kernel, sign):
        return ops.pool_moments(ops.conv2d(x, kernel), sign)

    sizes = []
    for function in (ops.conv_pool_moments, separate):
        gradient = jax.jit(jax.grad(lambda k, f=function: loss(k, f)))
        memory = gradient.lower(kernel).compile().memory_analysis()
        sizes.append(memory.temp_size_in_bytes)
    output = 8 * 84 * 84 * 32 * 4
    assert sizes[0] < output < sizes[1]


def test_convolution_in_float32_is_as_accurate_as_lax(form):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 14, 14, 64)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, 64, 64)).astype(np.float32)
    with jax.enable_x64(True):
        double = lax_conv(*(jnp.asarray(a, jnp.float64) for a in (x, kernel)))
    errors = [
        float(np.abs(conv(x, kernel) - np.asarray(double)).max())
        for conv in (ops.conv2d, lax_conv)
    ]
    # Winograd's transformations add and subtract, so its rounding is a little larger.
    assert errors[0] < 5 * errors[1], errors


def test_float32_and_a_mean_much_larger_than_the_deviation(form):
    x = np.random.default_rng(0).normal(10_000.0, 1.0, (20, 16, 16, 20))
    x = x.astype(np.float32)
    pooled, mean, variance = ops.pool_moments(jnp.asarray(x), jnp.ones(20))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(variance, exact.var((0, 1, 2)), rtol=1e-3)
    np.testing.assert_array_equal(pooled, x.reshape(20, 8, 2, 8, 2, 20).max((2, 4)))
    small = jnp.asarray(exact[:2, :4, :4, :3] - 10_000.0, jnp.float32)
    test_util.check_grads(
        lambda x: ops.pool_moments(x, jnp.ones(3)), (small,), 2, atol=2e-2, rtol=2e-2
    )


def test_other_dtypes_use_the_jax_form():
    assert not has_kernels(jnp.bfloat16)
    x = jnp.ones((1, 2, 2, 3), jnp.bfloat16)
    assert ops.pool_moments(x, jnp.ones(3))[0].dtype == jnp.bfloat16


def test_result_does_not_depend_on_the_number_of_threads():
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    code = (
        "import jax, jax.numpy as jnp, hashlib; from mlti_jax import ops\n"
        "from mlti_jax.ops import _convolution\n"
        "x = jax.random.normal(jax.random.key(0), (33, 28, 28, 8))\n"
        "a = ops.pool_moments(x, jnp.ones(8))\n"
        "w = jax.random.normal(jax.random.key(1), (33, 14, 14, 32))\n"
        "t, k = w[:, :3, :3], jax.random.normal(jax.random.key(2), (3, 3, 32, 40))\n"
        "b = [ops.conv2d(h, k) for h in (w, t)]\n"
        "b += [ops.normal(jax.random.key(3), (5, 9_999))]\n"
        "g = ops.Gated(w, jnp.ones(16), w[..., :16])\n"
        "b += [jax.grad(lambda y: sum(l.sum() for l in ops.gated_pool_moments("
        "g._replace(y=y), jnp.ones(16))))(w)]\n"
        "b += [jax.grad(lambda k: sum(l.sum() for l in ops.conv_pool_moments("
        "x[..., :3], k, jnp.ones(32))))(k[:, :, :3, :32])]\n"
        "b += [_convolution._kernel_gradient(h[None], h[None], (3, 3))"
        " for h in (x, w, t)]\n"
        "data = b''.join(l.tobytes() for l in jax.device_get([*a, *b]))\n"
        "print(hashlib.sha256(data).hexdigest())\n"
    )
    digests = {run(code, NPROC=threads).stdout for threads in ("1", "4")}
    assert len(digests) == 1


def run(code, **environment):
    root = pathlib.Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
        check=True,
    )


LOAD = (
    "import jax.numpy as jnp; from mlti_jax._internal import native\n"
    "print(native.available(jnp.zeros(1)))\n"
)


@pytest.mark.slow
def test_library_is_compiled_once_and_again_if_it_is_damaged(tmp_path):
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    assert run(LOAD, XDG_CACHE_HOME=str(tmp_path)).stdout == "True\n"
    (library,) = (tmp_path / "mlti_jax" / "native").iterdir()
    before = library.stat().st_mtime_ns
    assert run(LOAD, XDG_CACHE_HOME=str(tmp_path)).stdout == "True\n"
    assert library.stat().st_mtime_ns == before
    library.write_bytes(b"not a library")
    assert run(LOAD, XDG_CACHE_HOME=str(tmp_path)).stdout == "True\n"
    assert library.stat().st_size > 1000


def test_without_a_compiler_or_with_a_broken_one(tmp_path):
    code = LOAD + (
        "from mlti_jax import ops\n"
        "print(ops.pool_moments(jnp.ones((1, 2, 2, 1)), jnp.ones(1))[1][0])\n"
    )
    cache = str(tmp_path / "cache")
    disabled = run(code, MLTI_NATIVE="0", XDG_CACHE_HOME=cache)
    missing = run(code, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=cache)
    assert disabled.stdout == missing.stdout == "False\n1.0\n"
    assert "native kernels" not in disabled.stderr
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\necho "fatal: no headers" >&2\nexit 1\n')
    broken.chmod(0o755)
    result = run(code, CXX=str(broken), XDG_CACHE_HOME=cache)
    assert result.stdout == "False\n1.0\n"
    assert "fatal: no headers" in result.stderr
    assert "MLTI_NATIVE=0" in result.stderr


def test_forms_are_the_ones_that_are_lowered():
    """The native kernel is in the program, and the JAX form is not."""
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    y = jnp.ones((1, 2, 4, 4, 3))
    lowered = jax.jit(_pool_moments._forward_p.bind).lower(y, jnp.ones((1, 3)))
    assert "mlti_jax_PoolMomentsF32" in lowered.as_text()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86_64")
def test_kernels_for_small_vectors(tmp_path):
    """The kernels for vectors of 16 bytes, if this CPU has larger ones."""
    if not has_kernels(jnp.float32):
        pytest.skip("no C++ compiler: no native kernels")
    compiler = tmp_path / "c++"
    compiler.write_text(
        "#!/bin/sh\n"
        'for argument; do shift; [ "$argument" = -march=native ] && '
        "argument=-march=x86-64\n"
        'set -- "$@" "$argument"; done\n'
        f'exec {native._compiler()} "$@"\n'
    )
    compiler.chmod(0o755)
    tests = "derivatives_equal_lax and native"
    chosen = ["-k", tests, "-m", "not slow"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", __file__, *chosen]
    environment = {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        command,
        cwd=pathlib.Path(__file__).parents[1],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    libraries = (tmp_path / "cache" / "mlti_jax" / "native").iterdir()
    assert sorted(path.name[:11] for path in libraries) == [
        "kernels-F32",
        "kernels-F64",
    ]
