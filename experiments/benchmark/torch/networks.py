"""Networks in PyTorch, as lists of layers of which any contiguous part can be run.

A layer is a pair of functions. Its parameters are a separate list of tensors, which an
inner loop can replace: the weight of the linear map, then scale and shift of the
normalization; four such triples for a residual block; weight and bias for a plain
linear map. Images are `[N, C, H, W]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.cases import Case

# (input, scale [C], shift [C]) -> input, normalized with the batch statistics
Norm = Callable[[Tensor, Tensor, Tensor], Tensor]
Parameters = Sequence[Sequence[Tensor]]  # by layer

POSE_FIXED, POSE_ADAPTIVE, POSE_BLOCKS, POSE_INNER = (32, 48, 64), 64, 4, 14


class Layer(NamedTuple):
    """A layer without its parameters.

    Attributes:
      init: initializes the parameters.
      run: `(parameters, input [N, ...], norm) -> output [N, ...]`.
      dense: whether it is a fully connected block, which accepts a `LowRankWeight`.
    """

    init: Callable[[], list[Tensor]]
    run: Callable[[Sequence[Tensor], Tensor, Norm], Tensor]
    dense: bool = False


class LowRankWeight(NamedTuple):
    """A weight and a displacement of zero, to differentiate with respect to.

    For a linear map of few samples h with gradient `G = g.T @ h`, the derivative with
    respect to the displacement is `left @ G @ right.T`, computed from products with N
    rows instead of O or I.

    Attributes:
      weight: `[O, I]`.
      displacement: `[O, I]`, zeros.
      left: `[O, O]`.
      right: `[I, I]`.
    """

    weight: Tensor
    displacement: Tensor
    left: Tensor
    right: Tensor

    def map(self, h: Tensor) -> Tensor:
        """Apply the displaced weight to `h [N, I]`."""
        moved = F.linear(F.linear(h, self.right), self.displacement) @ self.left
        return F.linear(h, self.weight) + moved


def fused_norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch normalization as one call; `h` is `[N, C]` or `[N, C, H, W]`."""
    return F.batch_norm(h, None, None, scale, shift, training=True)


