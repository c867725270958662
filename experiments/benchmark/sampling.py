"""Time to draw tasks from pools of two sizes.

The cost should depend on the number of drawn images only, not on the size of the pool.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmark import timing
from mlti_jax.data import ClassPool, sample_task

CLASSES, SHAPE, TASKS = 8, (84, 84, 3), 4
EPISODE = {"ways": 5, "shots": 1, "queries": 15}
IMAGES_PER_CLASS = (600, 6000)  # miniImageNet has 600, ISIC's largest class 5,989


def make_sampler(images_per_class: int) -> timing.Steps:
    """Build a function that draws meta-batches and waits for the last."""
    index = np.arange(CLASSES * images_per_class).reshape(CLASSES, -1)
    x = np.random.default_rng(0).integers(0, 256, (index.size, *SHAPE), np.uint8)
    pool = ClassPool(
        x=jnp.asarray(x),
        index=jnp.asarray(index, jnp.int32),
        count=jnp.full(CLASSES, images_per_class, jnp.int32),
        classes=tuple(map(str, range(CLASSES))),
    )

    @jax.jit
    def draw(pool, key):
        keys = jax.random.split(key, TASKS)
        return jax.vmap(lambda k: sample_task(pool, k, **EPISODE))(keys)

    keys = jax.random.split(jax.random.key(0), 1000)
    done = 0

    def draws(count: int) -> None:
        nonlocal done
        for _ in range(count):
            tasks = draw(pool, keys[done % len(keys)])
            done += 1
        jax.block_until_ready(tasks)

    return draws


def measure(rounds: int, seconds: float) -> dict:
    """Measure milliseconds per meta-batch for each pool size, and their ratio."""
    share = timing.CpuShare()
    sides = {str(size): make_sampler(size) for size in IMAGES_PER_CLASS}
    times = timing.time_sides(sides, rounds, seconds)
    result = {name: timing.spread(values) for name, values in times.items()}
    small, large = (result[str(size)]["median_ms"] for size in IMAGES_PER_CLASS)
    return {
        "case": "sampling",
        "kind": "sampling",
        **result,
        "ratio": large / small,
        "others": share.of_others(),
    }


def table(result: dict) -> str:
    """Format a result."""
    lines = [
        f"sampling: {TASKS} tasks, 5-way 1-shot, 15 queries, 84x84 images; others "
        f"{timing.format_share(result['others'])}"
    ]
    for size in IMAGES_PER_CLASS:
        text = timing.format_spread(result[str(size)])
        lines.append(f"  {size:>5} images per class: {text} ms")
    lines.append(f"  ratio {result['ratio']:.2f}")
    return "\n".join(lines)
