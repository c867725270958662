"""Adapts the learner of a finished run to the draws from each assay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from experiments.fsmol.draws import Draw
from mlti_jax._internal.precision import matmul_precision
from mlti_jax.data import DomainPool
from mlti_jax.data._pools import take_inputs, take_rows
from mlti_jax.errors import InputError
from mlti_jax.learners import Learner, Variables
from mlti_jax.learners._base import shared_features
from mlti_jax.parallel import Plan, map_tasks
from mlti_jax.strategies import Strategy
from mlti_jax.strategies._objective import task_context
from mlti_jax.training import Experiment
from mlti_jax.types import Array, Batch, PyTree, Task

# Query sets are padded to one of these sizes (or to the next multiple of the last), so
# that only a few programs are compiled.
QUERIES = (128, 256, 512, 1024, 2048, 4096)
SAMPLES_PER_PASS = 4096  # samples of the tasks that are adapted at once
MOLECULES_PER_PASS = 2048  # whose features are computed at once


# Yields each draw with scores of its queries, `[N_q, 2]`: logits or log-probabilities.
Method = Callable[[Sequence[Draw]], Iterator[tuple[Draw, np.ndarray]]]


def method_of_run(
    experiment: Experiment, variables: Variables, pool: DomainPool, seed: int = 0
) -> Method:
    """Return the learner of a finished run, to be adapted to draws from a pool.

    All draws of a call must have the same support size. The method raises `InputError`
    if its outputs are not finite.

    Args:
      experiment: the finished run.
      variables: its variables.
      pool: the assays.
      seed: seed of noise, for strategies that have it at test time.
    """
    learner, strategy = experiment.learner, experiment.strategy
    program = _Program(
        learner,
        strategy,
        experiment.evaluator.plan,
        experiment.evaluator.precision,
        # With running averages in the normalization, a molecule has the same features
        # in every task, unless noise is added to them.
        shared=learner.norm == "running" and strategy.perturb is None,
    )
    x = jax.tree.map(jnp.asarray, pool.x)  # The pool may be on the host.
    if program.shared:
        x = program.features(variables, x)
    key = jax.random.key(seed)

    def adapt(draws: Sequence[Draw]) -> Iterator[tuple[Draw, np.ndarray]]:
        for draw, outputs in program.outputs(variables, x, draws, key):
            if not np.isfinite(outputs).all():
                raise InputError(
                    f"the outputs for assay {pool.domains[draw.assay]} with"
                    f" {len(draw.support)} support molecules are not finite; train with"
                    " a smaller learning rate"
                )
            yield draw, outputs

    return adapt


@dataclasses.dataclass(frozen=True)
class _Program:
    """The compiled part.

    Attributes:
      learner, strategy: the method.
      plan: how tasks are distributed over devices.
      precision: of products of float32 arrays.
      shared: whether tasks consist of outputs of the shared layers.
    """

    learner: Learner
    strategy: Strategy
    plan: Plan
    precision: str
    shared: bool

    @partial(jax.jit, static_argnums=0)
    def _adapt(self, variables: Variables, x: PyTree, tasks: Task, key: Array) -> Array:
        """Return the outputs for the queries of tasks of rows of x, `[T, N_q, C]`."""
        layer = self.learner.shared_layers if self.shared else 0

        def one(shared: tuple[Variables, PyTree, Array], task: Task) -> Array:
            variables, x, key = shared
            key = jax.random.fold_in(key, task.domain)
            context = task_context(self.strategy, variables, key, train=False)
            task = take_rows(x, task)
            return self.learner.loss(variables, task, context, layer)[1].outputs

        return map_tasks(one, self.plan)((variables, x, key), tasks)

    @partial(jax.jit, static_argnums=0)
    def _embed(self, variables: Variables, x: PyTree) -> PyTree:
        return shared_features(self.learner, variables, take_inputs(x, ...))

    def features(self, variables: Variables, x: PyTree) -> PyTree:
        """Return the outputs of the shared layers for all samples."""
        size = jax.tree.leaves(x)[0].shape[0]
        parts = []
        for start in range(0, size, MOLECULES_PER_PASS):
            # The last pass starts early, so that all have the same size.
            first = max(0, min(start, size - MOLECULES_PER_PASS))
            rows = slice(first, first + MOLECULES_PER_PASS)
            with matmul_precision(self.precision):
                found = self._embed(variables, jax.tree.map(itemgetter(rows), x))
            parts.append(jax.tree.map(itemgetter(slice(start - first, None)), found))
        return jax.tree.map(lambda *h: jnp.concatenate(h), *parts)

    def outputs(
        self, variables: Variables, x: PyTree, draws: Sequence[Draw], key: Array
    ) -> Iterator[tuple[Draw, np.ndarray]]:
        """Yield each draw with the outputs for its queries.

        Draws with query sets of similar size are adapted together; queries that are
        padding have weight 0.
        """
        groups: dict[int, list[Draw]] = {}
        for draw in draws:
            groups.setdefault(_padded(len(draw.query)), []).append(draw)
        devices = max(1, len(self.plan.devices))
        for queries, members in sorted(groups.items()):
            fitting = SAMPLES_PER_PASS // (queries + len(members[0].support))
            at_once = max(1, fitting // devices) * devices
            for start in range(0, len(members), at_once):
                part = members[start : start + at_once]
                filled = part + [part[-1]] * (at_once - len(part))
                with matmul_precision(self.precision):
                    found = self._adapt(variables, x, _stack(filled, queries), key)
                for draw, outputs in zip(part, np.asarray(found), strict=False):
                    yield draw, outputs[: len(draw.query)]


def _padded(size: int) -> int:
    """Return the smallest allowed size of a query set that has room for `size`."""
    fitting = [queries for queries in QUERIES if queries >= size]
    return fitting[0] if fitting else -(-size // QUERIES[-1]) * QUERIES[-1]


def _stack(draws: Sequence[Draw], queries: int) -> Task:
    """Return tasks of rows, with query sets padded to one size."""

    def padded(values: np.ndarray) -> np.ndarray:
        return np.pad(values, (0, queries - len(values)))

    classes = np.eye(2, dtype=np.float32)
    support = Batch(
        np.stack([draw.support for draw in draws]),
        classes[np.stack([draw.support_y for draw in draws])],
    )
    query = Batch(
        np.stack([padded(draw.query) for draw in draws]),
        classes[np.stack([padded(draw.query_y) for draw in draws])],
        np.stack([padded(np.ones(len(d.query), np.float32)) for d in draws]),
    )
    assays = np.array([draw.assay for draw in draws], np.int32)
    return Task(support, query, assays, 2 * assays[:, None] + np.arange(2))
