"""Tasks distributed over devices and passes: the results are the same."""

import dataclasses
import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlti_jax import backbones, learners, parallel, strategies
from mlti_jax.errors import InputError
from mlti_jax.parallel import Plan, map_tasks, mean_loss, plan_for
from mlti_jax.strategies import init_variables, meta_objective
from mlti_jax.training import Episode, Evaluator, init_state, make_run_steps
from tests.support.tasks import KEY, image_pool, make_task, stack_tasks

PLANS = {
    "passes of 1": Plan(tasks_per_pass=1),
    "passes of 3": Plan(tasks_per_pass=3),
    "2 devices": Plan(tuple(jax.devices()[:2])),
    "2 devices, passes of 1": Plan(tuple(jax.devices()[:2]), 1),
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def loss_fn(shared, inputs, rest):
    values = jnp.tanh(inputs @ shared["w"] + rest)
    return jnp.sum(values**2), {"values": values}


def arguments(tasks=4):
    rng = np.random.default_rng(0)
    shared = {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}
    inputs = jnp.asarray(rng.normal(size=(tasks, 5, 3)), jnp.float32)
    return shared, inputs, jnp.arange(tasks, dtype=jnp.float32)


def plain_mean(shared, inputs, rest):
    parts = [loss_fn(shared, x, r) for x, r in zip(inputs, rest, strict=True)]
    values = jnp.stack([aux["values"] for _, aux in parts])
    return sum(loss for loss, _ in parts) / len(parts), {"values": values}


@every_plan
@pytest.mark.parametrize("by", [0, (0, 1)])
def test_mean_and_gradient_equal_a_loop(plan, by):
    mean = mean_loss(loss_fn, plan, inputs_depend=by != 0)
    got = jax.jit(jax.value_and_grad(mean, by, has_aux=True))(*arguments())
    expected = jax.value_and_grad(plain_mean, by, has_aux=True)(*arguments())
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-6)
    value, aux = jax.jit(mean)(*arguments())
    chex.assert_trees_all_close((value, aux), expected[0], rtol=1e-5, atol=1e-6)


def test_the_mean_works_in_double_precision():
    with jax.enable_x64(True):
        shared, inputs, rest = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, jnp.float64), arguments()
        )
        mean = mean_loss(loss_fn, Plan(tasks_per_pass=2), True)
        (got, _), gradient = jax.value_and_grad(mean, has_aux=True)(
            shared, inputs, rest
        )
        (expected, _), by_hand = jax.value_and_grad(plain_mean, has_aux=True)(
            shared, inputs, rest
        )
    assert got.dtype == gradient["w"].dtype == jnp.float64
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient["w"], by_hand["w"], rtol=1e-11)


def test_the_gradient_can_be_differentiated_again():
    def curvature(mean):
        def slope(shared):
            gradient = jax.grad(lambda s: mean(s, *rest)[0])(shared)
            return jnp.sum(jnp.sin(gradient["w"]))

        shared, *rest = arguments()
        return jax.jit(jax.grad(slope))(shared)

    got = curvature(mean_loss(loss_fn, Plan(tasks_per_pass=2), False))
    chex.assert_trees_all_close(got, curvature(plain_mean), rtol=1e-4, atol=1e-5)


