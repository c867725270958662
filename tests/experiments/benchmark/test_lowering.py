"""Every learner, network and strategy lowers for GPUs and TPUs, without either.

Lowering ends before the compiler of the platform: it shows that every operation has a
form for it, and that none is a native kernel for CPUs.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmark import tpu
from experiments.benchmark.cases import BIO, POSE, RAINBOW, TEXT, vanilla
from experiments.benchmark.lowering import native_calls, trace
from mlti_jax import ops
from mlti_jax._internal import native
from mlti_jax.backbones._registry import BACKBONES
from mlti_jax.learners._registry import LEARNERS
from mlti_jax.strategies._registry import STRATEGIES

PLATFORMS = ("cuda", "tpu")
IMAGES = replace(RAINBOW, image_shape=(16, 16, 3), pool=(3, 2, 4), ways=2)
TOKENS = replace(TEXT, image_shape=(4,), pool=(4, 9), ways=2, hidden=(16,), queries=1)
ALBERT = {
    "vocabulary": 20,
    "embedding": 4,
    "hidden": 4,
    "layers": 1,
    "heads": 2,
    "intermediate": 4,
    "positions": 4,
}
# Filters and channels for which CPUs have native kernels.
NETWORKS = {
    "conv4": IMAGES,
    "resnet12": replace(
        IMAGES, backbone="resnet12", block_filters=(32, 32), first_adapted=1
    ),
    "mlp": replace(
        BIO, image_shape=(8,), pool=(3, 2, 16), hidden=(16, 16), shots=1, queries=1
    ),
    "pose": replace(
        POSE,
        image_shape=(32, 32, 1),
        pool=(4, 30),
        shots=1,
        queries=1,
        layers=(0, 4),
        width=0.5,
    ),
    "word_mean": TOKENS,
    "albert": replace(
        TOKENS, backbone="albert", albert=tuple(ALBERT.items()), first_adapted=3
    ),
}
ALL = {
    (learner, network, strategy): case
    for network, small in NETWORKS.items()
    for learner in LEARNERS
    for strategy in STRATEGIES
    if tpu.applicable(
        case := replace(
            small, learner=learner, strategy=strategy, inner_steps=1, tasks=2
        )
    )
}
# Every learner, network and strategy at least once.
QUICK = (
    ("maml", "conv4", "mlti"),
    ("anil", "mlp", "metadropout"),
    ("metasgd", "mlp", "taml"),
    ("meta_curvature", "mlp", "metareg"),
    ("protonet", "conv4", "cross"),
    ("protonet", "resnet12", "vanilla"),
    ("protonet", "word_mean", "metamix"),
    ("matchingnet", "mlp", "maxup"),
    ("matchingnet", "albert", "intra"),
    ("anil", "pose", "vanilla"),
    ("protonet", "mlp", "metaaug"),
    ("matchingnet", "conv4", "views"),
    ("matchingnet", "mlp", "metamodulation"),
    ("sl", "conv4", "vanilla"),
    ("mtl", "mlp", "vanilla"),
)


def check(combination):
    learner, network, strategy = combination
    if network == "word_mean":
        pytest.importorskip("wordllama")
    case = ALL[combination]
    case = vanilla(case) if strategy == "vanilla" else case
    traced = trace(case)
    for platform in PLATFORMS:
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in program  # the loop over steps
        assert native_calls(program) == set()


def test_the_tables_are_complete():
    for names, position in ((LEARNERS, 0), (BACKBONES, 1), (STRATEGIES, 2)):
        assert {each[position] for each in QUICK} == set(names)
        assert {each[position] for each in ALL} == set(names)
    assert set(QUICK) <= set(ALL)
    # 4 gradient-based learners with 12 strategies, 2 metric-based ones with 9, and 2
    # supervised ones with 1; the last two families not for regression.
    assert len(ALL) == 6 * 4 * 12 + 5 * (2 * 9 + 2)


@pytest.mark.parametrize("combination", QUICK, ids="-".join)
def test_lowers_for_gpus_and_tpus(combination):
    check(combination)


# Every strategy with every learner, and every learner on every network. All of `ALL`
# take two minutes.
PAIRS = [
    (learner, network, strategy)
    for learner, network, strategy in ALL
    if (network == "mlp" or strategy == "vanilla")
    and (learner, network, strategy) not in QUICK
]


@pytest.mark.slow
@pytest.mark.parametrize("combination", PAIRS, ids="-".join)
def test_pairs_lower_for_gpus_and_tpus(combination):
    check(combination)


def test_native_kernels_are_found_in_a_program_for_cpus():
    if not native.available(jnp.zeros(1)):
        pytest.skip("no native kernels here")

    def loss(kernel):
        return ops.conv2d(jnp.ones((2, 8, 8, 16)), kernel).sum()

    kernel = jax.ShapeDtypeStruct((3, 3, 16, 16), jnp.float32)
    program = jax.jit(jax.grad(loss)).lower(kernel).as_text()
    assert "mlti_jax_WinogradGradientF32" in native_calls(program)


def test_operations_traced_for_a_cpu_lower_for_other_platforms():
    """Also without `tracing_for`, as in `jax.export` on a machine without a GPU."""

    def loss(x, kernel):
        out = ops.conv_pool_moments(x, kernel, jnp.ones(32))
        return sum(leaf.sum() for leaf in out) + ops.max_pool(x).sum()

    arguments = (
        jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32),
        jax.ShapeDtypeStruct((3, 3, 3, 32), jnp.float32),
    )
    traced = jax.jit(jax.grad(loss, (0, 1))).trace(*arguments)
    for platform in PLATFORMS:
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert native_calls(program) == set()
        assert "custom_call" not in program
