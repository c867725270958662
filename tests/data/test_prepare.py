"""Commands `prepare` and `describe`: complete records or none, counts and plots."""

import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import weakref

import matplotlib.image
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from mlti_jax import data
from mlti_jax._internal.locks import locked
from mlti_jax.data import describe
from mlti_jax.data import prepare as prepare_module
from mlti_jax.data._pools import ClassPool, DomainPool
from mlti_jax.data._registry import DATASETS, dataset_builder
from mlti_jax.data._sheet import save_sheet
from mlti_jax.data._splits import Splits
from mlti_jax.data.builders import _base as base
from mlti_jax.data.builders import pose
from mlti_jax.data.prepare import prepare
from mlti_jax.errors import InputError
from tests.support.raw_files import dump

ROOT = pathlib.Path(__file__).parents[2]


def write_raw(folder, objects=2, seed=0):
    """Writes files in the layout of Pose, the fastest dataset to prepare."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for name in pose._FILES.values():
        x = rng.integers(0, 256, (objects, 5, 128 * 128), np.uint8)
        dump((x, rng.random((objects, 5, 1), np.float32)), folder / name)
    return folder


def command(module, *arguments):
    return subprocess.run(
        [sys.executable, "-m", f"mlti_jax.data.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_command_line(tmp_path):
    folder, out = write_raw(tmp_path / "raw"), tmp_path / "out"
    arguments = ["--dataset=pose", f"--data_dir={out}"]
    done = command("prepare", *arguments, f"--raw={folder}")
    assert done.returncode == 0, done.stderr
    assert "prepared pose in" in done.stderr
    assert "records of train: 10 (train_00 5, train_01 5)" in done.stdout
    assert "validation: none in the paper" in done.stdout
    records = sorted((out / "pose" / "1.0.0").glob("*.array_record*"))
    times = [path.stat().st_mtime_ns for path in records]
    assert len(records) == 2

    again = command("prepare", *arguments, f"--raw={folder}")
    assert again.returncode == 0
    assert "already prepared" in again.stderr
    assert [path.stat().st_mtime_ns for path in records] == times

    shown = command("describe", *arguments)
    assert shown.returncode == 0, shown.stderr
    plot = matplotlib.image.imread(out / "pose" / "pose.png")
    assert plot[..., :3].std() > 0.05  # not a blank plot


def test_errors_are_one_line(tmp_path):
    done = command("prepare", "--dataset=pose", f"--data_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --raw=DIR is missing. Get the pose data")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "values", "message"),
    [
        (prepare_module, {}, "--dataset is missing; choose one of: dermnet"),
        (
            prepare_module,
            {"dataset": "imagenet", "raw": "."},
            "unknown dataset 'imagenet'",
        ),
        (
            prepare_module,
            {"dataset": "pose", "raw": "nowhere"},
            "nowhere is not a folder with",
        ),
        (describe, {}, "--dataset is missing; choose one of: dermnet"),
        (describe, {"dataset": "pose"}, "pose is not prepared in"),
        (
            describe,
            {"dataset": "own_data"},
            "own_data is read directly from your files",
        ),
        (
            prepare_module,
            {"dataset": "own_data"},
            "own_data is read directly from your files",
        ),
    ],
)
def test_bad_arguments(tmp_path, module, values, message):
    flags.FLAGS.mark_as_parsed()
    with (
        flagsaver.flagsaver(data_dir=str(tmp_path), **values),
        pytest.raises(InputError, match=message),
    ):
        module.main()


def test_error_for_missing_data_has_instructions_and_command(tmp_path):
    for name in DATASETS:
        if name in ("rainbow_mnist", "own_data"):
            continue
        with pytest.raises(InputError) as error:
            data.load(name, data_dir=tmp_path)
        message = str(error.value)
        assert f"{name} is not prepared in {tmp_path}" in message
        assert dataset_builder(name).INSTRUCTIONS in message
        assert f"python -m mlti_jax.data.prepare --dataset={name} --raw=DIR" in message


def test_every_builder_has_metadata():
    for name in DATASETS:
        if name == "own_data":
            continue
        info = dataset_builder(name).info
        assert info.description
        assert info.homepage.startswith("http")
        assert info.citation.strip().startswith("@")
        assert info.redistribution_info.license
        assert dataset_builder(name).EXAMPLES > 0


def test_failed_preparation_leaves_no_files(tmp_path):
    folder, out = write_raw(tmp_path / "raw"), tmp_path / "out"
    dump("nothing", folder / "val_data_ins.pkl")
    with pytest.raises(InputError, match="val_data_ins.pkl holds a str"):
        prepare("pose", folder, out)
    assert [path.name for path in (out / "pose").iterdir()] == [".lock"]
    with pytest.raises(InputError, match="pose is not prepared"):
        data.load("pose", data_dir=out)


def test_overwriting_is_atomic(tmp_path):
    out = tmp_path / "out"
    prepare("pose", write_raw(tmp_path / "old", objects=2), out)
    new = write_raw(tmp_path / "new", objects=3)
    prepare("pose", new, out)
    assert len(data.load("pose", data_dir=out).train.domains) == 2

    dump("nothing", new / "val_data_ins.pkl")
    with pytest.raises(InputError, match="val_data_ins.pkl"):
        prepare("pose", new, out, overwrite=True)
    assert len(data.load("pose", data_dir=out).train.domains) == 2

    prepare("pose", write_raw(new, objects=3), out, overwrite=True)
    assert len(data.load("pose", data_dir=out).train.domains) == 3
    assert sorted(p.name for p in (out / "pose").iterdir()) == [".lock", "1.0.0"]


def test_full_disk_keeps_old_records(tmp_path, monkeypatch):
    out = tmp_path / "out"
    prepare("pose", write_raw(tmp_path / "old", objects=2), out)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pose.Pose, "_examples", full)
    with pytest.raises(OSError, match="No space left"):
        prepare("pose", write_raw(tmp_path / "new"), out, overwrite=True)
    assert len(data.load("pose", data_dir=out).train.domains) == 2
    assert sorted(p.name for p in (out / "pose").iterdir()) == [".lock", "1.0.0"]


def test_concurrent_preparation_raises(tmp_path):
    folder, out = write_raw(tmp_path / "raw"), tmp_path / "out"
    (out / "pose").mkdir(parents=True)
    with (
        locked(out / "pose", "--data_dir"),
        pytest.raises(InputError, match="another process is using .*--data_dir"),
    ):
        prepare("pose", folder, out)


SLOWLY = """
import os, sys, time
from mlti_jax.data.builders import pose
from mlti_jax.data.prepare import prepare
read = pose.Pose._examples
def slowly(self, split, path):
    for number, example in enumerate(read(self, split, path)):
        if (split, number) == ("test", 3):
            os.write(1, b"half-way\\n")  # prepare suppresses print
            time.sleep(600)
        yield example
