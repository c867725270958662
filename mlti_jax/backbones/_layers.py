"""The modules that stacks are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlti_jax import ops
from mlti_jax.backbones._stack import LayerHook, Mode, run_linear
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

# Uniform in +-1/sqrt(fan in), the initialisation of the reference implementations.
uniform_fan_in = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def check_images(h: PyTree, pooled: bool = True) -> None:
    """Refuses what a convolution can't take, or an image too small to be pooled."""
    shape = getattr(h, "shape", type(h).__name__)
    if not hasattr(h, "ndim") or h.ndim != 4:
        raise InputError(
            f"a convolution takes images [N, H, W, C], got {shape}; use the backbone "
            "mlp for vectors, or one for text"
        )
    if pooled and min(h.shape[1:3]) < 2:
        raise InputError(
            f"a block halves its images by pooling, and got {shape}: the images are "
            "too small for so many blocks; use fewer, or larger images"
        )


def check_vectors(h: PyTree) -> None:
    """Refuses what a fully connected block can't take."""
    if not hasattr(h, "ndim") or h.ndim != 2:
        raise InputError(
            "a fully connected block takes vectors [N, D], got "
            f"{getattr(h, 'shape', type(h).__name__)}; flatten the inputs, or use a "
            "backbone for images or text"
        )


class BatchNorm(nn.Module):
    """Batch normalisation over all axes but the last.

    Running averages are updated in training as `0.9 * old + 0.1 * new`, the variance
    with Bessel's correction. Whatever the input's precision, statistics are computed
    in that of the averages.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self,
        x: Array,
        mode: Mode,
        weight: Array | None = None,
        pool: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Normalises `x`, and applies `pool`, a maximum over windows, to the result."""
        features = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        offset = self.param("offset", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))
        dtype = x.dtype
        x = x.astype(jnp.promote_types(dtype, running_mean.value.dtype))
        if mode.batch_statistics or mode.train:
            mean, var = ops.batch_moments(x, weight)
        if mode.train:
            samples = x.shape[0] if weight is None else weight.sum()
            count = samples * (x[0].size // features)
            unbiased = var * count / jnp.maximum(count - 1, 1)
            self._update(running_mean, mean)
            self._update(running_var, unbiased)
        if not mode.batch_statistics:
            mean, var = running_mean.value, running_var.value
        if pool is not None:
            # Before normalising, which then has less to do: it is monotone, upwards or
            # downwards by the sign of the scale.
            sign = jnp.where(scale < 0, -1, 1).astype(x.dtype)
            x = sign * pool(sign * x)
        out = ops.normalise(x, mean, var, scale, offset, self.epsilon)
        return out.astype(dtype)

    def _update(self, running: nn.Variable, new: Array) -> None:
        # The averages are read at test time only; no gradient goes through them.
        new = jax.lax.stop_gradient(new)
        running.value = self.momentum * running.value + (1 - self.momentum) * new


class ConvBlock(nn.Module):
    """3x3 convolution, batch-norm, 2x2 max-pooling, ReLU: `[N,H,W,C]` to half the size.

    Normalisation and ReLU come after the pooling, where there is a quarter of the data;
    all are monotone, so the result is the same. The convolution has no bias: the
    normalisation takes it away.
    """

    filters: int

    @nn.compact
    def __call__(
        self,
        h: Array,
        mode: Mode,
        weight: Array | None = None,
        hook: LayerHook | None = None,
    ) -> Array:
        check_images(h)
        shape = (3, 3, h.shape[-1], self.filters)
        kernel = self.param("kernel", uniform_fan_in, shape)
        out = run_linear(hook, h, kernel, ops.conv2d)
        return nn.relu(BatchNorm(name="norm")(out, mode, weight, ops.max_pool))


class PlainConvBlock(nn.Module):
    """3x3 convolution, batch-norm, ReLU: `[N, H, W, C]` to `[N, H/s, W/s, filters]`.

    Attributes:
      filters: output channels.
      strides: step s of the convolution.
      pool: whether 2x2 max-pooling follows.
      mean: whether the output is the mean over positions, `[N, filters]`.
    """

    filters: int
    strides: int = 1
    pool: bool = False
    mean: bool = False

    @nn.compact
    def __call__(
        self,
        h: Array,
        mode: Mode,
        weight: Array | None = None,
        hook: LayerHook | None = None,
    ) -> Array:
        check_images(h, self.pool)
        shape = (3, 3, h.shape[-1], self.filters)
        kernel = self.param("kernel", uniform_fan_in, shape)
        conv = partial(ops.conv2d, strides=self.strides)
        out = run_linear(hook, h, kernel, conv)
        pool = ops.max_pool if self.pool else None
        out = nn.relu(BatchNorm(name="norm")(out, mode, weight, pool))
        return out.mean(axis=(1, 2)) if self.mean else out


class ReshapingDense(nn.Module):
    """Flattens, maps linearly, and gives the outputs a shape.

    Attributes:
      shape: of one sample's output.
    """

    shape: tuple[int, ...]

    @nn.compact
    def __call__(
        self,
        h: Array,
        mode: Mode,
        weight: Array | None = None,
        hook: LayerHook | None = None,
    ) -> Array:
        del mode, weight
        flat = h.reshape(h.shape[0], -1)
        outputs = math.prod(self.shape)
        kernel = self.param("kernel", uniform_fan_in, (flat.shape[-1], outputs))
        bias = self.param("bias", nn.initializers.zeros, (outputs,))
        out = run_linear(hook, flat, kernel, jnp.matmul) + bias
        return out.reshape(h.shape[0], *self.shape)


class DenseBlock(nn.Module):
    """Linear map, batch-norm, leaky ReLU, dropout: `[N, D]` to `[N, features]`.

    Attributes:
      features: size of the output.
      slope: of the leaky ReLU; 0 is ReLU.
      dropout: share of the outputs set to zero in training.
      norm: whether there is a batch-norm; a bias stands in its place if not.
    """

    features: int
    slope: float = 0.01
    dropout: float = 0.0
    norm: bool = True

    @nn.compact
    def __call__(
        self,
        h: Array,
        mode: Mode,
        weight: Array | None = None,
        hook: LayerHook | None = None,
    ) -> Array:
        check_vectors(h)
        shape = (h.shape[-1], self.features)
        kernel = self.param("kernel", uniform_fan_in, shape)
        out = run_linear(hook, h, kernel, jnp.matmul)
        if self.norm:
            out = BatchNorm(name="norm")(out, mode, weight)
        else:
            out += self.param("bias", nn.initializers.zeros, (self.features,))
        out = nn.leaky_relu(out, self.slope)
        if self.dropout > 0:
            out = nn.Dropout(self.dropout)(out, deterministic=not mode.train)
        return out


class Head(nn.Module):
    """Flattens and maps linearly to `outputs` logits or targets."""

    outputs: int

    @nn.compact
    def __call__(
        self,
        h: PyTree,
        mode: Mode,
        weight: Array | None = None,
        hook: LayerHook | None = None,
    ) -> Array:
        del mode, weight, hook
        h = h.reshape(h.shape[0], -1)
        shape = (h.shape[-1], self.outputs)
        kernel = self.param("kernel", uniform_fan_in, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
        return h @ kernel + bias