@every_plan
def test_map_and_gradient_equal_a_loop(plan):
    def function(shared, task):
        return loss_fn(shared, *task)

    def total(shared, inputs, rest):
        losses, aux = map_tasks(function, plan)(shared, (inputs, rest))
        return jnp.sum(losses * jnp.arange(1.0, 5.0)), aux

    def by_hand(shared, inputs, rest):
        losses = [loss_fn(shared, inputs[i], rest[i])[0] for i in range(4)]
        return sum((i + 1) * loss for i, loss in enumerate(losses))

    got, aux = jax.jit(jax.grad(total, (0, 1), has_aux=True))(*arguments())
    expected = jax.grad(by_hand, (0, 1))(*arguments())
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-6)
    _, expected_aux = plain_mean(*arguments())
    chex.assert_trees_all_close(aux, expected_aux, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", [Plan(), Plan(tasks_per_pass=3)], ids=["all", "3"])
def test_vmap_over_seeds_equals_a_loop(plan):
    shared, inputs, rest = arguments()
    seeds = jnp.array([0.5, -1.0])

    def both(seed):
        scaled = {"w": seed * shared["w"]}
        mean = mean_loss(loss_fn, plan, False)
        mapped = map_tasks(lambda shared, task: loss_fn(shared, *task), plan)
        gradient = jax.grad(lambda s: mean(s, inputs, rest)[0])(scaled)
        return mean(scaled, inputs, rest)[0], gradient, mapped(scaled, (inputs, rest))

    together = jax.jit(jax.vmap(both))(seeds)
    for index, seed in enumerate(seeds):
        scaled = {"w": seed * shared["w"]}
        (value, aux), gradient = jax.value_and_grad(plain_mean, has_aux=True)(
            scaled, inputs, rest
        )
        losses = jnp.stack([loss_fn(scaled, inputs[i], rest[i])[0] for i in range(4)])
        one = jax.tree.map(lambda leaf, i=index: leaf[i], together)
        expected = (value, gradient, (losses, aux))
        chex.assert_trees_all_close(one, expected, rtol=1e-5, atol=1e-5)


STRATEGIES = {
    "vanilla": lambda: strategies.vanilla(),
    "mlti": lambda: strategies.mlti(setting="label_sharing", layers=(0, 1)),
    "taml": lambda: strategies.taml(setting="label_sharing"),
    "maxup": lambda: strategies.maxup(setting="label_sharing"),
    "views": lambda: strategies.views(),
}


@functools.lru_cache
def gradient_of(name, layer, plan):
    learner = learners.maml(backbones.mlp((6, 7)), 3, steps=2)
    strategy = STRATEGIES[name]()
    tasks = stack_tasks([make_task(seed) for seed in range(4)])
    x = jax.tree.map(lambda leaf: leaf[0], tasks).support.x
    variables = init_variables(learner, strategy, KEY, x)

    def loss(params):
        changed = variables.replace(params=params)
        return meta_objective(learner, strategy, changed, tasks, KEY, layer, 4, plan)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(variables.params)


@every_plan
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer"),
    [("vanilla", 0), ("mlti", 0), ("mlti", 1), ("taml", 0), ("maxup", 0), ("views", 0)],
)
def test_strategies_give_the_same_under_every_plan(name, layer, plan):
    got = gradient_of(name, layer, plan)
    expected = gradient_of(name, layer, Plan())
    chex.assert_trees_all_equal_shapes(got, expected)
    chex.assert_trees_all_close(got, expected, rtol=2e-3, atol=2e-5)


# ----------------------------------------------------------------- whole steps

EPISODE = Episode(ways=2, shots=1, queries=2)


@functools.lru_cache
def three_steps(plan):
    learner = learners.maml(backbones.conv4(4, blocks=2), 2, steps=2)
    strategy = strategies.mlti(setting="label_sharing", layers=(0,), method="cutmix")
    run = make_run_steps(learner, strategy, optax.adam(1e-3), EPISODE, 4, plan)
    state = init_state(
        learner, strategy, optax.adam(1e-3), KEY, jnp.zeros((2, 8, 8, 3))
    )
    state, pool, key = plan.replicate((state, image_pool(), KEY))
    first, _ = run(state, pool, key, 1)
    jax.block_until_ready(first.variables)
    last, bad_step = run(first, pool, key, 3)
    assert bad_step == -1
    assert run._cache_size() == 1
    return learner, strategy, last


