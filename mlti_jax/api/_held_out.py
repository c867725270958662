"""Tasks that a fitted learner is evaluated on: whether they suit it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from mlti_jax._internal.checks import first_few
from mlti_jax.data import Inputs, Pool, Splits
from mlti_jax.data._own.inputs import Leaf, leaves_of
from mlti_jax.errors import InputError

if TYPE_CHECKING:
    from mlti_jax.api._fitted import FittedLearner


def held_out_pool(fitted: FittedLearner, tasks: Splits | Pool | None) -> Pool:
    """The pool to draw tasks from, its samples made as the learner's were.

    Args:
      fitted: the learner.
      tasks: splits, of which the test pool is taken; a pool, whose samples are taken
        as they are; or None for the data that the learner was fitted on.
    """
    given = fitted.splits if tasks is None else tasks
    if given is None:
        raise InputError(
            "this learner was loaded and has no tasks of its own; give tasks. What it "
            "reached on the test tasks of its training stands in its `result`"
        )
    pool = given.test if isinstance(given, Splits) else given
    if not isinstance(pool, Pool):
        raise InputError(
            f"tasks is of type {type(pool).__name__}; expected a pool, or Splits with "
            "a test pool, as from mlti_jax.data.from_arrays"
        )
    if isinstance(given, Splits) and given.inputs is not None:
        pool = _with_inputs(pool, given.inputs, fitted.inputs)
    there, here = leaves_of(pool.x), fitted.inputs.leaves
    if there != here:
        raise InputError(
            f"the tasks' samples are {_shapes(there)}; the learner was trained on "
            f"{_shapes(here)}"
        )
    if fitted.regression != hasattr(pool, "y"):
        found, own = ("classes", "targets")[:: 1 if fitted.regression else -1]
        raise InputError(f"the tasks have {found}; the learner is for {own}")
    return pool


def _with_inputs(pool: Pool, theirs: Inputs, own: Inputs) -> Pool:
    """The pool as the learner's record of inputs would have made it."""
    for name in ("columns", "smiles"):
        if getattr(theirs, name) != getattr(own, name):
            raise InputError(
                f"the {name} of the tasks are {getattr(theirs, name)}; the learner was "
                f"trained on {getattr(own, name)}"
            )
    if (theirs.mean, theirs.scale) == (own.mean, own.scale):
        return pool
    # They were standardised by the statistics of other tasks: that is undone.
    x = np.asarray(pool.x, np.float64)
    if theirs.mean:
        x = x * np.array(theirs.scale) + np.array(theirs.mean)
    x = own.standardise(x) if own.mean else x.astype(np.float32)
    return pool.replace(x=jnp.asarray(x))


def check_outputs(fitted: FittedLearner, pool: Pool, ways: int) -> None:
    """Refuses tasks of classes that a gradient-based learner has no output for."""
    if fitted.regression or fitted.learner.family != "gradient":
        return
    name, outputs = fitted.config.learner.name, fitted.facts.outputs
    if ways != outputs:
        raise InputError(
            f"{name} was trained on tasks of {outputs} classes and has as many "
            f"outputs; it can't be evaluated with ways={ways}"
        )
    sharing = fitted.facts.setting == "label_sharing"
    if sharing and tuple(pool.classes) != fitted.classes:
        raise InputError(
            f"{name} has an output for each of the classes {listed(fitted.classes)}; "
            f"the tasks have {listed(pool.classes)}"
        )


def listed(names: Any) -> str:
    """The first few names, for a message."""
    return first_few([str(name) for name in names])


def _shapes(leaves: tuple[Leaf, ...]) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
