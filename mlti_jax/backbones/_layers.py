"""Building blocks of the networks."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from mlti_jax import ops
from mlti_jax.backbones._stack import Context
from mlti_jax.errors import InputError
from mlti_jax.types import Array, PyTree

# Uniform in +-1/sqrt(fan in), as in the reference implementations.
uniform_fan_in = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def check_images(h: PyTree, pooled: bool = True) -> None:
    """Raise `InputError` unless `h` holds images, large enough for pooling."""
    shape = getattr(h, "shape", type(h).__name__)
    if not hasattr(h, "ndim") or h.ndim != 4:
        raise InputError(
            f"a convolution needs images [N, H, W, C], got {shape}; use the backbone "
            "mlp for vectors, or a text backbone"
        )
    if pooled and min(h.shape[1:3]) < 2:
        raise InputError(
            f"a block halves its images with pooling and got {shape}: the images are "
            "too small for this many blocks; use fewer blocks or larger images"
        )


def check_vectors(h: PyTree) -> None:
    """Raise `InputError` unless `h` holds vectors `[N, D]`."""
    if not hasattr(h, "ndim") or h.ndim != 2:
        raise InputError(
            "a fully connected block needs vectors [N, D], got "
            f"{getattr(h, 'shape', type(h).__name__)}; flatten the inputs, or use a "
            "backbone for images or text"
        )


class BatchNorm(nn.Module):
    """Batch normalization over all axes but the last.

    Training updates the running averages as `0.9 * old + 0.1 * new`, the variance
    with Bessel's correction. Statistics are computed in the dtype of the averages,
    whatever the dtype of the input.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self,
        x: Array | ops.Gated,
        context: Context,
        pool: bool = False,
        kernel: Array | None = None,
    ) -> Array:
        """Normalize `x`, or its convolution with a kernel.

        Args:
          x: `[N, ..., C]`, or a product with gates of this shape.
          context: how the network processes this set of samples.
          pool: whether to apply 2x2 max-pooling as well.
          kernel: `[kh, kw, C, O]`, if `x` is to be convolved first.

        Returns:
          `[N, ..., C]`, or O instead of C.
        """
        gated = None
        if isinstance(x, ops.Gated):
            lazy = pool and context.weight is None
            gated, x = (x if lazy else None), x.value()
        features = x.shape[-1] if kernel is None else kernel.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        offset = self.param("offset", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))
        needs_moments = context.batch_statistics or context.train
        at_once = pool and needs_moments and context.weight is None
        dtype = x.dtype if kernel is None else jnp.result_type(x, kernel)
        precise = jnp.promote_types(dtype, running_mean.value.dtype)
        if kernel is not None and not (at_once and dtype == precise):
            x, kernel = ops.conv2d(x, kernel), None
        x = x.astype(precise)
        # Normalization is monotone in each channel (the sign of the scale gives the
        # direction), so pooling first gives the same result for less work.
        sign = jnp.where(scale < 0, -1, 1).astype(x.dtype)
        pooled = x
        if at_once and kernel is not None:
            kernel = kernel.astype(precise)
            pooled, mean, var = ops.conv_pool_moments(x, kernel, sign)
        elif at_once and gated is not None and dtype == precise:
            pooled, mean, var = ops.gated_pool_moments(gated, sign)
        elif at_once:
            pooled, mean, var = ops.pool_moments(x, sign)
        else:
            if needs_moments:
                mean, var = ops.batch_moments(x, context.weight)
            if pool:
                pooled = sign * ops.max_pool(sign * x)
        if context.train:
            weight = context.weight
            samples = x.shape[0] if weight is None else weight.sum()
            count = samples * math.prod(x.shape[1:-1])
            unbiased = var * count / jnp.maximum(count - 1, 1)
            self._update(running_mean, mean)
            self._update(running_var, unbiased)
        if not context.batch_statistics:
            mean, var = running_mean.value, running_var.value
        out = ops.normalise(pooled, mean, var, scale, offset, self.epsilon)
        return out.astype(dtype)

    def _update(self, running: nn.Variable, new: Array) -> None:
        # The averages are used at test time only; no gradient flows through them.
        new = jax.lax.stop_gradient(new)
        running.value = self.momentum * running.value + (1 - self.momentum) * new


