"""Add MLTI to your own training loop in Flax and optax, with about ten lines.

Everything except the lines marked `# MLTI` is a plain few-shot loop that does not use
this package: ProtoNet's loss (Snell et al. 2017), a small network, Adam, and episodes
of scikit-learn's digits in different orientations, three for training and four others
for testing. The marked lines interpolate the episodes of a step with each other, class
by class (Eq. 6 of the paper); `--alpha=0` disables them. The example shows how to do
it; such a small network on such small images is not expected to gain. Takes a few
seconds on a CPU:

    python -m experiments.examples.flax_loop
    python -m experiments.examples.flax_loop --alpha=0
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from mlti_jax import interpolation  # MLTI
from mlti_jax.types import Batch, Task  # MLTI

TRAIN, TEST = (0, 1, 2), (4, 5, 6, 7)  # orientations
WAYS, SHOTS, QUERIES = 3, 1, 5
EPISODES, TEST_EPISODES = 4, 600  # per training step, and for testing

# Support and query of an episode: x `[N, 64]` and one-hot y `[N, WAYS]` each.
Episode = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class Embedding(nn.Module):
    """A small embedding network."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Embed inputs `[N, 64]` as `[N, 32]`."""
        for _ in range(2):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(32)(x)


def oriented(images: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate images `[M, 8, 8]` by quarter turns, and mirror them from 4 on."""
    turned = np.rot90(images, orientation % 4, axes=(1, 2))
    mirrored = turned[:, :, ::-1] if orientation >= 4 else turned
    return mirrored.reshape(-1, 64)


def draw(rng: np.random.Generator, orientations: Sequence[int], number: int) -> Episode:
    """Draw episodes of one orientation each, stacked along the first axis."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    samples = {o: oriented(images, o) for o in orientations}
    rows = [np.flatnonzero(digits.target == digit) for digit in range(10)]

    def one() -> np.ndarray:
        x, classes = samples[rng.choice(orientations)], rng.permutation(10)[:WAYS]
        size = SHOTS + QUERIES
        return np.stack([x[rng.choice(rows[c], size, replace=False)] for c in classes])

    x = np.stack([one() for _ in range(number)])

    def labeled(x: np.ndarray) -> tuple[jax.Array, jax.Array]:
        y = np.eye(WAYS, dtype=np.float32).repeat(x.shape[2], axis=0)
        return jnp.asarray(x.reshape(number, -1, 64)), jnp.tile(y, (number, 1, 1))

    return labeled(x[:, :, :SHOTS]), labeled(x[:, :, SHOTS:])


def protonet(params: dict, episode: Episode) -> tuple[jax.Array, jax.Array]:
    """Return loss and accuracy on the queries of one episode."""
    (support_x, support_y), (query_x, query_y) = episode
    embed = Embedding().apply
    prototypes = support_y.T @ embed(params, support_x) / SHOTS
    distances = embed(params, query_x)[:, None] - prototypes[None]
    logits = -jnp.sum(distances**2, axis=-1)
    right = logits.argmax(axis=-1) == query_y.argmax(axis=-1)
    return optax.softmax_cross_entropy(logits, query_y).mean(), right.mean()


def interpolated(key: jax.Array, episodes: Episode, alpha: float) -> Episode:
    """Mix each episode with another of the same step, with one lambda per pair."""
    support, query = (Batch(x, y) for x, y in episodes)  # MLTI
    tasks = Task(support, query, domain=jnp.arange(EPISODES))  # MLTI
    keys = jax.random.split(key, EPISODES + 2)  # MLTI
    partners = interpolation.sample_partners(keys[0], tasks.domain)  # MLTI
    lam = interpolation.sample_lambda(keys[1], alpha, shape=(EPISODES,))  # MLTI
    others = jax.tree.map(lambda leaf: leaf[partners], tasks)  # MLTI
    mix = jax.vmap(interpolation.non_label_sharing)  # MLTI
    mixed = mix(keys[2:], tasks, others, lam)  # MLTI
    return (mixed.support.x, mixed.support.y), (mixed.query.x, mixed.query.y)  # MLTI


def train(steps: int = 300, alpha: float = 2.0, seed: int = 0) -> np.ndarray:
    """Train a network; return its accuracy on each test episode."""
    rng = np.random.default_rng(seed)
    params = Embedding().init(jax.random.key(seed), jnp.zeros((1, 64)))
    optimizer = optax.adam(1e-3)

    def mean_loss(params: dict, episodes: Episode) -> jax.Array:
        losses, _ = jax.vmap(protonet, in_axes=(None, 0))(params, episodes)
        return losses.mean()

    @jax.jit
    def step(params: dict, state: optax.OptState, episodes: Episode, key: jax.Array):
        if alpha > 0:
            episodes = interpolated(key, episodes, alpha)  # MLTI
        gradient = jax.grad(mean_loss)(params, episodes)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    training = draw(rng, TRAIN, steps * EPISODES)
    for i in range(steps):
        now = slice(i * EPISODES, (i + 1) * EPISODES)
        episodes = jax.tree.map(lambda leaf, now=now: leaf[now], training)
        params, state = step(params, state, episodes, jax.random.key(i))

    test = draw(np.random.default_rng(1), TEST, TEST_EPISODES)
    _, accuracy = jax.jit(jax.vmap(protonet, in_axes=(None, 0)))(params, test)
    return np.asarray(accuracy)


def main() -> None:
    """Train with the command-line arguments and print the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--alpha", type=float, default=2.0, help="parameter of Beta; 0 disables MLTI"
    )
    parser.add_argument("--seed", type=int, default=0)
    accuracy = 100 * train(**vars(parser.parse_args()))
    ci95 = 1.96 * accuracy.std(ddof=1) / np.sqrt(len(accuracy))
    print(f"{accuracy.mean():.2f} +- {ci95:.2f} % on {len(accuracy)} test episodes")


if __name__ == "__main__":
    main()
