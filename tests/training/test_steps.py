"""Steps, gradients, evaluation and checkpoints."""

import errno
import functools
import json
import struct
import zlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from tensorboardX.proto.event_pb2 import Event

from mlti_jax import backbones, data, learners, strategies
from mlti_jax.errors import InputError
from mlti_jax.learners import TaskContext
from mlti_jax.training import (
    Episode,
    Evaluator,
    init_state,
    make_run_steps,
    paired_difference,
)
from mlti_jax.training import _metrics as metrics
from mlti_jax.training._checkpoints import (
    Checkpoints,
    DamagedError,
    read_checkpoint,
)
from mlti_jax.training._evaluation import mean_and_interval
from tests.support.tasks import task_loss

KEY = jax.random.key(0)
EPISODE = Episode(ways=3, shots=2, queries=3)


def vector_pool(seed=0, domains=4, spread=1.5):
    """Domains whose three classes lie around means of their own."""
    rng = np.random.default_rng(seed)
    domain = np.repeat(np.arange(domains), 60)
    label = np.tile(np.repeat(np.arange(3), 20), domains)
    means = spread * rng.normal(size=(domains, 3, 10))
    x = means[domain, label] + rng.normal(size=(len(label), 10))
    return data.DomainPool.from_arrays(x.astype(np.float32), domain, label)


sample_task = jax.jit(functools.partial(data.sample_task, **EPISODE._asdict()))


def make_learner(name):
    network = backbones.mlp((16, 16))
    options = {"steps": 2, "inner_learning_rate": 0.1} if name == "maml" else {}
    return learners.make(name, network, 3, **options)


def make_strategy(learner, layers=(0, 1)):
    form = "non_label_sharing" if learner.class_pairs else "label_sharing"
    return strategies.mlti(setting=form, method="mixup", layers=layers)


def start(learner, strategy):
    return init_state(learner, strategy, optax.adam(1e-3), KEY, jnp.zeros((2, 10)))


# ------------------------------------------------------------------ the compiled step


@pytest.mark.slow
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_steps_compile_once_and_do_not_depend_on_how_they_are_divided(name):
    learner = make_learner(name)
    strategy = make_strategy(learner)
    run = make_run_steps(learner, strategy, optax.adam(1e-3), EPISODE, 4)
    pool = vector_pool()
    whole, _ = run(start(learner, strategy), pool, KEY, 7)
    parts = start(learner, strategy)
    for stop in (1, 2, 6, 7):
        parts, bad_step = run(parts, pool, KEY, stop)
        assert bad_step == -1
    chex.assert_trees_all_equal(parts, whole)
    assert run._cache_size() == 1


def test_one_step_equals_the_step_written_out():
    learner = make_learner("maml")
    strategy = strategies.vanilla()
    pool = vector_pool()
    state = start(learner, strategy)
    params = jax.tree.map(np.array, state.variables.params)
    run = make_run_steps(learner, strategy, optax.sgd(0.1), EPISODE, 2)
    state = state.replace(optimiser=optax.sgd(0.1).init((params, ())))
    after, _ = run(state, pool, KEY, 1)

    key_tasks, _ = jax.random.split(jax.random.fold_in(KEY, 0))
    tasks = [sample_task(pool, k) for k in jax.random.split(key_tasks, 2)]
    variables = start(learner, strategy).variables

    @jax.jit
    @jax.grad
    def gradient(params, task):
        return learner.loss(
            variables.replace(params=params), task, TaskContext(KEY, True), 0
        )[0]

    gradients = [gradient(params, task) for task in tasks]
    by_hand = jax.tree.map(lambda p, a, b: p - 0.1 * (a + b) / 2, params, *gradients)
    chex.assert_trees_all_close(after.variables.params, by_hand, rtol=1e-4, atol=1e-6)


def test_training_stops_at_a_loss_that_is_not_finite():
    learner = make_learner("protonet")
    strategy = strategies.vanilla()
    run = make_run_steps(learner, strategy, optax.adam(1e-3), EPISODE, 2)
    state = start(learner, strategy)
    broken = jax.tree.map(lambda p: p * jnp.nan, state.variables.params)
    state = state.replace(variables=state.variables.replace(params=broken))
    state, bad_step = run(state, vector_pool(), KEY, 10)
    assert bad_step == 1
    assert state.step == 1


