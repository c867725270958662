"""The precision of products, and the dtype in which networks compute."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mlti_jax import backbones, data, learners, strategies
from mlti_jax._internal.precision import PRECISIONS, matmul_precision
from mlti_jax.data import ClassPool
from mlti_jax.errors import InputError
from mlti_jax.learners._base import TaskContext
from mlti_jax.training import Episode, base_config, build, init_state, make_run_steps
from mlti_jax.training._loop import run_experiment
from tests.support import learner_table as table

KEY = jax.random.key(0)


def products(program: str) -> list[str]:
    """The lines of a lowered program that multiply matrices or convolve."""
    names = ("stablehlo.dot_general", "stablehlo.convolution")
    return [line for line in program.splitlines() if any(n in line for n in names)]


def lowered_step(learner_name, network, shape, precision, platform="tpu") -> str:
    """The program of training steps, for a platform without native kernels."""
    learner = learners.make(learner_name, network, 2)
    strategy = strategies.mlti(setting="non_label_sharing", layers=(0,))
    optimizer = optax.sgd(0.1)
    pool = ClassPool.from_arrays(
        np.zeros((12, *shape), np.float32), np.repeat(np.arange(3), 4)
    )
    state = jax.eval_shape(
        lambda: init_state(learner, strategy, optimizer, KEY, jnp.zeros((2, *shape)))
    )
    run = make_run_steps(learner, strategy, optimizer, Episode(2, 1, 1), 2)
    with matmul_precision(precision):
        traced = run.trace(state, pool, KEY, 1)
        return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    ("learner", "network", "shape"),
    [
        ("protonet", backbones.conv4(4, blocks=2), (8, 8, 3)),
        ("maml", backbones.mlp((6, 5)), (7,)),
    ],
    ids=["protonet-conv4", "maml-mlp"],
)
def test_every_product_of_a_step_has_the_precision(learner, network, shape):
    """Also those of derivatives, and of operations that are lowered late."""
    for precision in ("high", "highest"):
        lines = products(lowered_step(learner, network, shape, precision))
        assert len(lines) > 5
        assert all("HIGH" in line for line in lines)
        if precision == "highest":
            assert all(line.count("HIGHEST") == 2 for line in lines)
    lines = products(lowered_step(learner, network, shape, "default"))
    assert any(line.count("DEFAULT") == 2 for line in lines)


class Recorder:
    """A network of one linear layer that records the precision it is traced at."""

    def __init__(self):
        self.seen = set()

    def stack(self):
        def init(key, x):
            return jax.random.normal(key, (x.shape[1], 3))

        def apply(kernel, x):
            self.seen.add(jax.config.jax_default_matmul_precision)
            return x @ kernel

        return backbones.wrap((init, apply))


def own_data():
    rng = np.random.default_rng(0)
    y = np.arange(12) % 2
    tasks = {f"t{i}": (rng.normal(y[:, None], 1.0, (12, 4)), y) for i in range(6)}
    return data.from_arrays(tasks, test=0.4)


def small_config(precision):
    config = base_config()
    config.learner.name, config.strategy.name = "protonet", "vanilla"
    config.task.update({"ways": 2, "shots": 2, "queries": 3})
    config.train.update({"steps": 2, "meta_batch_size": 2, "precision": precision})
    config.eval.update({"queries": 3, "num_tasks": 4, "validation_tasks": 2})
    config.interpolation.method = "mixup"
    return config


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param(each, marks=() if each == "highest" else pytest.mark.slow)
        for each in PRECISIONS
    ],
)
def test_a_run_uses_its_precision_and_leaves_no_setting_behind(precision):
    recorder = Recorder()
    network = recorder.stack()
    experiment = build(small_config(precision), splits=own_data(), network=network)
    experiment.init_state()
    recorder.seen.clear()  # the initialization multiplies nothing that is kept
    before = jax.config.jax_default_matmul_precision
    run_experiment(experiment)
    found = before if precision == "default" else precision
    assert recorder.seen >= {found}
    assert experiment.evaluator.precision == precision
    assert jax.config.jax_default_matmul_precision == before


def test_an_unknown_precision_raises():
    with pytest.raises(InputError, match="unknown precision 'hihgest'.*highest"):
        build(small_config("hihgest"), splits=own_data())


# ------------------------------------------------------------------------- bfloat16


COMBINATIONS = [
    *((name, "mlp") for name in table.LEARNERS),
    *((name, "conv4") for name in table.LEARNERS if table.fits(name, "conv4")),
    *((name, net) for name in ("anil", "protonet") for net in ("word_mean", "albert")),
]
QUICK = [("protonet", "mlp"), ("mtl", "mlp"), ("protonet", "albert")]


@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in COMBINATIONS
    ],
)
def test_learners_compute_in_bfloat16(name, network):
    """Parameters, state, loss and gradient are float32, products are not."""
    row, net = table.LEARNERS[name], table.NETWORKS[network]
    pytest.importorskip(net.needs)
    task = jax.tree.map(jnp.asarray, net.task(0, 4))
    facts = {"base_groups": table.WAYS, "base_classes": table.WAYS}

    def loss_and_gradient(dtype):
        stack = net.make().with_compute_dtype(dtype)
        learner = learners.make(name, stack, table.WAYS, facts=facts, **row.options)
        variables = learner.init(KEY, task.support.x)
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {
            jnp.dtype("float32")
        }

        @jax.jit
        def run(params):
            def loss(params):
                changed = variables.replace(params=params)
                return learner.loss(changed, task, TaskContext(train=True, key=KEY))

            return jax.value_and_grad(loss, has_aux=True)(params)

        lowered = run.trace(variables.params).lower(lowering_platforms=("tpu",))
        in_bfloat16 = [line for line in products(lowered.as_text()) if "bf16" in line]
        assert bool(in_bfloat16) == (dtype == "bfloat16")
        return run(variables.params)

    (loss, aux), gradient = loss_and_gradient("bfloat16")
    (exact, _), exact_gradient = loss_and_gradient("float32")
    for leaf in jax.tree.leaves((loss, aux.state, aux.outputs, gradient)):
        assert leaf.dtype == jnp.float32
        assert np.isfinite(leaf).all()
    # bfloat16 has 8 bits: relative errors of 1/256 per operation.
    assert float(loss) == pytest.approx(float(exact), rel=0.1, abs=0.05)
    flat, exact_flat = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (gradient, exact_gradient)
    )
    cosine = flat @ exact_flat / np.linalg.norm(flat) / np.linalg.norm(exact_flat)
    assert cosine > 0.95
