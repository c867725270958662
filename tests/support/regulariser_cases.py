"""A learner and tasks for the tests of strategies that augment or regularise."""

import functools

import jax
import pytest

from mlti_jax import backbones, learners, strategies
from tests.support.tasks import KEY, make_task, stack_tasks


@functools.partial(jax.jit, static_argnums=(0, 1))
def start(learner, strategy, x):
    return strategies.init_variables(learner, strategy, KEY, x)


@pytest.fixture(scope="module")
def maml():
    return learners.maml(backbones.mlp((6, 7)), 3, steps=2)


@pytest.fixture(scope="module")
def tasks():
    return stack_tasks([make_task(s) for s in range(4)])