def test_state_is_donated():
    learner = make_learner("protonet")
    strategy = strategies.vanilla()
    run = make_run_steps(learner, strategy, optax.adam(1e-3), EPISODE, 2)
    state = start(learner, strategy)
    run(state, vector_pool(), KEY, 1)
    assert jax.tree.leaves(state.variables.params)[0].is_deleted()


# ---------------------------------------------------------------------- evaluation


def test_tasks_are_fixed_by_the_key_and_not_by_the_passes():
    learner = make_learner("maml")
    variables = start(learner, strategies.vanilla()).variables
    pool = vector_pool()
    values = [
        Evaluator(learner, strategies.vanilla(), EPISODE, size)(
            variables, pool, KEY, 10
        )
        for size in (4, 10)
    ]
    assert values[0].shape == (10,)
    np.testing.assert_allclose(values[0], values[1], atol=1e-6)
    for index in (0, 7):
        key_task, key_noise = jax.random.split(jax.random.fold_in(KEY, index))
        task = sample_task(pool, key_task)
        aux = task_loss(learner, variables, task, key_noise, 0, False)[1]
        np.testing.assert_allclose(values[0][index], aux.metric, atol=1e-6)


def test_mean_and_interval_by_hand():
    values = [0.2, 0.4, 0.9]
    mean, ci95 = mean_and_interval(np.array(values))
    by_hand = (sum((v - 0.5) ** 2 for v in values) / 2) ** 0.5
    np.testing.assert_allclose(mean, 0.5)
    np.testing.assert_allclose(ci95, 1.96 * by_hand / 3**0.5)
    difference = paired_difference([0.5, 0.7], [0.4, 0.4])
    np.testing.assert_allclose(difference, (0.2, 1.96 * 0.1 * 2**0.5 / 2**0.5))


# --------------------------------------------------------------------- checkpoints


def small_state(value):
    return {"a": jnp.full((3,), float(value)), "b": (jnp.int32(value), {})}


def test_checkpoints_keep_the_newest_and_fall_back_from_a_damaged_one(tmp_path, capsys):
    saved = Checkpoints(tmp_path / "last", keep=2)
    for step in (1, 2, 3):
        saved.save(step, small_state(step))
    saved.wait()
    saved.close()
    files = [f for f in (tmp_path / "last" / "3").rglob("*") if f.is_file()]
    largest = max(files, key=lambda f: f.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    again = Checkpoints(tmp_path / "last", keep=2)
    assert again.steps() == [2, 3]
    step, state = again.restore(small_state(0.0))
    assert step == 2
    chex.assert_trees_all_equal(state, small_state(2.0))
    said = capsys.readouterr().err
    assert f"checkpoint {tmp_path / 'last' / '3'} is damaged" in said
    assert (tmp_path / "damaged-last-3").is_dir()
    again.save(3, small_state(3.0))  # The step can be saved again.
    again.wait()
    assert again.restore(small_state(0.0))[0] == 3
    again.close()


def test_a_checkpoint_of_another_model_raises(tmp_path):
    saved = Checkpoints(tmp_path, keep=1)
    saved.save(1, small_state(1.0))
    saved.wait()
    with pytest.raises(InputError, match=r"a is float32\[3\], expected float32\[4\]"):
        saved.restore({"a": jnp.zeros(4), "b": (jnp.int32(0), {})})
    with pytest.raises(InputError, match="lacks c"):
        saved.restore({**small_state(0.0), "c": jnp.zeros(2)})
    saved.close()


def test_a_full_disk_under_orbax_is_told_as_such(tmp_path):
    saved = Checkpoints(tmp_path, keep=1)

    def full(*args, **kwargs):
        raise ValueError('RESOURCE_EXHAUSTED: Error writing "a/0" in OCDBT database')

    saved._manager.save = full
    with pytest.raises(OSError, match="No space left") as error:
        saved.save(1, small_state(1.0))
    assert error.value.errno == errno.ENOSPC
    saved.close()


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), jax.errors.JaxRuntimeError("gone")],
)
def test_errors_of_the_machine_are_not_taken_for_damage(tmp_path, monkeypatch, error):
    saved = Checkpoints(tmp_path / "last", keep=1)
    saved.save(1, small_state(1.0))
    saved.wait()

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(ocp.StandardCheckpointer, "restore", fail)
    with pytest.raises(type(error), match=r"Too many|gone"):
        saved.restore(small_state(0.0))
    assert saved.steps() == [1]
    saved.close()


