"""Operations and derivatives, compared with `lax`, NumPy and PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, test_util

from mlti_jax import ops
from mlti_jax._internal import native, platforms
from mlti_jax.ops import _convolution, _max_pool

SLOW = pytest.mark.slow
SHAPES = [
    ((5, 7, 6, 3), (3, 3, 3, 4), 1),
    ((4, 3, 3, 8), (3, 3, 8, 5), 1),
    ((3, 9, 9, 16), (3, 3, 16, 8), 1),
    ((2, 8, 5, 4), (1, 1, 4, 6), 1),
    ((2, 8, 8, 4), (5, 3, 4, 2), 1),
    ((3, 9, 8, 3), (3, 3, 3, 4), 2),
    ((3, 8, 8, 2), (4, 4, 2, 3), 2),
]


def reference(x, kernel, strides):
    return lax.conv_general_dilated(
        x,
        kernel,
        (strides, strides),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest",
    )


def draw(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]


def all_derivatives(conv):
    """Value, gradient, and the gradient of a function of the gradient."""

    def loss(x, kernel):
        return jnp.sum(jnp.sin(conv(x, kernel)))

    def second(x, kernel):
        gradients = jax.grad(loss, argnums=(0, 1))(x, kernel)
        return sum(jnp.sum(jnp.cos(g)) for g in gradients)

    def run(x, kernel):
        first = jax.grad(loss, argnums=(0, 1))(x, kernel)
        return conv(x, kernel), first, jax.grad(second, argnums=(0, 1))(x, kernel)

    return run


def assert_close(a, b, tolerance=1e-4):
    for left, right in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        scale = max(1.0, float(jnp.abs(right).max()))
        np.testing.assert_allclose(left, right, atol=tolerance * scale)


CASES = [
    pytest.param(*shape, batched, False, marks=() if batched == "both" else SLOW)
    for shape in SHAPES
    for batched in ("none", "x", "kernel", "both", "nested")
]
# The same with a tiny cache: many chunks, the last of them not full.
CASES += [
    pytest.param(*shape, batched, True, marks=SLOW)
    for shape in SHAPES
    if shape[2] == 1
    for batched in ("none", "x", "both")
]


@pytest.mark.parametrize(
    ("x_shape", "kernel_shape", "strides", "batched", "small_cache"), CASES
)
def test_conv2d_and_derivatives_equal_lax(
    x_shape, kernel_shape, strides, batched, small_cache, monkeypatch
):
    if small_cache:
        monkeypatch.setattr(_convolution, "_CACHE_BYTES", 1 << 11)
        monkeypatch.setattr(native, "available", lambda *operands: False)
    lead_x = {"x": (2,), "both": (2,), "nested": (2, 3)}.get(batched, ())
    lead_kernel = {"kernel": (2,), "both": (2,), "nested": (3,)}.get(batched, ())
    x, kernel = draw(0, (*lead_x, *x_shape), (*lead_kernel, *kernel_shape))

    def transformed(conv):
        run = all_derivatives(lambda a, k: conv(a, k, strides=strides))
        if batched == "nested":  # seeds with their own x, tasks with their own kernel
            return jax.jit(jax.vmap(jax.vmap(run), in_axes=(0, None)))
        axes = (0 if lead_x else None, 0 if lead_kernel else None)
        return jax.jit(run if axes == (None, None) else jax.vmap(run, in_axes=axes))

    ours = transformed(ops.conv2d)(x, kernel)
    theirs = transformed(lambda a, k, strides: reference(a, k, strides))(x, kernel)
    assert_close(ours, theirs)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("size", "strides"), [((3, 3), 1), ((3, 3), 2), ((2, 4), 1), ((1, 1), 2)]
)
def test_conv2d_equals_a_numpy_loop(size, strides, padding):
    x, kernel = draw(6, (2, 7, 6, 3), (*size, 3, 4))
    padded = np.asarray(x, np.float64)
    if padding == "SAME":
        pads = []
        for length, extent in zip((7, 6), size, strict=True):
            out = -(-length // strides)
            total = max((out - 1) * strides + extent - length, 0)
            pads.append((total // 2, total - total // 2))
        padded = np.pad(padded, ((0, 0), *pads, (0, 0)))
    rows = (padded.shape[1] - size[0]) // strides + 1
    columns = (padded.shape[2] - size[1]) // strides + 1
    expected = np.zeros((2, rows, columns, 4))
    for h in range(rows):
        for w in range(columns):
            top, left = h * strides, w * strides
            window = padded[:, top : top + size[0], left : left + size[1]]
            expected[:, h, w] = np.einsum("nijc,ijco->no", window, np.asarray(kernel))
    out = ops.conv2d(x, kernel, strides=strides, padding=padding)
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_conv2d_needs_rank_four():
    x, kernel = draw(6, (7, 6, 3), (3, 3, 3, 4))
    with pytest.raises(AssertionError, match="rank"):
        ops.conv2d(x, kernel)
    with pytest.raises(AssertionError, match="rank"):
        ops.max_pool(x)


def test_conv2d_inside_scan_and_without_jit():
    x, kernel = draw(1, (4, 6, 6, 3), (3, 3, 3, 3))

    def body(h, _):
        return jnp.tanh(ops.conv2d(h, kernel)), None

    def plain(h):
        for _ in range(3):
            h = jnp.tanh(reference(h, kernel, 1))
        return h.sum()

    scanned = jax.grad(lambda h: lax.scan(body, h, None, length=3)[0].sum())
    assert_close(scanned(x), jax.jit(jax.grad(plain))(x))


def test_no_grouped_convolution_where_kernels_differ_by_task():
    x, kernel = draw(2, (4, 5, 6, 6, 8), (4, 3, 3, 8, 8))

    def loss(x, kernel):
        inner = jax.grad(lambda k: jnp.sum(jnp.tanh(ops.conv2d(x, k))))
        adapted = kernel - 0.1 * inner(kernel)
        return jnp.sum(ops.conv2d(x, adapted) ** 2)

    def total(kernel):
        return jax.vmap(loss)(x, kernel).sum()

    text = jax.jit(jax.grad(total)).lower(kernel).as_text()
    for line in text.splitlines():
        if "convolution" in line:
            assert "feature_group_count = 1 " in line, line
            assert "batch_group_count = 1 " in line, line
    assert "dot_general" in text


@pytest.mark.parametrize("shape", [(3, 8, 8, 2), (2, 7, 5, 3), (2, 3, 3, 4)])
def test_max_pool_equals_reduce_window(shape):
    (x,) = draw(3, shape)

    def reduced(x):
        window = (1, 2, 2, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")

    def derivatives(pool):
        gradient = jax.grad(lambda x: jnp.sum(pool(x) ** 3))
        second = jax.grad(lambda x: jnp.sum(gradient(x) ** 2))
        return jax.jit(lambda x: (pool(x), gradient(x), second(x)))(x)

    def slow(x):  # a loop, differentiated without `reduce_window`
        n, h, w, c = x.shape
        rows = [
            [x[:, i : i + 2, j : j + 2].max((1, 2)) for j in range(0, w - w % 2, 2)]
            for i in range(0, h - h % 2, 2)
        ]
        return jnp.stack([jnp.stack(row, 1) for row in rows], 1)

    np.testing.assert_array_equal(ops.max_pool(x), reduced(x))
    assert_close(derivatives(ops.max_pool), derivatives(slow))


def test_equal_entries_of_a_window_share_the_gradient():
    x = jnp.asarray([[3.0, 3.0, 1.0, 2.0], [3.0, 0.0, 2.0, 2.0]])[None, :, :, None]
    gradient = jax.grad(
        lambda x: jnp.sum(ops.max_pool(x) * jnp.asarray([6.0, 9.0])[:, None])
    )(x)
    expected = [[2.0, 2.0, 0.0, 3.0], [2.0, 0.0, 3.0, 3.0]]
    np.testing.assert_allclose(gradient[0, :, :, 0], expected, rtol=1e-6)
    zeros = jnp.zeros((1, 4, 4, 1))
    _, tangent = jax.jvp(ops.max_pool, (zeros,), (zeros + 5.0,))
    np.testing.assert_allclose(tangent, 5.0)


FORMS = {
    "cpu": (_max_pool._select_windows, _max_pool._scatter_windows),
    "accelerator": (_max_pool._select_corners, _max_pool._scatter_corners),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 6, 2), (1, 2, 7, 5, 3), (1, 2, 3, 2, 1)])
def test_forms_of_the_derivative_of_max_pool_equal_a_loop(form, shape):
    """For both kinds of platform, with ties, NaN and odd sizes."""
    select, scatter = FORMS[form]
    rng = np.random.default_rng(6)
    x = rng.integers(-1, 2, shape).astype(np.float32)  # many ties
    x[0, 0, 0, 0, 0] = np.nan
    t = rng.normal(size=shape).astype(np.float32)
    small = (*shape[:2], shape[2] // 2, shape[3] // 2, shape[4])
    g = rng.normal(size=small).astype(np.float32)
    pooled, selected = np.zeros(small, np.float32), np.zeros(small, np.float32)
    scattered = np.zeros(shape, np.float32)
    for i, n, h, w, c in np.ndindex(small):
        at = np.s_[i, n, 2 * h : 2 * h + 2, 2 * w : 2 * w + 2, c]
        pooled[i, n, h, w, c] = x[at].max()
        equal = x[at] == x[at].max()
        with np.errstate(invalid="ignore", divide="ignore"):
            selected[i, n, h, w, c] = t[at][equal].sum() / np.float32(equal.sum())
            scattered[at] = np.where(equal, g[i, n, h, w, c] / equal.sum(), 0)
    x, pooled, t, g = map(jnp.asarray, (x, pooled, t, g))
    close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
    for function in (lambda f, *a: f(*a), lambda f, *a: jax.jit(f)(*a)):
        close(function(select, x, pooled, t), selected)
        close(function(scatter, x, pooled, g), scattered)
    x16, pooled16, t16 = (a.astype(jnp.bfloat16) for a in (x, pooled, t))
    assert select(x16, pooled16, t16).dtype == jnp.bfloat16


def test_accelerators_get_their_form_of_the_derivative_of_max_pool(monkeypatch):
    """Windows with axes of length 2, `[..., 2, W / 2, 2, C]`, are a form for CPUs."""

    def windows(function, target, platform):
        """Whether the gradient has such an axis."""
        with platforms.tracing_for(target):
            gradient = jax.jit(jax.grad(lambda x: jnp.sum(function(x) ** 2)))
            traced = gradient.trace(jax.ShapeDtypeStruct((3, 8, 12, 5), jnp.float32))
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        return "4x2x6x2x5x" in program

    def in_a_block(x):
        return ops.pool_moments(x, jnp.ones(5))[0]

    monkeypatch.setattr(native, "available", lambda *operands: False)
    for function in (ops.max_pool, in_a_block):
        assert windows(function, "cpu", "cpu")
        for platform in ("cuda", "tpu"):
            assert not windows(function, "accelerator", platform)
    # Pooling in a block of a network chooses when it is lowered.
    assert not windows(in_a_block, "cpu", "tpu")


def test_both_derivatives_of_max_pool_agree():
    """The one that is traced for accelerators runs on a CPU too."""
    (x, t) = draw(8, (2, 3, 5, 7, 2), (2, 3, 5, 7, 2))

    def derivatives(x, t):
        value = lambda x: jnp.sum(jnp.sin(ops.max_pool(x)) ** 2)  # noqa: E731
        gradient = jax.grad(value)
        reverse_twice = jax.grad(lambda x: jnp.vdot(gradient(x), t))
        forward = jax.jvp(ops.max_pool, (x,), (t,))[1]
        return gradient(x), jax.jvp(gradient, (x,), (t,))[1], reverse_twice(x), forward

    expected = jax.jit(jax.vmap(derivatives))(x, t)
    with platforms.tracing_for("accelerator"):
        got = jax.jit(jax.vmap(lambda *a: derivatives(*a)))(x, t)
    assert_close(got, expected, 1e-6)


def test_a_window_with_nan_has_the_derivative_nan():
    x = jnp.asarray([[jnp.nan, 1.0, 2.0, 3.0], [0.0, 1.0, 4.0, 0.0]])[None, :, :, None]
    assert np.isnan(ops.max_pool(x)).ravel().tolist() == [True, False]
    _, tangent = jax.jvp(ops.max_pool, (x,), (jnp.ones_like(x),))
    assert np.isnan(tangent).ravel().tolist() == [True, False]
    assert float(tangent[0, 0, 1, 0]) == 1.0


@pytest.mark.parametrize("shape", [(6, 4, 5, 3), (7, 8)])
def test_moments_and_normalization_equal_numpy(shape):
    x, scale, offset = draw(4, shape, shape[-1:], shape[-1:])
    flat = np.asarray(x, np.float64).reshape(-1, shape[-1])
    mean, var = ops.batch_moments(x)
    np.testing.assert_allclose(mean, flat.mean(0), atol=1e-5)
    np.testing.assert_allclose(var, flat.var(0), atol=1e-5)
    by_hand = (np.asarray(x) - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5)
    out = ops.normalise(x, mean, var, scale, offset, 1e-5)
    np.testing.assert_allclose(out, by_hand * scale + offset, atol=1e-4)

    weight = np.zeros(shape[0])
    weight[[0, 2, 3]] = 1.0
    kept = np.asarray(x, np.float64)[[0, 2, 3]].reshape(-1, shape[-1])
    mean, var = ops.batch_moments(x, jnp.asarray(weight, jnp.float32))
    np.testing.assert_allclose(mean, kept.mean(0), atol=1e-5)
    np.testing.assert_allclose(var, kept.var(0), atol=1e-5)


def test_moments_with_a_mean_much_larger_than_the_deviation():
    x = np.random.default_rng(0).normal(10_000.0, 1.0, (50, 4)).astype(np.float32)
    mean, var = ops.batch_moments(jnp.asarray(x))
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(var, x.astype(np.float64).var(0), rtol=1e-3)
    _, var = ops.batch_moments(jnp.full((50, 4), 1000.1, jnp.float32))
    assert (np.asarray(var) >= 0).all()


def test_unit_length_and_its_derivatives():
    h = jax.random.normal(jax.random.key(0), (5, 4))
    out = ops.unit(h)
    by_loop = np.stack([row / np.linalg.norm(row) for row in np.asarray(h)])
    np.testing.assert_allclose(out, by_loop, rtol=1e-6)
    test_util.check_grads(ops.unit, (h,), order=2, atol=1e-2, rtol=1e-2)
    zero = jnp.zeros((1, 4))
    np.testing.assert_array_equal(ops.unit(zero), 0.0)
    gradient = jax.jit(jax.grad(lambda h: ops.unit(h).sum()))
    assert np.isfinite(gradient(zero)).all()
    each = jax.vmap(gradient)(h[:, None])[:, 0]
    np.testing.assert_allclose(each, gradient(h), rtol=1e-5, atol=1e-6)


FUNCTIONS = {
    "max_pool": (ops.max_pool, [(2, 4, 5, 3)]),
    "pool_moments": (
        lambda x: ops.pool_moments(x, jnp.array([1.0, -1.0, 1.0])),
        [(2, 4, 5, 3)],
    ),
    "batch_moments": (ops.batch_moments, [(6, 3)]),
    "weighted_moments": (
        lambda x: ops.batch_moments(x, jnp.array([1.0, 0.0, 1.0, 1.0])),
        [(4, 2, 3)],
    ),
    "normalise": (
        lambda x, mean, scale, offset: ops.normalise(
            x, mean, jnp.exp(mean), scale, offset
        ),
        [(4, 3), (3,), (3,), (3,)],
    ),
    "unit": (ops.unit, [(4, 3)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jit_vmap_and_derivatives(name):
    function, shapes = FUNCTIONS[name]
    arrays = draw(7, *((2, *shape) for shape in shapes))
    together = jax.jit(jax.vmap(function))(*arrays)
    for index in range(2):
        alone = function(*(a[index] for a in arrays))
        assert_close(jax.tree.map(lambda leaf, i=index: leaf[i], together), alone, 1e-5)
    one_task = [a[0] for a in arrays]
    test_util.check_grads(jax.jit(function), one_task, order=2, atol=2e-2, rtol=2e-2)


@pytest.mark.parity
@pytest.mark.parametrize("strides", [1, 2])
def test_conv2d_equals_pytorch(strides):
    torch = pytest.importorskip("torch")
    x, kernel = draw(5, (3, 9, 9, 4), (3, 3, 4, 6))
    ours = jax.grad(lambda k: jnp.sum(ops.conv2d(x, k, strides=strides) ** 2))(kernel)
    their_x = torch.from_numpy(np.array(x)).permute(0, 3, 1, 2)
    their_kernel = torch.from_numpy(np.array(kernel)).permute(3, 2, 0, 1)
    their_kernel.requires_grad_()
    out = torch.nn.functional.conv2d(their_x, their_kernel, stride=strides, padding=1)
    (out**2).sum().backward()
    assert_close(ours, jnp.asarray(their_kernel.grad.permute(2, 3, 1, 0).numpy()))
