"""Step time of a user's network relative to the built-in one: table `own_network`.

Conv4 is written as a user would, as one ordinary Flax module of this package's
operations, and wrapped with `backbones.wrap`: as one module, whose last block and head
MAML adapts by their paths, and as a list of blocks. Sides are timed in turn in one
process; a ratio is that of the medians to `built_in`.

MAML computes what comes before the first adapted parameter outside its inner loop, also
within a module.
"""

from __future__ import annotations

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.benchmark import timing
from experiments.benchmark.cases import RAINBOW, Case, vanilla
from experiments.benchmark.program import compile_case
from mlti_jax import backbones, learners, ops

CASES = {
    "maml": vanilla(RAINBOW),
    "protonet": replace(vanilla(RAINBOW), learner="protonet"),
}


class OwnBlock(nn.Module):
    """3x3 convolution, batch-norm, 2x2 max-pooling, ReLU."""

    filters: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Map images `[N, H, W, C]` to `[N, H // 2, W // 2, filters]`."""
        size = (self.filters,)
        kernel = self.param(
            "kernel", nn.initializers.he_normal(), (3, 3, x.shape[-1], *size)
        )
        scale = self.param("scale", nn.initializers.ones, size)
        offset = self.param("offset", nn.initializers.zeros, size)
        mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        var = self.variable("batch_stats", "var", jnp.ones, size)
        x = ops.conv2d(x, kernel)
        moments = mean.value, var.value
        if train:
            moments = ops.batch_moments(x)
            count = x.size // x.shape[-1]
            mean.value = 0.9 * mean.value + 0.1 * moments[0]
            var.value = 0.9 * var.value + 0.1 * moments[1] * count / (count - 1)
        # Pooling first is less work; a negative scale turns a maximum into a minimum.
        sign = jnp.where(scale < 0, -1, 1).astype(x.dtype)
        x = sign * ops.max_pool(sign * x)
        return nn.relu(ops.normalise(x, *moments, scale, offset))


class OwnConv4(nn.Module):
    """Four blocks as one module."""

    filters: int = 32
    blocks: int = 4

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """Map images `[N, H, W, C]` to `[N, H', W', filters]`."""
        for _ in range(self.blocks):
            x = OwnBlock(self.filters)(x, train)
        return x


def sides(case: Case) -> dict[str, learners.Learner]:
    """The learner of a case on the built-in and on the wrapped networks."""
    options = {}
    if case.adapts:
        options = {"inner_learning_rate": case.inner_lr, "steps": case.inner_steps}

    def make(network: backbones.Stack, adapted: tuple[str, ...]) -> learners.Learner:
        own = {**options, "adapted": adapted} if case.adapts else options
        return learners.make(case.learner, network, case.ways, **own)

    one = backbones.wrap(OwnConv4(case.filters))
    blocks = backbones.wrap([OwnBlock(case.filters)] * 4)
    return {
        "built_in": learners.make(
            case.learner, backbones.conv4(case.filters), case.ways, **options
        ),
        "list_of_blocks": make(blocks, ("3/*", "head/*")),
        "one_module": make(one, ("0/OwnBlock_3/*", "head/*")),
    }


def measure(rounds: int, seconds: float) -> dict:
    """Time all sides of both learners; see `timing.time_sides`."""
    share = timing.CpuShare()
    rows = {}
    for name, case in CASES.items():
        steps = {
            side: compile_case(case, learner=learner).steps
            for side, learner in sides(case).items()
        }
        times = timing.time_sides(steps, rounds, seconds)
        spreads = {side: timing.spread(values) for side, values in times.items()}
        first = spreads["built_in"]["median_ms"]
        rows[name] = {
            side: {"time": spread, "ratio": spread["median_ms"] / first}
            for side, spread in spreads.items()
        }
    return {
        "case": "own_network",
        "kind": "own_network",
        "rows": rows,
        "others": share.of_others(),
    }


def table(result: dict) -> str:
    """Format a result, one line per learner and side."""
    lines = [
        "own_network: Conv4 on 28x28 images, relative to the built-in one; others "
        f"{timing.format_share(result['others'])}",
        f"{'ms':>53}{'ratio':>7}",
    ]
    for learner, row in result["rows"].items():
        for side, value in row.items():
            lines.append(
                f"  {learner:10} {side:15}{timing.format_spread(value['time']):>25}"
                f"{value['ratio']:>7.2f}"
            )
    return "\n".join(lines)
