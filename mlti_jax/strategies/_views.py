r"""Task views: every training task sees its inputs through a random view of its own.

This strategy is ours. A *view* is a random change of inputs that does not change what
the labels mean *within* a task, as long as support and query are changed alike:

* vectors `[N, D]`: a random subset of the features is kept. The probability p to keep a
  feature is drawn from U(low, 1), and kept features are divided by p, so that the
  expectation of every feature is unchanged;
* images `[N, H, W, C]`: a random order of the channels, a factor for each channel, a
  horizontal flip, a rotation by a multiple of 90 degrees and a shift;
* token ids with a mask: a random subset of the vocabulary is kept, with a probability
  drawn from U(low, 1); all other words are dropped wherever they occur.

With few tasks, a learner can solve the training tasks with the features that separate
their classes. A view takes some of them away, for the whole task, so other features
must be used. If each sample has a view of its own (`level="sample"`), this is input
dropout with a random rate, and ordinary augmentation for images: the baseline that
shows what it is worth that a task shares its view.

Views are drawn in training only; new tasks are seen as they are. A strategy that mixes
tasks gets the views: partners each keep their own, and a task has one view in a step,
also if it is the partner of several others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from mlti_jax._internal.checks import unknown_name
from mlti_jax.errors import InputError
from mlti_jax.strategies._base import Strategy
from mlti_jax.types import Array, Batch, PyTree, Task

LEVELS = ("task", "sample")
# (key, one sample) -> the same sample in the view of this key
View = Callable[[Array, PyTree], PyTree]


def views(
    *,
    level: str = "task",
    low: float = 0.3,
    permute_channels: bool = True,
    jitter: float = 0.2,
    flip: bool = True,
    rotate: bool = True,
    shift: float = 0.1,
) -> Strategy:
    """Change the inputs of every task at random, in the same way in support and query.

    Which options apply depends on the inputs: `low` on vectors and tokens, the others
    on images. If a change carries information in your tasks, for example the direction
    of an image in regression of angles, disable it.

    Args:
      level: `task` draws one view for all samples of a task, `sample` one for each.
      low: features and words are kept with a probability drawn from U(low, 1); above 0,
        and 1 keeps all.
      permute_channels: whether to permute the channels of images.
      jitter: channels of images are multiplied with factors from U(1 - jitter,
        1 + jitter); in [0, 1).
      flip: whether to mirror images left to right, with probability 1/2.
      rotate: whether to rotate images by 0, 90, 180 or 270 degrees; images that are not
        square by 0 or 180.
      shift: images are shifted along both axes by up to this share of their size, and
        the border is repeated; in [0, 1).

    Examples:
      >>> views(low=0.5).name
      'views'
    """
    if level not in LEVELS:
        raise unknown_name("level of views", level, LEVELS)
    if not 0 < low <= 1:
        raise InputError(f"strategy.views.low must be above 0, up to 1, got {low}")
    for name, value in (("jitter", jitter), ("shift", shift)):
        if not 0 <= value < 1:
            raise InputError(f"strategy.views.{name} must be in [0, 1), got {value}")
    of_image = partial(
        change_image,
        permute_channels=permute_channels,
        jitter=jitter,
        flip=flip,
        rotate=rotate,
        shift=shift,
    )

    def augment(key: Array, task: Task) -> Task:
        view = _view_of(task.support.x, low, of_image)
        key_support, key_query = key, key
        if level == "sample":
            key_support, key_query = jax.random.split(key)

        def seen(key: Array, batch: Batch) -> Batch:
            if level == "task":
                return batch.replace(x=jax.vmap(partial(view, key))(batch.x))
            keys = jax.random.split(key, batch.y.shape[0])
            return batch.replace(x=jax.vmap(view)(keys, batch.x))

        return task.replace(
            support=seen(key_support, task.support), query=seen(key_query, task.query)
        )

    return Strategy(name="views", augment=augment)


def _view_of(x: PyTree, low: float, of_image: View) -> View:
    """Return the view for samples of this kind, every leaf `[N, ...]`."""
    if isinstance(x, dict) and {"ids", "mask"} <= set(x):
        return partial(drop_words, low=low)
    shape = getattr(x, "shape", type(x).__name__)
    if not hasattr(x, "ndim") or x.ndim not in (2, 4):
        raise InputError(
            "views change vectors [N, D], images [N, H, W, C], or token ids with a "
            f"mask, got {shape}; use another strategy"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(
            f"views scale features, and these are integers ({x.dtype}); convert them "
            "to floating point, or give token ids as {'ids', 'mask'}"
        )
    return partial(keep_features, low=low) if x.ndim == 2 else of_image


def keep_features(key: Array, x: Array, low: float) -> Array:
    r"""Keep a random subset of features: $x \circ m / p$, $m_d \sim$ Bernoulli(p).

    Args:
      key: PRNG key.
      x: one sample `[D]`.
      low: p is drawn from U(low, 1).
    """
    key_rate, key_mask = jax.random.split(key)
    rate = jax.random.uniform(key_rate, minval=low, maxval=1.0)
    mask = jax.random.bernoulli(key_mask, rate, x.shape)
    return jnp.where(mask, x / rate.astype(x.dtype), jnp.zeros((), x.dtype))


def drop_words(key: Array, x: PyTree, low: float) -> PyTree:
    """Keep a random subset of the vocabulary; the other words become padding.

    The first token of a text is always kept. It may be a special one, such as the
    `[CLS]` of ALBERT, and a text must not become empty. Kept words are not scaled,
    because networks average over the words of a text.

    Args:
      key: PRNG key.
      x: one text, `ids` and `mask` `[T]`.
      low: words are kept with a probability drawn from U(low, 1).
    """
    key_rate, key_words = jax.random.split(key)
    rate = jax.random.uniform(key_rate, minval=low, maxval=1.0)

    def is_kept(word: Array) -> Array:  # The same wherever the word occurs.
        return jax.random.bernoulli(jax.random.fold_in(key_words, word), rate)

    kept = jax.vmap(is_kept)(x["ids"]).at[0].set(True)
    return {**x, "mask": jnp.where(kept, x["mask"], jnp.zeros_like(x["mask"]))}


def change_image(
    key: Array,
    x: Array,
    *,
    permute_channels: bool,
    jitter: float,
    flip: bool,
    rotate: bool,
    shift: float,
) -> Array:
    """Permute and scale channels, flip, rotate and shift one image `[H, W, C]`.

    Options as in `views`.
    """
    keys = jax.random.split(key, 5)
    height, width, channels = x.shape
    if permute_channels:
        x = x[:, :, jax.random.permutation(keys[0], channels)]
    if jitter > 0:
        factors = jax.random.uniform(
            keys[1], (channels,), x.dtype, 1 - jitter, 1 + jitter
        )
        x = x * factors
    if flip:
        x = jnp.where(jax.random.bernoulli(keys[2]), x[:, ::-1], x)
    if rotate:
        quarters = range(4) if height == width else (0, 2)
        turned = jnp.stack([jnp.rot90(x, number) for number in quarters])
        x = turned[jax.random.randint(keys[3], (), 0, len(quarters))]
    reach = int(shift * height), int(shift * width)
    if any(reach):
        for axis, (key_axis, most) in enumerate(
            zip(jax.random.split(keys[4]), reach, strict=True)
        ):
            start = jax.random.randint(key_axis, (), -most, most + 1)
            rows = jnp.arange(x.shape[axis]) + start
            x = jnp.take(x, rows, axis=axis, mode="clip")
    return x
