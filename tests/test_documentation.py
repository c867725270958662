"""README's Python blocks, and the examples in docstrings, run as they stand."""

import doctest
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest

from mlti_jax import interpolation, parallel
from mlti_jax.learners import inner_loop

README = pathlib.Path(__file__).parent.parent / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("index", range(len(python_blocks())))
def test_readme_blocks_run(index):
    scope = {}
    exec(compile(python_blocks()[index], f"README block {index}", "exec"), scope)
    if "new_tasks" in scope:
        old, new = scope["tasks"].support, scope["new_tasks"].support
        assert new.x.shape == old.x.shape
        assert (np.asarray(new.x) != np.asarray(old.x)).any()
        np.testing.assert_array_equal(new.y, old.y)


def test_readme_blocks_fit_together():
    scope = {}
    for block in python_blocks():
        exec(compile(block, "README", "exec"), scope)
    loss, accuracy = scope["objective"](
        scope["variables"], scope["new_tasks"], scope["keys"][0]
    )
    assert np.isfinite(loss)
    assert 0 <= accuracy <= 1


def test_readme_has_the_import_example():
    assert any("interpolation" in block for block in python_blocks())


@pytest.mark.parametrize("module", [interpolation, inner_loop, parallel])
def test_docstring_examples(module):
    scope = {**vars(module), "jnp": jnp}
    failed, tried = doctest.testmod(module, extraglobs=scope)
    assert tried > 0
    assert failed == 0


def test_readme_names_what_there_is():
    from mlti_jax.backbones import BACKBONES
    from mlti_jax.data import DATASETS
    from mlti_jax.learners import LEARNERS
    from mlti_jax.strategies import STRATEGIES

    text = README.read_text()
    for family in (BACKBONES, DATASETS, LEARNERS, STRATEGIES):
        for name in family:
            assert f"`{name}`" in text, name