def composed_norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch normalization from simple operations, for `torch.func`.

    Under `vmap`, the second derivative of `F.batch_norm` with `torch.func.grad` treats
    the statistics as constants: the loss is correct, but the meta-gradient is not.
    """
    axes = [0, *range(2, h.ndim)]
    var, mean = torch.var_mean(h, axes, correction=0, keepdim=True)
    shape = (-1, *(1,) * (h.ndim - 2))
    factor = scale.reshape(shape) * torch.rsqrt(var + 1e-5)
    return torch.addcmul(shift.reshape(shape) - mean * factor, h, factor)


def run_layers(
    network: Sequence[Layer], parameters: Parameters, h: Tensor, norm: Norm = fused_norm
) -> Tensor:
    """Run consecutive layers on `h [N, ...]`, with one entry of `parameters` each."""
    for layer, own in zip(network, parameters, strict=True):
        h = layer.run(own, h, norm)
    return h


def make_network(case: Case) -> list[Layer]:
    """Layers of a case, including a linear head for learners with an inner loop."""
    blocks, features = NETWORKS[case.backbone](case)
    return [*blocks, linear(features, (case.ways,))] if case.adapts else blocks


def conv4(case: Case) -> tuple[list[Layer], int]:
    """Four blocks that halve the size; also returns the number of output features."""
    height, width, channels = case.image_shape
    widths = [channels] + [case.filters] * 4
    blocks = [conv_block(i, o, pool=True) for i, o in pairwise(widths)]
    return blocks, case.filters * (height // 16) * (width // 16)


def mlp(case: Case) -> tuple[list[Layer], int]:
    """Fully connected blocks."""
    widths = [*case.image_shape, *case.hidden]
    blocks = [dense_block(i, o, case.slope, case.dropout) for i, o in pairwise(widths)]
    return blocks, widths[-1]


def pose(case: Case) -> tuple[list[Layer], int]:
    """Three blocks that reduce the size 16-fold, a 14x14 map, and four blocks."""
    height, width, channels = case.image_shape
    fixed, adaptive = (
        [max(1, round(case.width * size)) for size in sizes]
        for sizes in (POSE_FIXED, [POSE_ADAPTIVE] * POSE_BLOCKS)
    )
    blocks = [
        conv_block(i, o, stride=2, pool=n == 1)
        for n, (i, o) in enumerate(pairwise([channels, *fixed]))
    ]
    features = fixed[-1] * (height // 16) * (width // 16)
    blocks.append(linear(features, (1, POSE_INNER, POSE_INNER)))
    blocks += [
        conv_block(i, o, mean=n == POSE_BLOCKS - 1)
        for n, (i, o) in enumerate(pairwise([1, *adaptive]))
    ]
    return blocks, adaptive[-1]


def resnet12(case: Case) -> tuple[list[Layer], int]:
    """Residual blocks, followed by the mean over positions."""
    widths = [case.image_shape[-1], *case.block_filters]
    last = len(case.block_filters) - 1
    blocks = [
        residual_block(i, o, mean=n == last)
        for n, (i, o) in enumerate(pairwise(widths))
    ]
    return blocks, widths[-1]


NETWORKS = {"conv4": conv4, "mlp": mlp, "pose": pose, "resnet12": resnet12}


def conv_block(
    inputs: int,
    filters: int,
    *,
    stride: int = 1,
    pool: bool = False,
    mean: bool = False,
) -> Layer:
    """3x3 convolution, norm, optional 2x2 max pooling, ReLU, optional global mean."""

    def run(own: Sequence[Tensor], h: Tensor, norm: Norm) -> Tensor:
        weight, scale, shift = own
        h = norm(F.conv2d(h, weight, stride=stride, padding=1), scale, shift)
        # ReLU commutes with the maximum, and after pooling has a quarter of the inputs.
        h = F.relu(F.max_pool2d(h, 2) if pool else h)
        return h.mean((2, 3)) if mean else h

    return Layer(partial(_normed, (filters, inputs, 3, 3)), run)


def dense_block(inputs: int, features: int, slope: float, dropout: float) -> Layer:
    """Linear map, norm, leaky ReLU, dropout: `[N, inputs]` to `[N, features]`."""

    def run(own: Sequence[Tensor], h: Tensor, norm: Norm) -> Tensor:
        weight, scale, shift = own
        moved = isinstance(weight, LowRankWeight)
        h = weight.map(h) if moved else F.linear(h, weight)
        h = norm(h, scale, shift)
        h = F.leaky_relu(h, slope) if slope else F.relu(h)
        return F.dropout(h, dropout) if dropout else h

    return Layer(partial(_normed, (features, inputs)), run, dense=True)


def residual_block(inputs: int, filters: int, *, mean: bool = False) -> Layer:
    """Three 3x3 convolutions with a 1x1 shortcut, pooling, optional global mean."""
    slope = 0.1

    def init() -> list[Tensor]:
        shapes = [(filters, i, 3, 3) for i in (inputs, filters, filters)]
        shapes.append((filters, inputs, 1, 1))
        return [tensor for shape in shapes for tensor in _normed(shape)]

    def run(own: Sequence[Tensor], h: Tensor, norm: Norm) -> Tensor:
        shortcut = norm(F.conv2d(h, own[9]), *own[10:])
        for first in (0, 3, 6):
            weight, scale, shift = own[first : first + 3]
            h = norm(F.conv2d(h, weight, padding=1), scale, shift)
            h = F.leaky_relu(h, slope) if first < 6 else h
        h = F.leaky_relu(F.max_pool2d(h + shortcut, 2), slope)
        return h.mean((2, 3)) if mean else h

    return Layer(init, run)


def linear(inputs: int, shape: tuple[int, ...]) -> Layer:
    """Flattens, applies a linear map and reshapes the outputs."""
    outputs = math.prod(shape)

    def run(own: Sequence[Tensor], h: Tensor, norm: Norm) -> Tensor:
        del norm
        return F.linear(h.flatten(1), *own).unflatten(1, shape)

    return Layer(lambda: [_weight((outputs, inputs)), torch.zeros(outputs)], run)


def _normed(shape: tuple[int, ...]) -> list[Tensor]:
    return [_weight(shape), torch.ones(shape[0]), torch.zeros(shape[0])]


def _weight(shape: tuple[int, ...]) -> Tensor:
    """Uniform in +-1/sqrt(fan in)."""
    return torch.nn.init.kaiming_uniform_(torch.empty(shape), a=math.sqrt(5))
