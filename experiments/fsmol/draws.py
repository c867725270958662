"""Stratified draws of support sets from assays, as FS-Mol evaluates."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np

from mlti_jax.data import DomainPool


class Draw(NamedTuple):
    """A support set of an assay; all its other molecules are queries.

    Attributes:
      assay: number of the assay in the pool.
      number: which of the draws from this assay.
      support, query: rows of the pool's samples.
      support_y, query_y: 1 for active and 0 for inactive.
    """

    assay: int
    number: int
    support: np.ndarray
    query: np.ndarray
    support_y: np.ndarray
    query_y: np.ndarray


def draw_all(pool: DomainPool, size: int, draws: int, seed: int) -> list[Draw]:
    """Draw support sets of one size from all assays.

    A draw depends on the seed, the size, and the assay's name and molecules, but not
    on the other assays.

    Returns:
      `draws` entries per assay; none for assays that are too small, see `stratified`.
    """
    index, count = np.asarray(pool.index), np.asarray(pool.count)
    found = []
    for assay, name in enumerate(pool.domains):
        rows = np.concatenate(
            [index[assay, label, : count[assay, label]] for label in range(2)]
        )
        y = np.repeat(np.arange(2), count[assay])
        for number in range(draws):
            entropy = [seed, size, number, zlib.crc32(name.encode())]
            chosen = stratified(y, size, np.random.default_rng(entropy))
            if chosen is not None:
                rest = ~chosen
                found.append(
                    Draw(assay, number, rows[chosen], rows[rest], y[chosen], y[rest])
                )
    return found


def stratified(y: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draw `size` samples with the class ratio of all, rounded.

    Args:
      y: 0 or 1, `[M]`.
      size: number of samples to draw.
      rng: random generator.

    Returns:
      Mask of the drawn samples, bool `[M]`. None if drawn or other samples lack a
      class: FS-Mol skips such assays.
    """
    counts = np.bincount(y, minlength=2)
    if len(y) - size < 2:
        return None
    exact = size * counts / len(y)
    number = np.floor(exact).astype(int)
    if number.sum() < size:  # One is left, since there are two classes.
        part = exact - number
        number[rng.choice(np.flatnonzero(part == part.max()))] += 1
    if (number == 0).any() or (number == counts).any():
        return None
    chosen = np.zeros(len(y), bool)
    for label in range(2):
        members = np.flatnonzero(y == label)
        chosen[rng.permutation(members)[: number[label]]] = True
    return chosen
