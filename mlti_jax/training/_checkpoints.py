"""Checkpoints: saved states on disk or in memory."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from mlti_jax._internal.distributed import (
    arrays_of_first,
    from_first,
    number_of_processes,
)
from mlti_jax._internal.progress import say
from mlti_jax._internal.storage import disk_errors, make_folder, reserve
from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

# What Orbax raises if files are missing, cut or changed. Everything else, such as an
# error of a collective, a timeout or a full memory, says nothing about the files.
_DAMAGE = (
    ValueError,  # includes those of JSON and Unicode
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
)
# Errors of the machine that arrive as a `ValueError`: reading again may succeed.
_NOT_DAMAGE = (
    "PERMISSION_DENIED",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "Gloo",  # collectives on CPUs
    *map(
        os.strerror,
        (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM),
    ),
)
# The digest of all other leaves, uint8 [32], which is saved as a leaf itself.
_DIGEST = "sha256"
# Room on disk for a checkpoint, in addition to its numbers: metadata, file blocks.
_BYTES_PER_LEAF, _BYTES_PER_CHECKPOINT = 4096, 2**17


class Checkpoints:
    """Saved states in a directory, written in the background by Orbax.

    A state is stored as a flat dictionary from each leaf's path to its array, which can
    be read without this package, with the SHA-256 of all of them. `restore` verifies
    it, skips incomplete and damaged checkpoints, and says so.

    Args:
      directory: where they are saved.
      keep: number of newest checkpoints to keep; None for all.
    """

    def __init__(self, directory: str | pathlib.Path, keep: int | None) -> None:
        self._directory = pathlib.Path(directory).absolute()
        self._keep = keep
        make_folder(self._directory)
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            enable_async_checkpointing=True,
            create=False,
            multiprocessing_options=_this_process(),
        )
        return ocp.CheckpointManager(self._directory, options=options)

    def steps(self) -> list[int]:
        """Return the saved steps, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: PyTree) -> None:
        """Copy `state` and write it in the background.

        Does nothing if the step is already saved: steps are deterministic.

        Raises:
          OSError: if the disk has no room, or the directory is gone.
        """
        self.wait()  # until the room that the previous one takes is known
        if step in self._manager.all_steps():
            return
        # Copied, since the training step reuses these buffers while Orbax writes.
        flat = {name: np.array(leaf) for name, leaf in leaves_by_name(state).items()}
        size = sum(leaf.nbytes for leaf in flat.values())
        # Orbax's threads would print a traceback for each leaf that does not fit.
        reserve(
            self._directory,
            size + len(flat) * _BYTES_PER_LEAF + _BYTES_PER_CHECKPOINT,
        )
        flat[_DIGEST] = digest_of_leaves(flat)
        with disk_errors(self._directory):
            self._manager.save(step, args=ocp.args.StandardSave(flat), force=True)

    def delete(self, step: int) -> None:
        """Remove one step."""
        self._manager.wait_until_finished()
        self._manager.delete(step)

    def restore(
        self, template: PyTree, step: int | None = None
    ) -> tuple[int, PyTree] | None:
        """Return the newest intact state and its step, or None.

        A damaged checkpoint is set aside.

        Args:
          template: a state of the same structure and shapes.
          step: restore only this step; None for the newest.
        """
        for saved in reversed(self.steps()):
            if step is not None and saved != step:
                continue
            try:
                return saved, read_checkpoint(self._directory, saved, template)
            except DamagedError as error:
                self._set_aside(saved, str(error))
        return None

    def wait(self) -> None:
        """Wait until everything is written; raise errors of the background."""
        with disk_errors(self._directory):
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Wait, and release the directory."""
        with disk_errors(self._directory):
            self._manager.close()

    def _set_aside(self, step: int, fault: str) -> None:
        """Rename a damaged checkpoint, so the step can be saved again."""
        found = self._directory / str(step)
        target = self._directory.parent / f"damaged-{self._directory.name}-{step}"
        while target.exists():
            target = target.with_name(target.name + "-again")
        say(
            f"checkpoint {found} is damaged ({fault}); renamed it to {target}, "
            "continuing with an earlier one if possible"
        )
        self._manager.close()
        found.rename(target)
        self._manager = self._open()


def _this_process() -> ocp.options.MultiprocessingOptions:
    """Make Orbax work in this process alone, without waiting for others.

    States are the same on all processes, so one of them writes and reads.
    """
    if number_of_processes() == 1:
        return ocp.options.MultiprocessingOptions()
    process = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process_{process}",
    )


class SharedCheckpoints:
    """`Checkpoints` of a run of several processes: process 0 writes and reads.

    All processes call the same methods at the same places, and get the same states and
    errors.
    """

    def __init__(self, directory: str | pathlib.Path, keep: int | None) -> None:
        self._own: list[Checkpoints] = []  # one on process 0, none on the others
        from_first(lambda: self._own.append(Checkpoints(directory, keep)))

    def steps(self) -> list[int]:
        """Return the saved steps, ascending."""
        return from_first(lambda: self._own[0].steps())

    def save(self, step: int, state: PyTree) -> None:
        """Copy `state` and write it in the background."""
        from_first(lambda: self._own[0].save(step, state))

    def delete(self, step: int) -> None:
        """Remove one step."""
        from_first(lambda: self._own[0].delete(step))

    def restore(
        self, template: PyTree, step: int | None = None
    ) -> tuple[int, PyTree] | None:
        """Return the newest intact state and its step, or None."""

        found: list[tuple[int, PyTree]] = []  # on process 0

        def read() -> int | None:
            restored = self._own[0].restore(template, step)
            found.extend([restored] if restored else [])
            return restored[0] if restored else None

        saved = from_first(read)
        if saved is None:
            return None
        return saved, arrays_of_first(found[0][1] if found else template)

    def wait(self) -> None:
        """Wait until everything is written; raise errors of the background."""
        from_first(lambda: self._own[0].wait())

    def close(self) -> None:
        """Wait, and release the directory; unlike the others, without an exchange."""
        for own in self._own:
            own.close()


def open_checkpoints(
    directory: pathlib.Path, keep: int | None
) -> Checkpoints | SharedCheckpoints:
    """Open a directory of checkpoints, in a run of any number of processes."""
    kind = Checkpoints if number_of_processes() == 1 else SharedCheckpoints
    return kind(directory, keep)


class DamagedError(Exception):
    """A checkpoint was read and found to be damaged."""


def read_checkpoint(directory: pathlib.Path, step: int, template: PyTree) -> PyTree:
    """Read one state of `Checkpoints` and verify it; nothing on disk is changed.

    Args:
      directory: the directory of the checkpoints, absolute.
      step: the saved step.
      template: a state of the same structure and shapes.

    Raises:
      DamagedError: if the files are incomplete or do not match their checksum.
      InputError: if the state belongs to another model.
    """
    path = directory / str(step)
    try:
        with ocp.StandardCheckpointer(
            multiprocessing_options=_this_process()
        ) as checkpointer:
            flat = dict(checkpointer.restore(path / "default"))
    except _DAMAGE as error:
        if any(sign in str(error) for sign in _NOT_DAMAGE):
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise DamagedError(lines[0][:200]) from error
    found = flat.pop(_DIGEST, None)
    if found is None:
        say(
            f"checkpoint {path} has no checksum, since an earlier version has saved "
            "it; it is used unverified"
        )
    elif not np.array_equal(found, digest_of_leaves(flat)):
        raise DamagedError("its content does not match its checksum")
    return tree_from_leaves(
        flat, template, f"checkpoint {path}", "use another work directory"
    )


def digest_of_leaves(leaves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the SHA-256 of names, dtypes, shapes and bytes, uint8 `[32]`."""
    sha256 = hashlib.sha256()
    for name in sorted(leaves):
        leaf = np.asarray(leaves[name])
        sha256.update(f"{name} {leaf.dtype} {leaf.shape}\n".encode())
        sha256.update(leaf.tobytes())
    return np.frombuffer(sha256.digest(), np.uint8)