@pytest.mark.slow
@every_plan
def test_steps_are_the_same_and_compile_once(plan):
    _, _, state = three_steps(plan)
    _, _, expected = three_steps(Plan())
    chex.assert_trees_all_close(state, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_same_plan_gives_the_same_bits():
    plan = PLANS["2 devices, passes of 1"]
    _, _, first = three_steps(plan)
    three_steps.cache_clear()
    _, _, second = three_steps(plan)
    chex.assert_trees_all_equal(first, second)


@pytest.mark.slow
def test_evaluation_is_the_same_on_two_devices():
    learner, strategy, state = three_steps(Plan())
    values = [
        Evaluator(learner, strategy, EPISODE, 3, plan)(
            state.variables, image_pool(), KEY, 7
        )
        for plan in (Plan(), PLANS["2 devices"])
    ]
    np.testing.assert_allclose(*values, atol=1e-6)
    assert len(values[0]) == 7


@pytest.mark.slow
def test_validation_and_test_share_a_program():
    learner, strategy, state = three_steps(Plan())
    evaluator = Evaluator(learner, strategy, Episode(2, 1, 3), 4)
    before = Evaluator._losses._cache_size()
    evaluator(state.variables, image_pool(), KEY, 8)
    small = image_pool()
    small = dataclasses.replace(small, x=small.x[:70], index=small.index[:, :, :5])
    small = dataclasses.replace(small, count=jnp.full_like(small.count, 5))
    evaluator(state.variables, small, KEY, 5)
    assert Evaluator._losses._cache_size() == before + 1


# ------------------------------------------------------------------------ plans


def test_plan_for_cpu():
    images, vectors = np.zeros((1, 8, 8, 3)), np.zeros((1, 8))
    assert plan_for(images, 4) == Plan(tuple(jax.devices()[:2]), 1)
    assert plan_for(images, 3) == Plan(tuple(jax.devices()[:1]), 1)
    assert plan_for(vectors, 4) == Plan(tuple(jax.devices()[:1]), None)
    assert plan_for(vectors, 4, 2, 2) == Plan(tuple(jax.devices()[:2]), 2)
    assert plan_for(vectors, 4).mesh is None


def test_plan_for_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert plan_for(np.zeros((1, 8)), 4) == Plan(tuple(jax.devices()[:2]), None)
    assert plan_for(np.zeros((1, 8)), 5) == Plan(tuple(jax.devices()[:1]), None)


def test_impossible_plans_raise():
    with pytest.raises(
        InputError, match="99, but the number of available devices is 2"
    ):
        plan_for(np.zeros((1, 8)), 4, devices=99)
    with pytest.raises(InputError, match="is 3, which is not a multiple of 2 devices"):
        plan_for(np.zeros((1, 8)), 3, devices=2)
    with pytest.raises(InputError, match="tasks_per_pass must be 1 or more, got 0"):
        Plan(tasks_per_pass=0)
    mean = mean_loss(loss_fn, PLANS["2 devices"], False)
    with pytest.raises(InputError, match="5 tasks cannot be divided equally among 2"):
        mean(*arguments(5))


def test_use_all_cores_keeps_a_given_number_of_devices(monkeypatch):
    changes = []
    monkeypatch.setattr(jax.config, "update", lambda *change: changes.append(change))
    parallel.use_all_cores()  # `conftest.py` has set the number.
    assert not changes


@pytest.mark.parametrize(("cores", "devices"), [(1, 1), (5, 5), (40, 16)])
def test_use_all_cores_makes_each_core_a_device(monkeypatch, cores, devices):
    changes = []
    config = types.SimpleNamespace(
        jax_num_cpu_devices=-1, update=lambda *change: changes.append(change)
    )
    monkeypatch.setattr(jax, "config", config)
    monkeypatch.setattr(
        parallel.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False
    )
    parallel.use_all_cores()
    assert changes == [("jax_num_cpu_devices", devices)]
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    parallel.use_all_cores()
    assert len(changes) == 1


@pytest.mark.parametrize("tasks", [2, 3])
def test_tasks_of_this_process_on_the_devices(tasks):
    """Alone, a process provides all tasks; they are divided if that is possible."""
    devices = tuple(jax.local_devices()[:2])
    plan = Plan(devices)
    assert plan.local_tasks(tasks) == slice(0, tasks)
    x = np.arange(tasks * 4).reshape(tasks, 4)
    found = plan.assemble({"x": x})["x"]
    np.testing.assert_array_equal(found, x)
    shares = [shard.data.shape[0] for shard in found.addressable_shards]
    assert shares == ([1, 1] if tasks == 2 else [3, 3])
    np.testing.assert_array_equal(Plan().assemble(x), x)
