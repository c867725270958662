"""Training on real images, scanned digits, makes new tasks easier for each learner."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.training import (
    Episode,
    Evaluator,
    init_state,
    make_run_steps,
    paired_difference,
)
from tests.support.learner_table import INNER_LOOP, LEARNERS
from tests.support.tasks import KEY

DIGITS_EPISODE = Episode(ways=5, shots=1, queries=3)
# Network, shape of an image, learning rate.
ON_DIGITS = {
    "mlp": (backbones.mlp((32,)), (64,), 1e-2),
    "conv4": (backbones.conv4(8, blocks=2), (8, 8, 1), 1e-2),
}


def digits(part: int, shape: tuple[int, ...]) -> data.ClassPool:
    """Every second of 1,797 scanned digits, 8x8; the two parts have none in common."""
    x, y = load_digits(return_X_y=True)
    x = (x[part::2] / 16).astype(np.float32)
    return data.ClassPool.from_arrays(x.reshape(-1, *shape), y[part::2])


# SL and MTL, which train in other ways, do so in `test_supervised.py`.
@pytest.mark.parametrize("learner", sorted(set(LEARNERS) - {"sl", "mtl"}))
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(n, marks=pytest.mark.slow if n == "conv4" else ())
        for n in ON_DIGITS
    ],
)
def test_training_makes_real_tasks_easier(learner, network):
    stack, shape, learning_rate = ON_DIGITS[network]
    inner = {"inner_learning_rate": 0.3} if LEARNERS[learner] is INNER_LOOP else {}
    made = learners.make(
        learner,
        stack,
        outputs=DIGITS_EPISODE.ways,
        **LEARNERS[learner].options | inner,
    )
    strategy, optimiser = strategies.vanilla(), optax.adam(learning_rate)
    state = init_state(made, strategy, optimiser, KEY, jnp.zeros((2, *shape)))
    evaluate = Evaluator(made, strategy, DIGITS_EPISODE, tasks_per_pass=50)
    before = evaluate(state.variables, digits(1, shape), KEY, 50)
    run = make_run_steps(made, strategy, optimiser, DIGITS_EPISODE, batch_size=4)
    state, bad_step = run(state, digits(0, shape), KEY, 40)
    assert bad_step == -1
    after = evaluate(state.variables, digits(1, shape), KEY, 50)
    difference, interval = paired_difference(after, before)
    assert difference - interval > 0.05, (before.mean(), after.mean())