class ConvBlock(nn.Module):
    """3x3 convolution, batch-norm, 2x2 max-pooling, ReLU; halves the image size.

    Normalization and ReLU run after pooling, on a quarter of the data; all three are
    monotone, so the result is the same. The convolution has no bias because
    normalization would cancel it.
    """

    filters: int

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        check_images(h)
        shape = (3, 3, h.shape[-1], self.filters)
        kernel = self.param("kernel", uniform_fan_in, shape)
        norm = BatchNorm(name="norm")
        if context.hook is None:
            return nn.relu(norm(h, context, pool=True, kernel=kernel))
        out = context.linear_or_gated(h, kernel, ops.conv2d)
        return nn.relu(norm(out, context, pool=True))


class PlainConvBlock(nn.Module):
    """3x3 convolution, batch-norm, ReLU: `[N, H, W, C]` to `[N, H/s, W/s, filters]`.

    Attributes:
      filters: output channels.
      strides: stride s of the convolution.
      pool: whether to apply 2x2 max-pooling.
      mean: whether to average the output over positions, `[N, filters]`.
    """

    filters: int
    strides: int = 1
    pool: bool = False
    mean: bool = False

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        check_images(h, self.pool)
        shape = (3, 3, h.shape[-1], self.filters)
        kernel = self.param("kernel", uniform_fan_in, shape)
        conv = partial(ops.conv2d, strides=self.strides)
        out = context.linear_or_gated(h, kernel, conv)
        out = nn.relu(BatchNorm(name="norm")(out, context, self.pool))
        return out.mean(axis=(1, 2)) if self.mean else out


class ReshapingDense(nn.Module):
    """Flatten, map linearly, and reshape the outputs.

    Attributes:
      shape: shape of one sample's output.
    """

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        flat = h.reshape(h.shape[0], -1)
        outputs = math.prod(self.shape)
        kernel = self.param("kernel", uniform_fan_in, (flat.shape[-1], outputs))
        bias = self.param("bias", nn.initializers.zeros, (outputs,))
        out = context.linear(flat, kernel, ops.matmul) + bias
        return out.reshape(h.shape[0], *self.shape)


class DenseBlock(nn.Module):
    """Linear map, batch-norm, leaky ReLU, dropout: `[N, D]` to `[N, features]`.

    Attributes:
      features: size of the output.
      slope: slope of the leaky ReLU; 0 is ReLU.
      dropout: fraction of the outputs set to zero in training.
      norm: whether to apply batch-norm; if not, a bias is added.
    """

    # Inner loops can adapt a kernel that multiplies vectors with low-rank updates.
    dense_kernel: ClassVar[bool] = True

    features: int
    slope: float = 0.01
    dropout: float = 0.0
    norm: bool = True

    @nn.compact
    def __call__(self, h: Array, context: Context) -> Array:
        check_vectors(h)
        shape = (h.shape[-1], self.features)
        kernel = self.param("kernel", uniform_fan_in, shape)
        out = context.linear(h, kernel, ops.matmul)
        if self.norm:
            out = BatchNorm(name="norm")(out, context)
        else:
            out += self.param("bias", nn.initializers.zeros, (self.features,))
        out = nn.leaky_relu(out, self.slope)
        if self.dropout > 0:
            out = nn.Dropout(self.dropout)(out, deterministic=not context.train)
        return out


class Head(nn.Module):
    """Flatten and map linearly to `outputs` logits or targets."""

    outputs: int

    @nn.compact
    def __call__(self, h: PyTree, context: Context) -> Array:
        del context
        h = h.reshape(h.shape[0], -1)
        shape = (h.shape[-1], self.outputs)
        kernel = self.param("kernel", uniform_fan_in, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.outputs,))
        return ops.matmul(h, kernel) + bias
