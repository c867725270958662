"""Checkpoints: the last few states and, apart from them, the best on validation."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from mlti_jax.errors import InputError
from mlti_jax.types import PyTree

# Errors of the machine, after which the same file may well be read.
NOT_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM)


class Checkpoints:
    """Saved states of one kind in a directory, written in the background by Orbax.

    A state is stored as a flat dictionary from each leaf's path to its array, which
    anyone can read without this package. A checkpoint that was cut short is passed
    over when restoring, and the one before it is taken.
    """

    def __init__(self, directory: str | pathlib.Path, keep: int):
        self._directory = pathlib.Path(directory).absolute()
        self._keep = keep
        self._manager = self._open()

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep, enable_async_checkpointing=True, create=True
        )
        return ocp.CheckpointManager(self._directory, options=options)

    def steps(self) -> list[int]:
        """The steps that are saved, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: PyTree) -> None:
        """Saves `state`; returns once it is copied and is written in the background.

        A step that is already saved is left as it is: steps are deterministic.
        """
        if step in self._manager.all_steps():
            return
        # Copied, since the training step will reuse these buffers while Orbax writes.
        flat = {name: np.array(leaf) for name, leaf in _flatten(state).items()}
        with self._disk_errors():
            self._manager.save(step, args=ocp.args.StandardSave(flat), force=True)

    def delete(self, step: int) -> None:
        """Removes one step."""
        self._manager.wait_until_finished()
        self._manager.delete(step)

    def restore(
        self, template: PyTree, step: int | None = None
    ) -> tuple[int, PyTree] | None:
        """The newest state that can be read, with its step; None if there is none.

        Args:
          template: a state of the same structure and shapes.
          step: only this step.
        """
        for saved in reversed(self.steps()):
            if step is not None and saved != step:
                continue
            try:
                flat = self._manager.restore(saved, args=ocp.args.StandardRestore())
            except Exception as error:  # Orbax raises many kinds for damaged files.
                if isinstance(error, MemoryError) or (
                    isinstance(error, OSError) and error.errno in NOT_DAMAGE
                ):
                    raise
                self._set_aside(saved, error)
                continue
            return saved, _unflatten(flat, template, self._directory / str(saved))
        return None

    def wait(self) -> None:
        """Returns when all is written; raises what went wrong in the background."""
        with self._disk_errors():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Waits, and releases the directory."""
        with self._disk_errors():
            self._manager.close()

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """A full disk is told as an `OSError`, whichever library noticed it."""
        try:
            yield
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error) or "No space left" in str(error):
                raise OSError(
                    errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory)
                ) from error
            raise

    def _set_aside(self, step: int, error: Exception) -> None:
        """Moves a damaged checkpoint out of the way, so that it can be saved anew."""
        damaged = self._directory / str(step)
        target = self._directory.parent / f"damaged-{self._directory.name}-{step}"
        while target.exists():
            target = target.with_name(target.name + "-again")
        logging.warning(
            "checkpoint %s can't be read (%s); it is set aside as %s, and an earlier "
            "one is taken if there is one",
            damaged,
            (str(error).splitlines() or [type(error).__name__])[0][:200],
            target,
        )
        self._manager.close()
        damaged.rename(target)
        self._manager = self._open()


def _flatten(state: PyTree) -> dict[str, jax.Array]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
    }


def _unflatten(flat: dict, template: PyTree, path: pathlib.Path) -> PyTree:
    expected = _flatten(template)
    for name in sorted(set(expected) ^ set(flat)):
        where = "lacks" if name in expected else "has, beyond what is expected,"
        raise InputError(
            f"checkpoint {path} {where} {name}: it belongs to another model; use "
            "another work directory"
        )
    leaves = []
    for name, leaf in expected.items():
        saved = np.asarray(flat[name])
        if saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            raise InputError(
                f"checkpoint {path}: {name} is {saved.dtype}{list(saved.shape)}, "
                f"expected {leaf.dtype}{list(leaf.shape)}; use another work directory"
            )
        # Into memory that JAX owns, since the state will be donated.
        leaves.append(jax.numpy.array(saved, copy=True))
    return jax.tree.unflatten(jax.tree.structure(template), leaves)
