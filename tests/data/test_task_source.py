"""Samples off the device: the same tasks, read where and when they are needed."""

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import data
from mlti_jax.data import _placement as placement
from mlti_jax.data._placement import choose, kind_of, place
from mlti_jax.data._pools import samples_stay, task_inputs
from mlti_jax.data._task_source import TaskSource, iterate
from mlti_jax.errors import InputError
from mlti_jax.training._evaluation import Passes
from mlti_jax.training._step import Episode, MetaBatches
from tests.support.pool_kinds import images, make_pool, moved, records, splits

KEY = jax.random.key(7)
EPISODES = {
    "non_label_sharing": Episode(3, 2, 2),
    "label_sharing": Episode(3, 1, 2),
    "regression": Episode(1, 3, 4),
}


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def task_of(pool, key, episode):
    """A task as the compiled loop draws it, from samples on the device."""
    return jax.jit(lambda k: data.sample_task(pool, k, **episode._asdict()))(key)


def source_of(pool, setting="non_label_sharing", items=20, local=range(4), tasks=4):
    draw = MetaBatches(EPISODES[setting], True, tasks, tuple(local))
    return TaskSource(pool, KEY, draw, items)


# ------------------------------------------------------------------------- records


def test_records_are_indexed_like_an_array(tmp_path):
    x = images(9)
    found = records(tmp_path / "x", x)
    assert (found.shape, found.dtype, found.ndim, len(found)) == (
        x.shape,
        x.dtype,
        4,
        9,
    )
    assert found.nbytes == x.nbytes
    for rows in (slice(None), slice(2, 5), np.array([[3, 0], [8, 3]]), np.int64(4)):
        np.testing.assert_array_equal(found[rows], x[rows])
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again[np.arange(3)], x[:3])


@pytest.mark.parametrize(
    "use",
    [np.asarray, jnp.asarray, jax.jit(lambda x: x), lambda x: jnp.concatenate([x, x])],
)
def test_records_are_not_read_as_a_whole_by_mistake(use, tmp_path):
    with pytest.raises(InputError, match="streamed from files.*dataset.pool=host"):
        use(records(tmp_path / "x", images(3)))


def test_a_damaged_record_is_an_input_error(tmp_path):
    path, x = tmp_path / "x", images(40)
    found = records(path, x)
    content = bytearray(path.read_bytes())
    middle = content.index(x[20].tobytes()[:64])
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged: .*"):
        found[np.arange(40)]


def test_missing_records_are_an_input_error(tmp_path):
    found = records(tmp_path / "x", images(3))
    (tmp_path / "x").unlink()
    with pytest.raises(InputError, match="damaged: "):
        found[np.arange(2)]


# --------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("kind", ["host", "stream"])
@pytest.mark.parametrize("setting", list(EPISODES))
def test_tasks_are_those_on_the_device(setting, kind, tmp_path):
    pool, episode = make_pool(setting), EPISODES[setting]
    source = source_of(moved(pool, kind, tmp_path), setting)
    for step in (0, 9):
        key_tasks, _ = jax.random.split(jax.random.fold_in(KEY, step))
        keys = jax.random.split(key_tasks, 4)
        tasks = task_inputs(source[step])
        for i in range(4):
            task = jax.tree.map(lambda leaf, i=i: leaf[i], tasks)
            assert_same(task, task_of(pool, keys[i], episode))


def test_tasks_of_a_pass_are_those_on_the_device(tmp_path):
    pool = make_pool("non_label_sharing")
    episode = Episode(2, 3, None)  # with padding
    source = TaskSource(
        moved(pool, "stream", tmp_path), KEY, Passes(episode, 3, (0, 1, 2)), 2
    )
    tasks = task_inputs(source[1])
    for i in range(3):
        key_task, _ = jax.random.split(jax.random.fold_in(KEY, 3 + i))
        task = jax.tree.map(lambda leaf, i=i: leaf[i], tasks)
        assert_same(task, task_of(pool, key_task, episode))


def test_each_host_reads_only_its_own_tasks(tmp_path):
    pool = moved(make_pool("non_label_sharing"), "stream", tmp_path)
    everything = source_of(pool)[3]
    read = []

    class Watched:
        def __getitems__(self, keys):
            read.extend(keys)
            return pool.x.source.__getitems__(keys)

    watched = records(tmp_path / "y", pool.x[:])
    watched.source = Watched()
    mine = source_of(dataclasses.replace(pool, x=watched), local=(1, 3))
    rows = mine.rows(3)
    tasks = mine[3]
    assert_same(tasks, jax.tree.map(lambda leaf: leaf[np.array([1, 3])], everything))
    wanted = np.concatenate([rows.support.x.ravel(), rows.query.x.ravel()])
    assert len(read) == 2 * 3 * (2 + 2)  # 2 of the 4 tasks
    assert sorted(read) == sorted(watched.rows[wanted])


