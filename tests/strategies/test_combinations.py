"""Strategies with each other and with learners: what goes together, what is refused."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import jax
import numpy as np
import pytest

from mlti_jax import learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.strategies import chain
from tests.support.regulariser_cases import maml, start, tasks  # noqa: F401
from tests.support.tasks import objective

LS = {"form": "label_sharing", "method": "mixup", "layers": (0, 1)}


@pytest.mark.slow
def test_regularisers_go_with_mlti_and_with_each_other(maml, tasks):
    names = "mlti+metareg+taml+metadropout"
    combined = strategies.make(
        names, interpolation=LS, options={"metareg": {"initial_rho": -2.0}}
    )
    assert combined.name == names
    variables = start(maml, combined, tasks.support.x[0])
    assert [bool(jax.tree.leaves(own)) for own in variables.strategy] == [
        False,
        True,
        False,
        True,
    ]
    for layer in (0, 1):
        value = jax.jit(
            jax.value_and_grad(
                lambda own, layer=layer: objective(
                    maml, combined, variables.replace(strategy=own), tasks, layer=layer
                )[0]
            )
        )
        loss, grads = value(variables.strategy)
        assert np.isfinite(loss)
        for leaf in jax.tree.leaves(grads):
            assert np.isfinite(leaf).all()


def test_two_that_perturb_are_refused():
    gate = strategies.metadropout()
    with pytest.raises(InputError, match="both perturb hidden outputs"):
        chain(gate, gate._replace(name="other"))


@pytest.mark.parametrize(
    ("strategy", "learner", "reason"),
    [
        ("metareg", "protonet", "inner loop does not adapt"),
        ("taml", "matchingnet", "before and after adaptation"),
        ("metadropout", "protonet", "in an inner loop"),
        ("mlti", "sl", "this learner does not adapt"),
    ],
)
def test_what_does_not_apply_is_refused_with_the_reason(strategy, learner, reason):
    family = next(f for f, names in learners.FAMILIES.items() if learner in names)
    with pytest.raises(InputError, match=reason):
        strategies.check_applicable((strategy,), learner, family)


def test_every_strategy_says_what_it_applies_to():
    assert set(strategies.APPLIES) == set(strategies.STRATEGIES)
    for families in strategies.APPLIES.values():
        assert families <= set(learners.FAMILIES)
