"""Networks and optimizers of users in `fit`, `compare`, `save` and `load`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mlti_jax
from mlti_jax import backbones
from mlti_jax.errors import InputError
from mlti_jax.training import build, init_state
from tests.support.api_cases import class_splits, domain_splits, fit_small, task

NAMES = ("a", "b", "c")


class Network(nn.Module):
    width: int = 8

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(self.width)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(4)(nn.relu(x))


def probabilities(fitted):
    support, (query, _) = task(NAMES, shots=3)
    return fitted.adapt(*support).predict_proba(query)


@pytest.fixture(scope="module")
def own():
    return fit_small(
        class_splits(),
        "maml",
        ways=3,
        network=Network(),
        optimizer=optax.adamw(1e-2),
        adapted=lambda path: path[0] == "head" or path[1].startswith("BatchNorm"),
        **{"learner.maml.norm": "running"},
    )


def test_only_the_chosen_parameters_are_adapted(own):
    assert own.adapted == (
        *("0/BatchNorm_0/bias", "0/BatchNorm_0/scale"),
        *("head/bias", "head/kernel"),
    )
    support = mlti_jax.types.Batch(
        x=jax.random.normal(jax.random.key(0), (6, 6)), y=jnp.tile(jnp.eye(3), (2, 1))
    )
    context = mlti_jax.learners.TaskContext(jax.random.key(1))
    before = own.variables.params["model"]
    after = own.learner.adapt(own.variables, support, context)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
    assert changed[0] == {
        "Dense_0": {"kernel": False, "bias": False},
        "BatchNorm_0": {"scale": True, "bias": True},
        "Dense_1": {"kernel": False, "bias": False},
    }
    assert changed[1] == {"kernel": True, "bias": True}


def test_loading_needs_the_network_again(own, tmp_path):
    own.save(tmp_path / "model")
    loaded = mlti_jax.load(tmp_path / "model", network=Network())
    np.testing.assert_array_equal(probabilities(loaded), probabilities(own))
    for network, message in (
        (None, "has a network of your own.*pass it again"),
        (Network(width=5), r"is float32\[8\], expected float32\[5\]; give the network"),
        (nn.Dense(4), "does not have the given network.*give the network of its"),
    ):
        with pytest.raises(InputError, match=message):
            mlti_jax.load(tmp_path / "model", network=network)


def test_a_backbone_is_loaded_without_a_network(tmp_path):
    fitted = fit_small(domain_splits(), network="mlp", steps=1)
    assert fitted.config.backbone.name == "mlp"
    fitted.save(tmp_path)
    with pytest.raises(InputError, match="has the backbone mlp; load it without"):
        mlti_jax.load(tmp_path, network=Network())


def test_a_wrapped_network_equals_the_built_in_one():
    """The same layers, as a stack and as one sequence of the user's."""
    built_in = fit_small(domain_splits(), network=backbones.mlp((8, 8)))
    by_name = fit_small(domain_splits())
    assert built_in.config.backbone.name == "custom"
    assert built_in.result["per_task"] == by_name.result["per_task"]


def test_frozen_parameters_keep_their_values():
    splits = domain_splits()
    start = Network().init(jax.random.key(3), splits.train.x[:2])
    network = backbones.wrap(Network(), params=start, frozen=True)
    fitted = fit_small(
        splits,
        network=[network, nn.Dense(4)],
        **{"train.weight_decay": 0.1, "train.ema": 0.9, "train.learning_rate": 0.1},
    )
    frozen = fitted.variables.state[0].params
    jax.tree.map(np.testing.assert_array_equal, frozen, start["params"])


def test_frozen_parameters_are_not_averaged():
    splits = domain_splits()
    network = backbones.wrap(Network(), frozen=True)
    made = build(
        fit_small(splits, network="mlp", steps=1).config,
        splits=splits,
    )
    learner = mlti_jax.learners.protonet(network, 2)
    state = init_state(
        learner,
        made.strategy,
        made.optimiser,
        jax.random.key(0),
        splits.train.x[:2],
        (0.9,),
    )
    assert not jax.tree.leaves(state.ema[0].state)
    jax.tree.map(
        np.testing.assert_array_equal, state.evaluated.state, state.variables.state
    )


@pytest.mark.slow
def test_a_resumed_run_with_own_parts_is_the_same(tmp_path):
    arguments = {"network": Network(), "optimizer": optax.sgd(0.1, momentum=0.9)}
    whole = fit_small(domain_splits(), workdir=tmp_path / "a", **arguments)
    again = fit_small(domain_splits(), workdir=tmp_path / "a", **arguments)
    assert again.result == whole.result
    np.testing.assert_array_equal(
        *(jax.tree.leaves(fitted.variables.params)[0] for fitted in (whole, again))
    )
    with pytest.raises(InputError, match="backbone.name: 'custom' -> 'mlp'"):
        fit_small(domain_splits(), workdir=tmp_path / "a")


def test_other_adapted_parameters_are_another_run(tmp_path):
    arguments = {"learner": "maml", "network": Network(), "workdir": tmp_path}
    fit_small(domain_splits(), steps=2, adapted=("head/*",), **arguments)
    with pytest.raises(InputError, match="adapted: .*head/bias.* -> .*0/Dense_1"):
        fit_small(domain_splits(), steps=2, adapted=("0/Dense_1/*",), **arguments)


def test_compare_with_own_parts():
    found = mlti_jax.compare(
        domain_splits(),
        ("vanilla", "mlti"),
        network=Network(),
        optimizer=optax.adam(1e-2),
        shots=3,
        steps=5,
        verbose=False,
        overrides={"eval.num_tasks": 5},
    )
    assert found.learners["mlti"].config.backbone.name == "custom"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": Network}, "the network is the class Network; expected a module"),
        ({"network": 3}, "the network is of type int; expected a Flax module"),
        ({"network": "conv5"}, "unknown backbone 'conv5'"),
        ({"network": lambda x: x[:3]}, "expected .*one row per sample"),
        ({"network": nn.Dense(4), "backbone.name": "mlp"}, "give one of them"),
        (
            {"network": nn.Dense(4), "learner": "maml", "adapted": lambda path: False},
            "adapted selects no parameter; expected at least one of: 0/bias",
        ),
        ({"learner": "maml", "adapted": "head/*"}, "adapted is 'head/.'; expected"),
        ({"learner": "maml", "adapted": True}, "adapted is True; expected a function"),
        ({"adapted": ("head/*",)}, "unknown option of learner protonet 'adapted'"),
        (
            {"network": Network(), "learner": "maml", "strategy": "metadropout"},
            "metadropout needs a network with blocks",
        ),
        (
            {"network": Network(), "interpolation.layers": (0, 1)},
            "a wrapped module is one layer",
        ),
    ],
)
def test_errors_before_training(arguments, message):
    with pytest.raises(InputError, match=message):
        fit_small(domain_splits(), **arguments)
