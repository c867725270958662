"""Runs of several processes and devices equal a run on a single device."""

import json
import os
import pathlib
import re
import shutil
import signal

import jax
import numpy as np
import pytest

from mlti_jax._internal import distributed
from mlti_jax._internal.distributed import Cluster, find_cluster
from mlti_jax.errors import InputError
from mlti_jax.parallel import Plan
from mlti_jax.training import _metrics as metrics
from tests.support.process_runs import (
    CASES,
    STEPS,
    finish_all,
    flags,
    start_all,
    write_data,
)

# ------------------------------------------------------------------ who is started

VARIABLES = (
    *distributed._VARIABLES,
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_MCA_orte_hnp_uri",
)
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
DETECTED = Cluster(None, None, None)


@pytest.fixture
def environment(monkeypatch):
    for name in (*VARIABLES, *SLURM):
        monkeypatch.delenv(name, raising=False)
    return lambda values: [monkeypatch.setenv(*pair) for pair in values.items()]


@pytest.mark.parametrize(
    ("flag", "values", "expected"),
    [
        (None, {}, None),
        ("host:80,2,1", {}, Cluster("host:80", 2, 1)),
        ("[::1]:80,2,0", {}, Cluster("[::1]:80", 2, 0)),
        ("host:80,1,0", {}, None),
        ("host:80,2,1", SLURM, Cluster("host:80", 2, 1)),
        (
            None,
            dict(zip(distributed._VARIABLES, ("host:80", "4", "3"), strict=True)),
            Cluster("host:80", 4, 3),
        ),
        (None, SLURM, DETECTED),
        (None, {**SLURM, "SLURM_NTASKS": "1"}, None),
        # A shell inside of an allocation.
        (None, {**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, None),
        (
            None,
            {
                "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
                "OMPI_COMM_WORLD_SIZE": "2",
            },
            DETECTED,
        ),
        (
            None,
            {
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_RANK": "1",
                "JAX_COORDINATOR_ADDRESS": "host:80",
            },
            Cluster("host:80", 2, 1),
        ),
    ],
)
def test_clusters_are_found(environment, flag, values, expected):
    environment(values)
    assert find_cluster(flag) == expected


@pytest.mark.parametrize(
    ("flag", "values", "message"),
    [
        ("host:80,2", {}, "expected HOST:PORT,NUM,ID"),
        ("host,2,0", {}, "expected HOST:PORT and two integers"),
        ("host:80,two,0", {}, "expected HOST:PORT and two integers"),
        ("host:80,2,2", {}, "an index from 0 to the number of processes - 1"),
        (None, {"JAX_NUM_PROCESSES": "2"}, "JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID"),
        (None, {"OMPI_COMM_WORLD_SIZE": "2"}, "set JAX_COORDINATOR_ADDRESS"),
    ],
)
def test_wrong_values_are_errors(environment, flag, values, message):
    environment(values)
    with pytest.raises(InputError, match=message):
        find_cluster(flag)


def test_lost_connections_are_recognized():
    lost = ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer")
    assert distributed._is_lost(lost)
    lost = jax.errors.JaxRuntimeError("UNAVAILABLE: the coordination service ended")
    assert distributed._is_lost(lost)
    assert not distributed._is_lost(InputError("no connection"))
    assert not distributed._is_lost(ValueError("peer"))


def test_a_single_process_agrees_with_itself():
    assert distributed.from_first(divmod, 7, 2) == (3, 1)
    assert distributed.largest(15) == 15
    assert distributed.is_first()
    with pytest.raises(ZeroDivisionError):
        distributed.from_first(divmod, 7, 0)


def test_tasks_of_a_single_process():
    plan = Plan(tuple(jax.devices()[:2]))
    assert plan.local_tasks(6) == slice(0, 6)
    values = np.arange(12.0).reshape(6, 2)
    whole = plan.assemble({"x": values})["x"]
    np.testing.assert_array_equal(whole, values)
    rows = {s.device: s.index[0] for s in whole.addressable_shards}
    assert rows[plan.devices[1]] == slice(3, 6)


# --------------------------------------------- the same on all layouts of devices


def run_cases(number, devices, folder, names):
    """Run cases on processes of some devices each, in a folder with the data."""

    def arguments(cluster, index):
        cluster = cluster if number > 1 else "alone"
        program = ["-m", "tests.support.process_runs"]
        return [*program, cluster, str(devices), str(folder), ",".join(names)]

    return finish_all(start_all(number, arguments, devices))


# Each program takes seconds to compile; these have all kinds of layers and passes.
ON_EIGHT = ("maml_passes", "protonet_32")


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    """The work directories of all cases, by the layout of the devices."""
    folders = {}
    for layout, names in ((1, 1), CASES), ((2, 2), CASES), ((1, 8), ON_EIGHT):
        folder = tmp_path_factory.mktemp("layout")
        write_data(folder)
        for code, said, _ in run_cases(*layout, folder, names):
            assert code == 0, said
        folders[layout] = folder
    return folders


def losses(workdir):
    lines = metrics.read(workdir / "metrics.jsonl")
    found = [line["loss"] for line in lines if line["split"] == "train"]
    assert len(found) == STEPS
    return np.array(found)


def difference(a, b):
    return np.max(np.abs(a - b) / np.maximum(np.abs(b), 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "name"),
    [*(((2, 2), name) for name in CASES), *(((1, 8), name) for name in ON_EIGHT)],
)
def test_losses_differ_by_rounding(layouts, layout, name):
    """The tolerance is the rounding of a sum in another order, and its growth.

    Float64 rounds with 1.1e-16 and float32 with 6e-8. After 30 steps, the largest
    relative differences were 8e-16 and 3e-7; the tolerance leaves room for other
    compilers. A difference in the tasks or their weights would be as large in both.
    """
    got, expected = (layouts[each] / name for each in (layout, (1, 1)))
    first, last = (1e-6, 1e-4) if name.endswith("32") else (1e-14, 1e-12)
    a, b = losses(got), losses(expected)
    assert difference(a[:2], b[:2]) < first
    assert difference(a, b) < last
    with np.load(got / "trace.npz") as a, np.load(expected / "trace.npz") as b:
        assert a["devices"] == layout[0] * layout[1]
        assert b["devices"] == 1
        for field in ("domains", "labels"):
            np.testing.assert_array_equal(a[field], b[field])
        for field in [*(f for f in b if f.startswith("arr_")), "outputs"]:
            assert np.max(np.abs(a[field] - b[field])) < last, field
    a, b = (json.loads((each / "results.json").read_text()) for each in (got, expected))
    np.testing.assert_allclose(a["per_task"], b["per_task"], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_set_of_files(layouts, name):
    def files(layout):
        folder = layouts[layout] / name
        found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        # Names of TensorBoard's files and Orbax's data contain a number.
        return sorted({re.sub(r"\d{3,}|[0-9a-f]{32}", "N", each) for each in found})

    def top(layout):
        return sorted(path.name for path in (layouts[layout] / name).iterdir())

    assert top((2, 2)) == top((1, 1))
    lines = (layouts[2, 2] / name / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) == STEPS + 2 + 1  # validations, test
    events = [f for f in files((2, 2)) if "events" in f]
    assert len(events) == len([f for f in files((1, 1)) if "events" in f])


@pytest.mark.slow
def test_devices_take_only_their_own_samples(layouts):
    """In the compiled step, no array has the samples of all tasks."""
    text = (layouts[2, 2] / "protonet_input" / "program.txt").read_text()
    # 8 tasks of 2 ways on 4 devices, with 3 + 4 samples per class, of 8 features
    assert re.search(r"f(32|64)\[2,6,8\]", text)
    assert re.search(r"f(32|64)\[2,8,8\]", text)
    assert not re.search(r"f(32|64)\[8,(6|8),8\]", text)
    # Gradients, the loss and the metric are summed; nothing else is exchanged.
    assert "all-reduce" in text
    for other in ("all-gather", "all-to-all", "collective-permute"):
        assert other not in text


# ------------------------------------------------------------- ends and new starts


def start_run(number, data, workdir, kill=None, **fields):
    """Start `experiments.run`; `kill` is (index, point, call, signal)."""

    def arguments(cluster, index):
        own = flags(data, workdir, **fields)
        if number > 1:
            own.append(f"--distributed={cluster}")
        if kill is not None and index == kill[0]:
            point, call, name = kill[1:]
            program = "tests/support/kill_at.py"
            return [program, point, "after", str(call), name, *own]
        return ["-m", "experiments.run", *own]

    return start_all(number, arguments)


def finished_trace(workdir):
    """Return the curve and the result, without what a clock has written."""
    result = json.loads((workdir / "results.json").read_text())
    curve = metrics.read(workdir / "metrics.jsonl")
    return result, [
        {k: v for k, v in line.items() if k != "steps_per_second"} for line in curve
    ]


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The data, and the work directory of an uninterrupted run of two processes."""
    folder = tmp_path_factory.mktemp("complete")
    write_data(folder)
    for code, said, _ in finish_all(start_run(2, folder, folder / "work")):
        assert code == 0, said
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_others_and_the_run_resumes(
    complete, tmp_path, killed
):
    point = "mlti_jax.training._checkpoints:SharedCheckpoints.save"
    kill = (killed, point, 3, "SIGKILL")
    ended = finish_all(start_run(2, complete, tmp_path / "work", kill))
    assert ended[killed][0] == -signal.SIGKILL
    code, said, seconds = ended[1 - killed]
    assert seconds - ended[killed][2] < 60
    if killed == 1:
        assert code == 2, said
        assert len(re.findall("^error: ", said, re.MULTILINE)) == 1, said
        assert "error: lost the connection to another process" in said
    else:  # JAX may end the process before its own error is seen
        assert code in (2, -signal.SIGABRT), said
        assert re.search("lost the connection|another task died", said), said
    assert "Traceback" not in said
    assert not list((tmp_path / "work").rglob("damaged-*"))
    if killed != 0:
        return
    for code, said, _ in finish_all(start_run(2, complete, tmp_path / "work")):
        assert code == 0, said
    assert finished_trace(tmp_path / "work") == finished_trace(complete / "work")


@pytest.mark.slow
def test_a_signal_stops_all_and_one_process_continues(complete, tmp_path):
    point = "mlti_jax.training._loop:_Run._log"
    ended = finish_all(
        start_run(2, complete, tmp_path / "work", (1, point, 3, "SIGTERM"))
    )
    assert [code for code, _, _ in ended] == [128 + signal.SIGTERM] * 2
    steps = [re.search(r"stopped at step (\d+)", said)[1] for _, said, _ in ended]
    assert steps[0] == steps[1]
    folder = tmp_path / "work" / "checkpoints" / "last"
    assert (folder / steps[0]).is_dir()
    (ended,) = finish_all(start_run(1, complete, tmp_path / "work"))
    assert ended[0] == 0, ended[1]
    assert f"resuming from step {steps[0]}" in ended[1]
    assert (
        "started on 2 devices of 2 processes and continues on 1 device of 1 process"
        in ended[1]
    )
    result, curve = finished_trace(tmp_path / "work")
    expected, expected_curve = finished_trace(complete / "work")
    assert abs(result["mean"] - expected["mean"]) < 0.05
    np.testing.assert_allclose(
        [line["loss"] for line in curve if "loss" in line],
        [line["loss"] for line in expected_curve if "loss" in line],
        rtol=1e-2,
    )


@pytest.mark.slow
def test_errors_are_printed_once(complete, tmp_path):
    shutil.copytree(complete / "work", tmp_path / "work")
    os.remove(tmp_path / "work" / "results.json")
    fields = {"train.learning_rate": "0.5"}
    ended = finish_all(start_run(2, complete, tmp_path / "work", **fields))
    assert [code for code, _, _ in ended] == [2, 2]
    said = "".join(said for _, said, _ in ended)
    assert len(re.findall("^error: ", said, re.MULTILINE)) == 1
    assert "holds a run of a different config" in said


def test_errors_of_the_machine_are_not_damage(tmp_path, monkeypatch):
    from mlti_jax.training import _checkpoints

    checkpoints = _checkpoints.Checkpoints(tmp_path, 1)
    state = {"x": np.arange(3.0, dtype=np.float32)}
    checkpoints.save(1, state)
    checkpoints.wait()

    class Failing:
        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def restore(self, path):
            raise self.error

    monkeypatch.setattr(_checkpoints.ocp, "StandardCheckpointer", Failing)
    for error in (
        jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: a barrier timed out"),
        TimeoutError("no answer"),
        RuntimeError("Gloo all-reduce failed"),
        AssertionError("sync_global_devices name mismatch"),
        ValueError("PERMISSION_DENIED: error reading a file"),
        ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"),
    ):
        Failing.error = error
        with pytest.raises(type(error)):
            checkpoints.restore(state)
    assert checkpoints.steps() == [1]
    assert list(pathlib.Path(tmp_path).glob("damaged-*")) == []
    monkeypatch.undo()
    np.testing.assert_array_equal(checkpoints.restore(state)[1]["x"], state["x"])
    checkpoints.close()
