r"""Max-pooling and the moments of its input, in one pass over the data.

A block of a convolutional network reads its largest array, the output $y$ of the
convolution, for the moments of batch-norm and for pooling, and again for the derivative
of both. Here that is one pass forward and one pass backward. Three primitives provide
derivatives of every order in forward and reverse mode:

* `pool_moments`: $F(y) = (S_y y, \mu, \sigma^2)$, where $S_y$ selects the maxima;
* its tangent: $J_y(t) = (S_y t, \overline{t}, 2 \overline{(y - \mu) t})$;
* its cotangent: $J_y^T(p, m, v) = S_y^T p + (m + 2 v (y - \mu)) / M$.

$S_y$ is piecewise constant, so $J$ and $J^T$ depend on $y$ only through $y - \mu$. All
have a leading axis of groups: y `[G, N, H, W, C]`, pooled `[G, N, H/2, W/2, C]`, and
`[G, C]` per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chex
import jax
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad

from mlti_jax.ops._groups import bind, is_zero, register
from mlti_jax.ops._max_pool import max_pool, scatter, select
from mlti_jax.ops._normalization import batch_moments

_POSITIONS = (1, 2, 3)  # axes of y that the moments are taken over


def pool_moments(x: Array, sign: Array) -> tuple[Array, Array, Array]:
    r"""Pool the input of a batch normalization, and compute its moments.

    $$p_{nhwc} = s_c \max_{i, j \in \{0, 1\}} s_c \, x_{n,\, 2h + i,\, 2w + j,\, c},
      \quad \mu_c = \overline{x}_c, \quad \sigma^2_c = \overline{(x_c - \mu_c)^2}$$

    The same as `max_pool` and `batch_moments`, in one pass over `x`. Equal entries of a
    window share the derivative equally.

    Args:
      x: `[N, H, W, C]`.
      sign: $s$, `[C]`: 1 for the maximum, -1 for the minimum of a channel.

    Returns:
      `(pooled [N, H // 2, W // 2, C], mean [C], variance [C])`.

    Raises:
      AssertionError: if `x` is not of rank 4 or `sign` is not of rank 1.

    Examples:
      >>> import jax.numpy as jnp
      >>> from mlti_jax import ops
      >>> x = jnp.array([[1.0, 2.0], [4.0, 5.0]])[None, :, :, None]
      >>> [a.ravel().tolist() for a in ops.pool_moments(x, -jnp.ones(1))]
      [[1.0], [3.0], [2.5]]
    """
    chex.assert_rank([x, sign], [4, 1])
    out = bind(_forward_p, x[None], sign.astype(x.dtype)[None])
    pooled, mean, variance = (leaf[0] for leaf in out)
    return pooled, mean, variance


# The JAX forms, for accelerators and without a compiler.


def _forward(y: Array, sign: Array) -> list[Array]:
    mean, variance = jax.vmap(batch_moments)(y)
    sign = sign[:, None, None, None]
    return [sign * jax.vmap(max_pool)(sign * y), mean, variance]


def _tangent(y: Array, pooled: Array, mean: Array, t: Array) -> list[Array]:
    by_pooling = select(y, pooled, t)
    return [by_pooling, t.mean(_POSITIONS), _variance_tangent(y, mean, t)]


def _cotangent(
    y: Array,
    pooled: Array,
    mean: Array,
    by_pooled: Array,
    by_mean: Array,
    by_var: Array,
) -> Array:
    constant, slope = (_spread(a, y) for a in (by_mean, 2 * by_var))
    scattered = scatter(y, pooled, by_pooled)
    return scattered + constant + slope * _centered(y, mean)


def _centered(y: Array, mean: Array) -> Array:
    return y - mean[:, None, None, None]


def _spread(a: Array, y: Array) -> Array:
    """Distribute a cotangent of means `[G, C]` over the positions of y."""
    positions = y.shape[1] * y.shape[2] * y.shape[3]
    return a[:, None, None, None] / positions


def _variance_tangent(y: Array, mean: Array, t: Array) -> Array:
    return 2 * (_centered(y, mean) * t).mean(_POSITIONS)


# The primitives.

_forward_p = Primitive("pool_moments")
_tangent_p = Primitive("pool_moments_tangent")
_cotangent_p = Primitive("pool_moments_cotangent")
_forward_p.multiple_results = _tangent_p.multiple_results = True


@_forward_p.def_abstract_eval
def _forward_shapes(y: ShapedArray, sign: ShapedArray) -> list[ShapedArray]:
    groups, images, height, width, channels = y.shape
    chex.assert_shape(sign, (groups, channels))
    pooled = y.update(shape=(groups, images, height // 2, width // 2, channels))
    return [pooled, sign, sign]


@_tangent_p.def_abstract_eval
def _tangent_shapes(
    y: ShapedArray, pooled: ShapedArray, mean: ShapedArray, t: ShapedArray
) -> list[ShapedArray]:
    chex.assert_equal(y.shape, t.shape)
    return [pooled, mean, mean]


@_cotangent_p.def_abstract_eval
def _cotangent_shape(y: ShapedArray, *others: ShapedArray) -> ShapedArray:
    return y


def _forward_jvp(
    primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[list[Array], list[Any]]:
    y, sign = primals
    out = bind(_forward_p, y, sign)
    if is_zero(tangents[0]):
        return out, [ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in out]
    pooled, mean, _ = out
    return out, bind(_tangent_p, y, pooled, mean, tangents[0])


def _centered_tangent(y_t: Any, mean_t: Any) -> Array:
    """Tangent of `y - mean`."""
    return _centered(ad.instantiate_zeros(y_t), ad.instantiate_zeros(mean_t))


def _tangent_jvp(
    primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[list[Array], list[Any]]:
    y, pooled, mean, t = primals
    y_t, _, mean_t, t_t = tangents
    out = bind(_tangent_p, *primals)
    tangent = bind(_tangent_p, y, pooled, mean, ad.instantiate_zeros(t_t))
    if not (is_zero(y_t) and is_zero(mean_t)):
        by_y = 2 * (_centered_tangent(y_t, mean_t) * t).mean(_POSITIONS)
        tangent = [*tangent[:2], tangent[2] + by_y]
    return out, tangent


def _cotangent_jvp(
    primals: Sequence[Array], tangents: Sequence[Any]
) -> tuple[Array, Array]:
    y, pooled, mean, _, _, by_var = primals
    y_t, _, mean_t, *cotangents_t = tangents
    out = bind(_cotangent_p, *primals)
    rest = map(ad.instantiate_zeros, cotangents_t)
    tangent = bind(_cotangent_p, y, pooled, mean, *rest)
    if not (is_zero(y_t) and is_zero(mean_t)):
        tangent += _spread(2 * by_var, y) * _centered_tangent(y_t, mean_t)
    return out, tangent


def _tangent_transpose(
    cotangents: Sequence[Any], y: Array, pooled: Array, mean: Array, t: Any
) -> list[Array | None]:
    values = map(ad.instantiate_zeros, cotangents)
    return [None, None, None, bind(_cotangent_p, y, pooled, mean, *values)]


def _cotangent_transpose(
    cotangent: Any, y: Array, pooled: Array, mean: Array, *linear: Any
) -> list[Array | None]:
    values = bind(_tangent_p, y, pooled, mean, ad.instantiate_zeros(cotangent))
    wanted = map(ad.is_undefined_primal, linear)
    return [
        *(None, None, None),
        *(v if w else None for v, w in zip(values, wanted, strict=True)),
    ]


register(_forward_p, _forward, "PoolMoments", _forward_jvp)
register(_tangent_p, _tangent, "PoolMomentsTangent", _tangent_jvp)
register(_cotangent_p, _cotangent, "PoolMomentsCotangent", _cotangent_jvp)
ad.primitive_transposes[_tangent_p] = _tangent_transpose
ad.primitive_transposes[_cotangent_p] = _cotangent_transpose
