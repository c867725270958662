"""What does not depend on the adapted parameters is computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

from mlti_jax import ops
from mlti_jax.learners import adapt
from mlti_jax.learners._hoist import hoist

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (4, 3))
FIRST, LAST = jax.random.normal(KEY, (3, 5)), jax.random.normal(KEY, (5, 2))


def loss_of(first, last, index):
    """A network of which `last` is adapted, and noise of each step."""
    h = jax.jit(jnp.tanh)(X @ first)
    noise = jax.random.normal(jax.random.fold_in(KEY, index), (4, 2))
    return jnp.mean((h @ last - noise) ** 2) + jnp.sum(first**2)


def adapted(first, last, hoisted):
    def loss(last, index):
        return loss_of(first, last, index)

    loss = hoist(loss, last, jnp.int32(0)) if hoisted else loss
    return adapt(loss, last, lambda g: 0.1 * g, num_steps=3)


def outer(first, last, hoisted):
    return jnp.sum(jnp.sin(adapted(first, last, hoisted)))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_values_and_second_derivatives_are_the_same(transform):
    found, expected = (
        transform(jax.value_and_grad(lambda a, b, h=h: outer(a, b, h), (0, 1)))(
            FIRST, LAST
        )
        for h in (True, False)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        found,
        expected,
    )


def test_gradient_by_finite_differences():
    gradient = jax.grad(outer)(FIRST, LAST, True)
    step = 1e-2
    for i, j in ((0, 0), (2, 4)):
        change = jnp.zeros_like(FIRST).at[i, j].set(step)
        up, down = (outer(FIRST + s * change, LAST, True) for s in (1, -1))
        np.testing.assert_allclose(gradient[i, j], (up - down) / 2 / step, rtol=2e-2)


def test_batches_of_tasks():
    firsts = jnp.stack([FIRST, 2 * FIRST])
    found = jax.vmap(lambda first: adapted(first, LAST, True))(firsts)
    expected = [adapted(first, LAST, False) for first in firsts]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def primitives(jaxpr: Jaxpr | ClosedJaxpr, inside: str) -> list[str]:
    """Names of the operations inside of all operations called `inside`."""
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    found = []
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, Jaxpr | ClosedJaxpr):
                    here = "" if equation.primitive.name == inside else inside
                    found += primitives(inner, here)
        if not inside:
            found.append(equation.primitive.name)
    return found


@pytest.mark.parametrize("hoisted", [True, False])
def test_the_loop_has_only_what_changes(hoisted):
    program = jax.make_jaxpr(lambda a, b: adapted(a, b, hoisted))(FIRST, LAST)
    assert ("tanh" in primitives(program, "scan")) == (not hoisted)


def test_custom_derivatives_are_kept():
    images = jax.random.normal(KEY, (2, 6, 6, 3))

    def network(kernel, weight, hoisted):
        def loss(weight):
            return jnp.sum(ops.conv2d(images, kernel) ** 2) * weight

        return (hoist(loss, weight) if hoisted else loss)(weight)

    kernel = jax.random.normal(KEY, (3, 3, 3, 4))
    programs = [
        str(jax.make_jaxpr(jax.grad(network), static_argnums=2)(kernel, 2.0, hoisted))
        for hoisted in (True, False)
    ]
    assert [text.count("conv_general_dilated") for text in programs] == [
        programs[1].count("conv_general_dilated")
    ] * 2


def test_nothing_depends_and_everything_depends():
    assert float(hoist(lambda w: jnp.sin(X).sum(), 1.0)(2.0)) == pytest.approx(
        float(jnp.sin(X).sum())
    )
    assert float(hoist(lambda w: w**2, 1.0)(3.0)) == 9.0
    assert hoist(lambda tree: {"same": tree}, (1, 2.0))((3, 4.0)) == {"same": (3, 4.0)}