class InMemoryCheckpoints:
    """The newest state, kept in memory; used like `Checkpoints`."""

    def __init__(self) -> None:
        self._saved: tuple[int, PyTree] | None = None

    def steps(self) -> list[int]:
        """Return the saved steps: none or one."""
        return [] if self._saved is None else [self._saved[0]]

    def save(self, step: int, state: PyTree) -> None:
        """Copy `state` to the host, in place of the previous one."""
        self._saved = step, jax.tree.map(np.array, state)

    def delete(self, step: int) -> None:
        """Remove one step."""
        if step in self.steps():
            self._saved = None

    def restore(
        self, template: PyTree, step: int | None = None
    ) -> tuple[int, PyTree] | None:
        """Return the saved state and its step, or None."""
        del template
        if self._saved is None or step not in (None, self._saved[0]):
            return None
        return self._saved[0], to_default_device(self._saved[1])

    def wait(self) -> None:
        """Do nothing: `save` has no background."""

    def close(self) -> None:
        """Do nothing."""


def to_default_device(tree: PyTree) -> PyTree:
    """Copy arrays, from the host or from several devices, to the default device."""
    return jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf), copy=True), tree)


def leaves_by_name(tree: PyTree) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, such as `params.model.0.kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
    }


def tree_from_leaves(
    leaves: Mapping[str, Any], template: PyTree, where: str, advice: str
) -> PyTree:
    """Invert `leaves_by_name`.

    Args:
      leaves: arrays by path.
      template: a tree of the expected structure, shapes and dtypes.
      where: the file, for errors.
      advice: what to do if names, shapes or dtypes differ, for errors.
    """
    expected = leaves_by_name(template)
    for name in sorted(set(expected) ^ set(leaves)):
        fault = "lacks" if name in expected else "has the unexpected"
        raise InputError(
            f"{where} {fault} {name}: it belongs to another model; {advice}"
        )
    arrays = []
    for name, leaf in expected.items():
        saved = np.asarray(leaves[name])
        if saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            raise InputError(
                f"{where}: {name} is {saved.dtype}{list(saved.shape)}, expected "
                f"{leaf.dtype}{list(leaf.shape)}; {advice}"
            )
        # Into memory that JAX owns, since the state will be donated.
        arrays.append(jnp.array(saved, copy=True))
    return jax.tree.unflatten(jax.tree.structure(template), arrays)