def write_curve(workdir):
    writer = metrics.MetricsWriter(workdir)
    for step in (10, 20, 30):
        writer.write(step, "train", {"loss": step / 10})
    writer.close()
    return workdir / "metrics.jsonl"


def test_lines_of_metrics_have_a_checksum(tmp_path):
    path = write_curve(tmp_path)
    first = json.loads(path.read_text().splitlines()[0])
    crc = first.pop("crc32")
    assert crc == zlib.crc32(b'{"step": 10, "split": "train", "loss": 1.0}')
    assert metrics.read(path)[0] == first


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\x00",
        b"null",
        b"[1, 2]",
        b"3",
        b"{}",
        b'{"step": "ten", "split": "train"}',
        b'{"step": 20, "split": 3}',
        b'{"step": 20, "split": "train", "loss": "low"}',
        b'{"step": 20, "split": "train", "loss": NaN}',
        b'{"step": 20, "split": "train", "loss": 7.0, "crc32": 1}',
        b"[" * 100_000,
    ],
)
def test_damaged_lines_are_left_out_and_the_file_is_set_aside(tmp_path, capsys, line):
    path = write_curve(tmp_path)
    lines = path.read_bytes().split(b"\n")
    damaged = b"\n".join([lines[0], line, *lines[1:]])
    path.write_bytes(damaged)
    metrics.MetricsWriter(tmp_path, step=30).close()
    assert [line["step"] for line in metrics.read(path)] == [10, 20, 30]
    assert (tmp_path / "damaged-metrics.jsonl").read_bytes() == damaged
    assert "has 1 damaged lines, which are left out" in capsys.readouterr().err


def test_a_repeated_test_is_one_event(tmp_path):
    for attempt in range(2):  # a run that is killed after its test is tested again
        writer = metrics.MetricsWriter(tmp_path, step=30)
        writer.write(30, "test", {"accuracy": 0.5})
        writer.close()
        if not attempt:  # Names of event files contain the second.
            (first,) = (tmp_path / "tensorboard" / "test").glob("events*")
            first.rename(first.with_name("events.out.tfevents.1.earlier"))
    events = [
        tag
        for path in (tmp_path / "tensorboard").rglob("events*")
        for tag in scalar_tags(path)
    ]
    assert events == ["test/accuracy"]
    assert len(metrics.read(tmp_path / "metrics.jsonl")) == 1


def scalar_tags(path):
    """Read the scalars of an event file: length, CRC, event, CRC, and so on."""
    content, place, tags = path.read_bytes(), 0, []
    while place < len(content):
        (length,) = struct.unpack("<Q", content[place : place + 8])
        event = Event.FromString(content[place + 12 : place + 12 + length])
        tags += [value.tag for value in event.summary.value]
        place += length + 16
    return tags


def test_metrics_beyond_the_resumed_step_are_taken_away(tmp_path):
    writer = metrics.MetricsWriter(tmp_path)
    for step in (10, 20, 30):
        writer.write(step, "train", {"loss": step / 10})
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 40, "spl')  # cut short by a kill
    metrics.MetricsWriter(tmp_path, step=20).close()
    steps = [line["step"] for line in metrics.read(tmp_path / "metrics.jsonl")]
    assert steps == [10, 20]


def test_flipped_bits_of_large_arrays_are_found(tmp_path, capsys):
    """Arrays of this size have files of their own, which Orbax does not verify."""
    state = {"a": jnp.asarray(np.random.default_rng(0).normal(size=(100, 100)))}
    saved = Checkpoints(tmp_path / "last", keep=None)
    saved.save(1, state)
    saved.wait()
    files = [f for f in (tmp_path / "last" / "1").rglob("*") if f.is_file()]
    largest = max(files, key=lambda f: f.stat().st_size)
    whole = largest.read_bytes()
    rng, found = np.random.default_rng(1), 0
    for _ in range(20):
        content = bytearray(whole)
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        largest.write_bytes(bytes(content))
        try:
            again = read_checkpoint(tmp_path / "last", 1, state)
        except DamagedError as error:
            found += "does not match its checksum" in str(error)
        else:
            chex.assert_trees_all_equal(again, state)
    saved.close()
    assert found > 0
