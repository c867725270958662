"""Floating-point operations of a training step, counted by hand.

XLA counts the body of a loop only once. This count includes the products of the layers,
with two operations per multiply-add. Everything else (normalization, pooling,
interpolation, distances, update rules) is comparatively small or bound by memory. The
count follows the textbook form of each method: an implementation that needs fewer
products for the same result reaches a higher rate.
"""

from __future__ import annotations

from itertools import pairwise

from experiments.benchmark.cases import Case
from mlti_jax.backbones._pose import (
    ADAPTIVE_BLOCKS,
    ADAPTIVE_FILTERS,
    FIXED_FILTERS,
    INNER_SIZE,
)


def conv4_flops(case: Case) -> list[float]:
    r"""Forward operations of each block for one image.

    Block $l$ (from 0) has $\lfloor H / 2^l \rfloor \lfloor W / 2^l \rfloor$ positions.
    At each it multiplies $3 \times 3 \times C_l$ inputs with $F$ filters, where $C_0$
    is the number of color channels and otherwise $C_l = F$:

    $$2 \lfloor H / 2^l \rfloor \lfloor W / 2^l \rfloor \cdot 9 C_l F$$

    For 28 x 28 x 3 and F = 32: 1.355, 3.613, 0.903 and 0.166 million.
    """
    height, width, channels = case.image_shape
    return [
        _convolution((height >> block) * (width >> block), inputs, case.filters)
        for block, inputs in enumerate([channels, *3 * [case.filters]])
    ]


def mlp_flops(case: Case) -> list[float]:
    """Forward operations of each block for one sample: 2 x inputs x outputs."""
    return [2.0 * a * b for a, b in pairwise([*case.image_shape, *case.hidden])]


def resnet12_flops(case: Case) -> list[float]:
    """Forward operations of each block for one image: three 3x3 and one 1x1."""
    height, width, channels = case.image_shape
    blocks = []
    for number, (inputs, outputs) in enumerate(
        pairwise([channels, *case.block_filters])
    ):
        positions = (height >> number) * (width >> number)
        widths = [inputs, *3 * [outputs]]
        block = sum(_convolution(positions, a, b) for a, b in pairwise(widths))
        blocks.append(block + _convolution(positions, inputs, outputs, side=1))
    return blocks


def pose_flops(case: Case) -> list[float]:
    """Forward operations of each layer for one image; see `backbones.pose`."""
    size, _, channels = case.image_shape
    fixed = [max(1, round(case.width * filters)) for filters in FIXED_FILTERS]
    adaptive = max(1, round(case.width * ADAPTIVE_FILTERS))
    sides = (size // 2, size // 4, size // 16)  # of the fixed convolutions' outputs
    layers = [
        _convolution(side**2, a, b)
        for side, (a, b) in zip(sides, pairwise([channels, *fixed]), strict=True)
    ]
    layers.append(2.0 * sides[-1] ** 2 * fixed[-1] * INNER_SIZE**2)
    widths = [1, *ADAPTIVE_BLOCKS * [adaptive]]
    return layers + [_convolution(INNER_SIZE**2, a, b) for a, b in pairwise(widths)]


FORWARD = {
    "conv4": conv4_flops,
    "mlp": mlp_flops,
    "resnet12": resnet12_flops,
    "pose": pose_flops,
}


def step_flops(case: Case) -> float:
    r"""Operations of a whole step: all tasks, forward and backward.

    A product $h W$ has two derivatives, each a product of the same size: with respect
    to $W$, and with respect to $h$ unless $h$ is the input of the network. With $F$
    forward operations per sample, a shared layer therefore takes $3F$ per sample (the
    first layer $2F$). An inner step computes, for each support sample, the product, its
    derivative with respect to $W$ and, above the first adapted layer, with respect to
    $h$. Each of these three is again a product with two derivatives in the outer
    backward pass: $9F$ (first adapted layer: $6F$) per inner step. Finally, each query
    sample takes $3F$.
    """
    layers = FORWARD[case.backbone](case)
    first = len(layers)
    if case.adapts:
        if case.learner != "anil":
            first = case.first_adapted
        layers = [*layers, 2.0 * _features(case) * case.ways]
    support, query = case.ways * case.shots, case.ways * case.queries
    total = 0.0
    for number, forward in enumerate(layers):
        with_derivatives = 3 if number > 0 else 2
        if number < first:
            products = with_derivatives * (support + query)
        else:
            inner = 2 * with_derivatives + (3 if number > first else 0)
            products = case.inner_steps * inner * support + with_derivatives * query
        total += products * forward
    return case.tasks * total


def _features(case: Case) -> int:
    """Number of inputs of the head."""
    if case.backbone == "mlp":
        return case.hidden[-1]
    if case.backbone == "conv4":
        height, width, _ = case.image_shape
        return (height >> 4) * (width >> 4) * case.filters
    if case.backbone == "resnet12":
        return case.block_filters[-1]
    return max(1, round(case.width * ADAPTIVE_FILTERS))


def _convolution(positions: int, inputs: int, outputs: int, side: int = 3) -> float:
    return 2.0 * positions * side**2 * inputs * outputs
