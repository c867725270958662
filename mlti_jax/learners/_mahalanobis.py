r"""Classes as Gaussians: distances that know how a class varies.

As in Simple CNAPS (Bateni et al. 2020), and in the prototypical network of FS-Mol: the
covariance of a class with few samples leans on that of the whole support set.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mlti_jax.types import Array, Batch


def mahalanobis(query_h: Array, support: Batch) -> Array:
    r"""Compute $(q_k - c_r)^\top Q_r^{-1} (q_k - c_r)$ for each query and class.

    $c_r$ is the mean of class r, $S_r$ its covariance, $S$ the covariance of all
    classes (both with Bessel's correction), and

    $$Q_r = \lambda_r S_r + (1 - \lambda_r) S + I, \quad
      \lambda_r = \frac{n_r}{n_r + 1}$$

    with $n_r$ the sum of the weights of class r, so classes may differ in size.

    Args:
      query_h: embedded queries, `[N_q, D]`.
      support: the support set; embeddings `[N, D]` as x, labels `[N, C]`, weights.

    Returns:
      Squared distances, `[N_q, C]`. A class without samples is at the origin.
    """
    x = support.x
    weight = jnp.ones(x.shape[0]) if support.weight is None else support.weight

    def to_class(share: Array) -> Array:
        n = share.sum()
        centre = _mean(x, share)
        trust = n / (n + 1)
        # Q = I + rows^T diag(scale) rows
        rows = jnp.concatenate([x - centre, x - _mean(x, weight)])
        scale = jnp.concatenate(
            [
                trust * share / _degrees_of_freedom(n),
                (1 - trust) * weight / _degrees_of_freedom(weight.sum()),
            ]
        )
        return _squared_lengths(query_h - centre, rows, scale)

    with jax.default_matmul_precision("highest"):
        return jax.vmap(to_class, out_axes=1)((support.y * weight[:, None]).T)


def nearest_gaussian(support: Batch, query_h: Array) -> Array:
    r"""Classify with $p(r|x) \propto \exp(-d^2(f(x), c_r))$, `mahalanobis` as $d^2$."""
    return -mahalanobis(query_h, support)


def _mean(x: Array, weight: Array) -> Array:
    return weight @ x / jnp.maximum(weight.sum(), 1e-12)


def _degrees_of_freedom(n: Array) -> Array:
    # A single sample has no covariance: its sum of squares is 0.
    return jnp.maximum(n - 1, 1.0)


def _squared_lengths(v: Array, rows: Array, scale: Array) -> Array:
    r"""Compute $v_k^\top (I + R^\top W R)^{-1} v_k$ for `v [K, D]`, `[K]`.

    With fewer rows than dimensions, in the space of the rows (Woodbury). That system is
    not symmetric, but unlike $\sqrt W$ it has derivatives at zero weights.
    """
    size, dimensions = rows.shape
    if size >= dimensions:
        covariance = jnp.eye(dimensions) + (rows.T * scale) @ rows
        lower = jnp.linalg.cholesky(covariance)
        whitened = jax.scipy.linalg.solve_triangular(lower, v.T, lower=True)
        return jnp.sum(whitened**2, axis=0)
    system = jnp.eye(size) + (rows @ rows.T) * scale
    products = rows @ v.T
    explained = jnp.sum(
        products * scale[:, None] * jnp.linalg.solve(system, products), axis=0
    )
    return jnp.sum(v**2, axis=-1) - explained
