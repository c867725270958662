"""What the compiled steps are like, as far as it depends on no clock and no machine."""

import dataclasses
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import cli
from experiments.benchmark.cases import BIO, RAINBOW, vanilla
from experiments.benchmark.program import RUNS_ONCE, compile_case, make_parts
from mlti_jax import backbones, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.parallel import Plan
from mlti_jax.training import Episode, init_state, make_run_steps
from tests.support.small_cases import shrink
from tests.support.tasks import KEY, image_pool

# Whatever the tests are compiled with otherwise.
AS_USERS_GET = {
    "xla_backend_optimization_level": 3,
    "xla_cpu_use_fusion_emitters": True,
}
CASES = {
    "maml conv4": RAINBOW,
    "protonet conv4": dataclasses.replace(RAINBOW, learner="protonet"),
    "maml mlp": BIO,
    "maml resnet12": dataclasses.replace(RAINBOW, backbone="resnet12"),
}


def lowered(case, platform):
    """A whole training step for another platform, as text."""
    learner, strategy, optimiser, episode, state, pool = make_parts(shrink(case))
    run = make_run_steps(learner, strategy, optimiser, episode, 2, Plan())
    trace = run.trace(state, pool, KEY, 5)
    return trace.lower(lowering_platforms=(platform,)).as_text(), state


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_steps_have_no_grouped_convolution_and_stay_on_the_device(case, platform):
    text, state = lowered(case, platform)
    groups = re.findall(r"(?:feature|batch)_group_count = (\d+)", text)
    assert set(groups) <= {"1"}
    if case.backbone == "conv4":
        assert groups or platform == "cpu"
    for transfer in (
        "infeed",
        "outfeed",
        "stablehlo.send",
        "stablehlo.recv",
        "callback",
    ):
        assert transfer not in text
    # Every leaf of the state is given its argument's place.
    donated = text.count("tf.aliasing_output") + text.count("jax.buffer_donor")
    assert donated == len(jax.tree.leaves(state))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vanilla", "mlti"])
