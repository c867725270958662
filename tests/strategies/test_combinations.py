"""Strategies with each other and with learners: what goes together, what is refused."""

# ruff: noqa: F811  (fixtures are imported, and named again as arguments)

import jax
import numpy as np
import pytest

from mlti_jax import strategies
from mlti_jax.errors import InputError
from mlti_jax.learners._registry import FAMILIES
from mlti_jax.strategies import chain
from mlti_jax.strategies._registry import STRATEGIES, applies_to, check_applicable
from tests.support.regulariser_cases import maml, start, tasks  # noqa: F401
from tests.support.tasks import objective


@pytest.mark.slow
def test_regularisers_go_with_mlti_and_with_each_other(maml, tasks):
    names = "mlti+metareg+taml+metadropout"
    combined = strategies.make(
        names,
        setting="label_sharing",
        interpolation={"layers": (0, 1)},
        options={"metareg": {"initial_rho": -2.0}},
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
        (
            "metareg",
            "protonet",
            "family gradient, and protonet is of the family metric",
        ),
        ("taml", "matchingnet", "strategies for matchingnet: vanilla, mlti, intra"),
        ("mlti+metadropout", "protonet", "strategy metadropout does not apply"),
        ("mlti", "sl", "family gradient or metric, .*strategies for sl: vanilla$"),
    ],
)
def test_check_applicable_names_the_families(strategy, learner, reason):
    with pytest.raises(InputError, match=reason):
        check_applicable(strategy, learner)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_applies_to_known_families(name):
    assert applies_to(name) <= set(FAMILIES)
    assert "gradient" in applies_to(name)
