"""Learners relative to MAML and strategies relative to vanilla, at a small size."""

import json
import logging

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmark import relative
from experiments.benchmark.cases import BIO, make_learner, make_strategy
from experiments.benchmark.program import compile_case, memory_of
from mlti_jax import strategies
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies import _registry as registry
from tests.support.small_cases import shrink


def measure_small(name):
    sides = {side: shrink(case) for side, case in relative.GROUPS[name]().items()}
    return relative.measure_sides(name, sides, rounds=1, seconds=0.0)


@pytest.mark.parametrize("name", relative.GROUPS)
def test_every_side_of_a_group_can_be_built(name):
    for case in relative.GROUPS[name]().values():
        strategy = make_strategy(case, make_learner(case))
        assert strategy.name == case.strategy


# Each side is a separate program that takes seconds to compile.
@pytest.mark.slow
@pytest.mark.parametrize("name", relative.GROUPS)
def test_every_side_of_a_group_runs_and_has_a_row(name):
    result = measure_small(name)  # raises if a loss is not finite
    rows = result["rows"]
    if name.startswith("learners"):
        assert set(rows) == {*FAMILIES["gradient"], *FAMILIES["metric"]}
        assert result["relative_to"] == "maml"
    if name.startswith("strategies"):
        assert set(rows) == set(registry.STRATEGIES)
        assert result["relative_to"] == "vanilla"
    assert rows[result["relative_to"]]["ratio"] == {"time": 1.0, "memory": 1.0}
    for side, row in rows.items():
        assert "refused" not in row, row
        first = rows[result["relative_to"]]
        ratio = row["time"]["median_ms"] / first["time"]["median_ms"]
        assert row["ratio"]["time"] == pytest.approx(ratio)
        ratio = row["memory"]["peak"] / first["memory"]["peak"]
        assert row["ratio"]["memory"] == pytest.approx(ratio)
        assert f"\n  {side:20} " in relative.table(result)
    assert len(relative.table(result).splitlines()) == 2 + len(rows)
    assert json.loads(json.dumps(result))["case"] == name


def test_row_of_a_strategy_that_cannot_be_built(monkeypatch):
    def picky():
        raise InputError("not with this learner")

    few = {"vanilla": strategies.vanilla, "picky": picky}
    monkeypatch.setattr(registry, "STRATEGIES", few)
    monkeypatch.setattr(relative, "STRATEGIES", few)
    result = measure_small("strategies_bio")
    assert list(result["rows"]) == ["vanilla", "picky"]
    last = relative.table(result).splitlines()[-1]
    assert " ".join(last.split()) == "picky skipped: not with this learner"


def test_memory_counts_temporaries_and_donated_arguments_once():
    size = 500

    def step(state, x):
        return state + 1, jnp.sort(x[:, None] * x).sum()  # sorts a matrix

    state, x = jnp.zeros((size, size)), jnp.ones(size)
    compiled = jax.jit(step, donate_argnums=0).lower(state, x).compile()
    memory, matrix = memory_of(compiled), 4 * size**2
    assert memory["arguments"] == pytest.approx(matrix, rel=0.01)
    assert memory["temporary"] == pytest.approx(matrix, rel=0.01)
    assert memory["peak"] == pytest.approx(2 * matrix, rel=0.01)


def test_a_case_is_compiled_once_and_its_state_is_donated(caplog):
    program = compile_case(shrink(BIO))
    new_outputs = (
        program.memory["peak"]
        - program.memory["arguments"]
        - program.memory["temporary"]
    )
    assert 0 <= new_outputs < 1000  # the new state reuses the memory of the old one
    with jax.log_compiles(), caplog.at_level(logging.DEBUG):
        program.steps(1)
        program.steps(2)
        assert "XLA compilation" not in caplog.text
        jax.jit(lambda x: x + 1)(0)
        assert "XLA compilation" in caplog.text  # the check above can fail