pose.Pose._examples = slowly
prepare("pose", sys.argv[1], sys.argv[2])
"""


def test_killed_preparation_can_be_repeated(tmp_path):
    folder, out = write_raw(tmp_path / "raw"), tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, str(folder), str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip() == "half-way"
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = list((out / "pose").rglob("*"))
    assert any(".preparing" in str(path) for path in left)
    with pytest.raises(InputError, match="pose is not prepared"):
        data.load("pose", data_dir=out)

    prepare("pose", folder, out)
    assert len(data.load("pose", data_dir=out).train.domains) == 2
    assert sorted(p.name for p in (out / "pose").iterdir()) == [".lock", "1.0.0"]


def test_damaged_records_raise(tmp_path):
    out = tmp_path / "out"
    prepare("pose", write_raw(tmp_path / "raw"), out)
    path = next((out / "pose" / "1.0.0").glob("*train*"))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(InputError, match=r"can't be read .*prepare pose again"):
        data.load("pose", data_dir=out)


def test_few_examples_are_in_memory_at_once(tmp_path, monkeypatch):
    alive, most = weakref.WeakSet(), 0
    read = pose.Pose._examples

    class Image(np.ndarray):
        """An array with attributes."""

    def watched(self, split, path):
        nonlocal most
        for example in read(self, split, path):
            # A set would compare arrays by value, so an attribute of each is counted.
            holder = example["image"].copy().view(Image)
            alive.add(Watch.of(holder))
            most = max(most, len(alive))
            yield {**example, "image": holder}

    monkeypatch.setattr(pose.Pose, "_examples", watched)
    prepare("pose", write_raw(tmp_path / "raw", objects=10), tmp_path / "out")
    assert most <= 5


class Watch:
    """An object with the lifetime of the array it is attached to."""

    @staticmethod
    def of(array):
        array.watch = Watch()
        return array.watch


def test_interrupted_replacement_is_undone(tmp_path):
    out = tmp_path / "out"
    prepare("pose", write_raw(tmp_path / "old", objects=2), out)
    # The state after a kill between the two renames.
    (out / "pose" / "1.0.0").rename(out / "pose" / "1.0.0.old")
    new = write_raw(tmp_path / "new", objects=3)
    dump("nothing", new / "val_data_ins.pkl")
    with pytest.raises(InputError, match="val_data_ins.pkl"):
        prepare("pose", new, out, overwrite=True)
    assert len(data.load("pose", data_dir=out).train.domains) == 2
    assert sorted(p.name for p in (out / "pose").iterdir()) == [".lock", "1.0.0"]


def test_workers_end_with_the_process_that_started_them(tmp_path):
    program = (
        "import os, time\nfrom mlti_jax._internal.processes import ordered_map\n"
        "if __name__ == '__main__':\n"
        "    numbers = ordered_map(abs, range(9), 2)\n"
        "    next(numbers)\n"
        "    import multiprocessing\n"
        "    pids = [p.pid for p in multiprocessing.active_children()]\n"
        "    print(*pids, flush=True)\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert workers
    process.kill()
    process.wait()
    for _ in range(100):
        if not any(is_running(pid) for pid in workers):
            return
        time.sleep(0.1)
    pytest.fail("workers are still running")


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state[0] != "Z"


class Backwards(base.DatasetBuilder, skip_registration=True):
    """A builder with unsorted examples."""

    INSTRUCTIONS = "none"
    name = "backwards"

    def _info(self):
        import tensorflow_datasets as tfds

        label = tfds.features.ClassLabel(names=["a", "b"])
        return self.describe(
            {"label": label},
            description="d",
            homepage="h",
            citation="c",
            license="l",
        )

    def read_raw(self, folder):
        return {"train": [{"label": "b"}, {"label": "a"}]}


def test_examples_must_be_sorted(tmp_path):
    builder = Backwards(data_dir=tmp_path, file_format="array_record")
    with pytest.raises(AssertionError, match="train: .* after"):
        list(builder._numbered("train", builder.read_raw(tmp_path)["train"]))


def vector_splits():
    rng = np.random.default_rng(0)
    x = rng.random((40, 30)) < 0.3
    label = np.arange(40) % 2
    train = DomainPool.from_arrays(x, np.arange(40) // 10, label)
    return Splits("bits", "label_sharing", train, None, train, "a note")


def class_splits():
    x = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 1), np.uint8)
    pool = ClassPool.from_arrays(x, np.arange(60) % 12)
    return Splits("grey", "non_label_sharing", pool, pool, pool, "a note")


@pytest.mark.parametrize("make", [vector_splits, class_splits])
def test_plot_is_not_blank(tmp_path, make):
    save_sheet(make(), tmp_path / "a.png")
    plot = matplotlib.image.imread(tmp_path / "a.png")
    assert plot[..., :3].std() > 0.05


def test_description_has_counts(monkeypatch):
    monkeypatch.setattr(describe, "load", lambda name, data_dir: vector_splits())
    text = describe.describe("nci", "/nowhere")
    assert "As loaded by default: a note" in text
    assert "train: 40 samples of 4 domains with 2 classes" in text
    assert [line.split() for line in text.splitlines()][3] == ["0", "5", "5"]


def test_progress_lines(tmp_path, monkeypatch, capsys):
    from mlti_jax._internal import progress

    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    prepare("pose", write_raw(tmp_path / "raw"), tmp_path / "out")
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("pose, writing train: example 7/6500") for line in lines)
    assert "left" in lines[0]
    assert "note: wrote 20 examples; the published release has about" in lines[-1]


# ------------------------------------------------------------------- damaged records


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A prepared dataset, whose files are not to be changed."""
    folder = tmp_path_factory.mktemp("damaged")
    prepare("pose", write_raw(folder / "raw"), folder / "out")
    return folder


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 2
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["flip", "truncate", "empty", "remove", "nested"])
def test_damaged_metadata_raises_and_can_be_overwritten(written, tmp_path, kind):
    out = shutil.copytree(written / "out", tmp_path / "out")
    folder = out / "pose" / "1.0.0"
    names = [p.name for p in folder.iterdir() if ".array_record" not in p.name]
    assert {"dataset_info.json", "features.json", "metadata.json"} < set(names)
    for name in names:
        whole = (folder / name).read_bytes()
        if kind == "flip":
            flip(folder / name, len(whole) // 2)
        elif kind == "remove":
            (folder / name).unlink()
        else:
            size = len(whole) // 2 if kind == "truncate" else 0
            nested = b"[" * 10**5 if kind == "nested" else b""
            (folder / name).write_bytes(whole[:size] + nested)
        # Without digests it was prepared by an earlier version; without
        # `dataset_info.json` it is not prepared.
        accepted = kind == "remove" and name == "digests.json"
        if accepted:
            assert len(data.load("pose", data_dir=out).train.domains) == 2
        else:
            for read in (lambda: data.load("pose", data_dir=out), lambda: show(out)):
                with pytest.raises(InputError, match="prepare.* --dataset=pose --raw"):
                    read()
        (folder / name).write_bytes(whole)
    flip(folder / "dataset_info.json", 3)
    prepare("pose", written / "raw", out, overwrite=True)
    assert len(data.load("pose", data_dir=out).train.domains) == 2


def show(out):
    return describe.describe("pose", out)


def test_flipped_bytes_of_records_raise(written, tmp_path):
    out = shutil.copytree(written / "out", tmp_path / "out")
    expected = data.load("pose", data_dir=out)
    for path in (out / "pose" / "1.0.0").glob("*.array_record*"):
        whole = path.read_bytes()
        refused = 0
        for place in (*range(0, 2**16, 997), *range(2**16, len(whole), 4999)):
            flip(path, place)
            try:
                found = data.load("pose", data_dir=out)
            except InputError:
                refused += 1
            else:  # The files are padded with zeros, which are not read.
                for split in ("train", "test"):
                    pools = getattr(expected, split), getattr(found, split)
                    np.testing.assert_array_equal(*(pool.x for pool in pools))
                    np.testing.assert_array_equal(*(pool.y for pool in pools))
            path.write_bytes(whole)
        assert refused > 50
        path.write_bytes(whole[:-1])
        with pytest.raises(InputError, match="has changed since it was written"):
            data.load("pose", data_dir=out)
        path.write_bytes(whole)


@pytest.mark.parametrize("inside", [False, True])
def test_data_directories_that_are_files(tmp_path, inside):
    file = tmp_path / "file"
    file.write_text("")
    out = file / "data" if inside else file
    message = "data directory .*file.* is a file; expected a directory"
    raw = write_raw(tmp_path / "raw")
    for use in (
        lambda: data.load("pose", data_dir=out),
        lambda: data.load("rainbow_mnist", data_dir=out),
        lambda: prepare("pose", raw, out),
        lambda: describe.describe("pose", out),
    ):
        with pytest.raises(InputError, match=message):
            use()