def test_devices_wait_for_each_other_once_a_step(strategy):
    """The sums of the gradients; neither draws nor mixing are shared."""
    case = shrink(RAINBOW)
    case = vanilla(case) if strategy == "vanilla" else case
    learner, strategy, optimiser, episode, state, pool = make_parts(case)
    plan = Plan(tuple(jax.local_devices()[:2]), tasks_per_pass=1)
    run = make_run_steps(learner, strategy, optimiser, episode, 2, plan)
    state, pool, key = plan.replicate((state, pool, KEY))
    text = run.lower(state, pool, key, 5).compile(AS_USERS_GET).as_text()
    waits = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\("
    assert re.findall(waits, text) == ["all-reduce"]


@pytest.mark.slow
def test_devices_draw_lambda_on_their_own_at_a_hidden_layer():
    case = dataclasses.replace(shrink(BIO), learner="protonet", layers=(1,))
    learner, strategy, optimiser, episode, state, pool = make_parts(case)
    plan = Plan(tuple(jax.local_devices()[:2]))
    run = make_run_steps(learner, strategy, optimiser, episode, 2, plan)
    arguments = plan.replicate((state, pool, KEY))
    text = run.lower(*arguments, 1).compile(RUNS_ONCE).as_text()
    # Devices that divide a loop of random draws agree on its end in every round.
    assert " all-reduce(" in text
    assert not re.findall(r"pred\[\]\S* all-reduce\(", text)


def test_the_check_for_groups_would_find_one():
    def grouped(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x, kernel = jnp.zeros((2, 1, 4, 4, 3)), jnp.zeros((2, 3, 3, 3, 4))
    text = jax.jit(jax.vmap(grouped)).lower(x, kernel).as_text()
    assert "feature_group_count = 2" in text


def temporary(case, **changes):
    plan, options = changes.pop("plan", Plan()), changes.pop("options", RUNS_ONCE)
    case = dataclasses.replace(vanilla(case), **changes)
    return compile_case(case, plan, options).memory["temporary"]


@pytest.mark.slow
def test_remat_keeps_a_fifth_of_what_an_inner_step_takes_at_most():
    growth = {}
    for remat in (False, True):
        few, many = (
            temporary(RAINBOW, inner_steps=steps, remat=remat, options=AS_USERS_GET)
            for steps in (10, 50)
        )
        growth[remat] = many - few
    assert 0 <= growth[True] <= 0.2 * growth[False]


@pytest.mark.slow
def test_passes_bound_the_memory():
    """In one pass it grows with the tasks; in several, only what is drawn does."""
    small = shrink(RAINBOW)

    def growth(plan):
        few, many = (temporary(small, tasks=tasks, plan=plan) for tasks in (2, 32))
        return many - few

    assert growth(Plan(tasks_per_pass=1)) < 0.5 * growth(Plan())


# --------------------------------------------------------------------- precision


def losses(dtype, steps=60):
    network = backbones.conv4(8, blocks=2).with_compute_dtype(dtype)
    learner = learners.protonet(network, 2)
    strategy = strategies.mlti(setting="non_label_sharing", layers=(0, 1))
    episode = Episode(ways=2, shots=2, queries=3)
    run = make_run_steps(learner, strategy, optax.adam(1e-2), episode, 4)
    state = init_state(
        learner, strategy, optax.adam(1e-2), KEY, jnp.zeros((2, 8, 8, 3))
    )
    values = []
    for stop in (10, steps - 10, steps):
        before = float(state.loss_sum)
        count = int(state.count)
        state, bad_step = run(state, image_pool(), KEY, stop)
        assert bad_step == -1
        values.append((float(state.loss_sum) - before) / (int(state.count) - count))
    leaves = jax.tree.leaves(state.variables)
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)
    return values[0], values[-1]


@pytest.mark.slow
def test_training_in_bfloat16_learns():
    first, last = losses("bfloat16")
    assert last < 0.5 * first
    exact_first, _ = losses("float32")
    assert first == pytest.approx(exact_first, rel=0.2)


@pytest.mark.slow
def test_layers_compute_in_bfloat16_and_the_stack_gives_float32():
    for network, shape in (
        (backbones.conv4(4, blocks=2), (3, 8, 8, 3)),
        (backbones.mlp((6, 5)), (3, 4)),
        (backbones.resnet12((2, 2, 2, 2)), (3, 16, 16, 3)),
    ):
        stack = network.with_compute_dtype("bfloat16")
        x = jax.random.normal(KEY, shape)
        params, state = stack.init(KEY, x)
        hidden, _ = stack.apply(params, state, x, 0, 1)
        assert hidden.dtype == jnp.bfloat16
        got, _ = stack.apply(params, state, x)
        assert got.dtype == jnp.float32
        expected, _ = network.apply(params, state, x)
        np.testing.assert_allclose(got, expected, atol=0.3)
        assert (got != expected).any()


def test_an_unknown_compute_dtype_raises():
    with pytest.raises(InputError, match="unknown compute_dtype 'float16'"):
        backbones.mlp().with_compute_dtype("float16")


# ------------------------------------------------------------- compiled programs


@pytest.fixture
def jax_settings():
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("user", "{}/mlti_jax/compiled"), ("off", None), ("{}/kept", "{}/kept")],
)
def test_where_compiled_programs_are_kept(
    jax_settings, tmp_path, monkeypatch, choice, expected
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cli.use_compilation_cache(choice.format(tmp_path))
    path = expected and expected.format(tmp_path)
    assert jax.config.jax_compilation_cache_dir == path
    if path:  # Nobody else may write what will be executed.
        assert os.stat(path).st_mode & 0o777 == 0o700
    jax.config.update("jax_compilation_cache_dir", "already/set")
    cli.use_compilation_cache(choice.format(tmp_path))
    assert jax.config.jax_compilation_cache_dir == "already/set"