@pytest.mark.parametrize("kind", ["host", "stream"])
@pytest.mark.parametrize("start", [0, 7, 8, 19, 20])
def test_iterating_from_any_step(kind, start, tmp_path):
    pool = moved(make_pool("non_label_sharing"), kind, tmp_path)
    source = source_of(pool)
    with contextlib.closing(iterate(source, pool, start)) as items:
        found = list(items)
    assert len(found) == 20 - start
    for step, tasks in enumerate(found, start):
        assert_same(tasks, source[step])


def test_threads_end_with_the_iterator(tmp_path):
    pool = moved(make_pool("non_label_sharing"), "stream", tmp_path)
    before = threading.active_count()
    items = iterate(source_of(pool), pool)
    next(items)
    items.close()
    for thread in threading.enumerate():
        if thread.name.startswith("grain"):
            thread.join(10)
    assert threading.active_count() == before


def test_a_damaged_record_ends_the_iteration(tmp_path):
    pool = moved(make_pool("non_label_sharing"), "stream", tmp_path)
    (tmp_path / "x.array_record").write_bytes(b"no records" * 1000)
    with (
        contextlib.closing(iterate(source_of(pool), pool)) as items,
        pytest.raises(InputError, match="damaged: "),
    ):
        next(items)


@pytest.mark.slow
def test_processes_read_the_same_tasks_and_their_death_is_reported(tmp_path):
    pool = moved(make_pool("non_label_sharing"), "stream", tmp_path)
    source = source_of(pool)
    items = iterate(source, pool, 5, workers=2)
    for step in (5, 6, 7):
        assert_same(next(items), source[step])
    children = multiprocessing.active_children()
    assert len(children) == 2
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(InputError, match="a process that reads records died"):
        for _ in items:
            pass
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_closing_ends_the_processes(tmp_path):
    pool = moved(make_pool("non_label_sharing"), "stream", tmp_path)
    items = iterate(source_of(pool), pool, workers=1)
    next(items)
    assert len(multiprocessing.active_children()) == 1
    items.close()
    assert not multiprocessing.active_children()


# ----------------------------------------------------------------------- placement


def test_auto_takes_the_first_place_with_room(monkeypatch):
    monkeypatch.setattr(placement, "available_memory", lambda: 10_000_000)
    copies = len(jax.local_devices()) + 1  # the tests have two devices
    for size, streams, kind in (
        (5_000_000 // copies, True, "device"),
        (5_000_000 // copies + copies, True, "host"),
        (5_000_000, True, "host"),
        (5_000_001, True, "stream"),
        (5_000_001, False, "host"),
    ):
        found, reason = choose(size, streams)
        assert found == kind, size
        assert "of samples" in reason
    assert choose(6_000_000, True)[1] == (
        f"6.0 MB of samples, {copies} times, take more than half of the device's"
        " memory of 10.0 MB, and of this machine's"
    )


@pytest.mark.parametrize("kind", ["device", "host", "stream"])
def test_place_moves_all_pools(kind, tmp_path):
    found = splits("stream", tmp_path)
    after = place(found, kind, workers=0)
    assert after.placement == f"dataset.pool={kind}"
    for name in ("train", "validation", "test"):
        pool = getattr(after, name)
        assert kind_of(pool) == kind
        np.testing.assert_array_equal(pool.x[:], getattr(found, name).x[:])


def test_auto_prints_its_reason(tmp_path):
    size = 3 * make_pool("non_label_sharing").x.nbytes / 1e6
    after = place(splits("stream", tmp_path), "auto")
    assert kind_of(after.train) == "device"
    assert after.placement.startswith(f"dataset.pool=device: {size:.1f} MB of samples")


def test_arrays_cannot_be_streamed():
    with samples_stay():
        found = make_pool("non_label_sharing")
    assert kind_of(found) == "host"
    toy = data.Splits("toy", "non_label_sharing", found, None, None, note="")
    with pytest.raises(InputError, match="toy can't be streamed.*dataset.pool=host"):
        place(toy, "stream")


def test_streaming_without_grain(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(InputError, match=r"'grain'; pip install -e '\.\[stream\]'"):
        place(splits("stream", tmp_path), "stream")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "disk"}, "unknown pool 'disk'; choose one of: auto, device, host"),
        ({"workers": -1}, "workers is -1; expected an integer from 0"),
    ],
)
def test_invalid_placement(options, message):
    with pytest.raises(InputError, match=message):
        data.load("rainbow_mnist", source="builtin", **options)


def test_host_pool_of_a_dataset():
    options = {"source": "builtin", "images_per_class": 2, "train_classes": 2}
    device = data.load("rainbow_mnist", **options)
    host = data.load("rainbow_mnist", pool="host", **options)
    assert (kind_of(device.train), kind_of(host.train)) == ("device", "host")
    assert_same(jax.device_get(host.test), jax.device_get(device.test))
