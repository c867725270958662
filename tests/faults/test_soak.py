"""Many checkpoints and validations in one process: nothing grows without bound."""

import gc
import os
import pathlib
import threading

import jax
import pytest

from mlti_jax._internal.progress import silence
from mlti_jax.training import _loop as loop
from mlti_jax.training import train_and_evaluate
from tests.support.runs_to_break import small_experiment, write_data

pytestmark = pytest.mark.slow
CHECKPOINTS = 300
PROC = pathlib.Path("/proc/self")


def usage(workdir):
    """Memory in MB, threads, open files, files in the work directory, programs."""
    gc.collect()
    pages = int((PROC / "statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "threads": threading.active_count(),
        "native threads": len(list((PROC / "task").iterdir())),
        "open files": len(list((PROC / "fd").iterdir())),
        "files": sum(1 for path in workdir.rglob("*") if path.is_file()),
        "programs": len(jax.devices()[0].client.live_executables()),
    }


@pytest.mark.skipif(not PROC.exists(), reason="needs /proc")
def test_growth_is_bounded(tmp_path, monkeypatch):
    write_data(tmp_path)
    experiment = small_experiment(
        tmp_path,
        backbone__mlp__hidden=(256, 256),
        train__steps=CHECKPOINTS,
        train__log_every=1,
        train__checkpoint_every=1,
        eval__every=2,
    )
    seen = {}
    save = loop._Run._save

    def save_and_look(self, step):
        save(self, step)
        if step in (CHECKPOINTS // 3, CHECKPOINTS):
            self.last.wait()
            self.best.wait()
            seen[step] = usage(tmp_path / "run")

    monkeypatch.setattr(loop._Run, "_save", save_and_look)
    with silence():
        train_and_evaluate(experiment, tmp_path / "run")
    first, last = seen[CHECKPOINTS // 3], seen[CHECKPOINTS]
    growth = {name: last[name] - first[name] for name in first}
    # Kept checkpoints would be 200 of 0.9 MB; the allocator's own use varies by 10 MB.
    assert growth["memory"] < 50, growth
    assert growth["threads"] <= 2, growth
    assert growth["native threads"] <= 4, growth
    assert growth["open files"] <= 4, growth
    assert growth["files"] <= 20, growth
    assert growth["programs"] == 0, growth
    assert last["files"] < 200, last
