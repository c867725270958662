"""Remainders of the lemmas' second-order approximations for small perturbations.

On random tasks, the interpolated loss minus each approximation of it. The perturbation
is made smaller in two ways. If the features are scaled, everything is expanded around
0, and a correct approximation of the logistic loss has a remainder of O(size^4), since
its third derivative is odd; for Lemma 2's bounded loss it is O(size^3). If the spread
of the mixtures around their mean is scaled, the remainder is O(size^3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.theory import printed
from mlti_jax import theory

ALPHA = 2.0  # the largest in the paper; for others its constant is infinite
SIZES = tuple(2.0**-n for n in range(12))
NOISE = 1e-12  # smaller remainders are rounding errors
BY = ("features", "spread")
# Order of a correct approximation's remainder in the features and in the spread.
ORDERS = {
    "Lemma 1": (4, 3),
    "Lemma 2, bounded": (3, 3),
    "Lemma 2, logistic": (4, 3),
    "Lemma 4, one head": (4, 3),
    "Lemma 4, head per task": (4, 3),
}
APPROXIMATIONS = RIGHT, PRINTED, RIGHT_MEAN = (
    "right",
    "printed",
    "printed, right mean",
)

# (size of the features, spread) -> loss
Loss = Callable[[jax.Array, jax.Array], jax.Array]


class Case(NamedTuple):
    """A lemma: the interpolated loss and approximations of it.

    Attributes:
      loss: the interpolated loss.
      approximations: by name.
    """

    loss: Loss
    approximations: dict[str, Loss]


class Data(NamedTuple):
    """Random tasks: heads `[I, D]`, features `[I, N, D]`, labels, prototypes."""

    phi: jax.Array
    h: jax.Array
    y: jax.Array
    prototypes: jax.Array


def make_data(
    seed: int = 0,
    num_tasks: int = 4,
    per_class: int = 3,
    inputs: int = 5,
    width: int = 4,
) -> Data:
    """Generate centered features of a random hidden layer, with balanced classes.

    All assumptions of the paper hold. Prototypes are class means; heads are their
    differences plus noise, as if learned, normalized to length 1.
    """
    rng = np.random.default_rng(seed)
    y = np.tile([0, 1], (num_tasks, per_class))
    of_class = rng.normal(size=(num_tasks, 2, inputs))
    x = rng.normal(size=(*y.shape, inputs)) + of_class[:, [0, 1] * per_class]
    h = np.maximum(x @ rng.normal(size=(inputs, width)) / np.sqrt(inputs), 0)
    h -= h.mean(axis=(0, 1))
    prototypes = np.stack([h[:, r::2].mean(axis=1) for r in (0, 1)], axis=1)
    phi = prototypes[:, 1] - prototypes[:, 0] + 0.5 * rng.normal(size=h[:, 0].shape)
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    return Data(*map(jnp.asarray, (phi, h, y, prototypes)))


def make_cases(data: Data, alpha: float = ALPHA) -> dict[str, Case]:
    """Build the lemmas for these tasks, with lambda from Beta(alpha, alpha)."""
    law, constants = theory.beta_law(alpha), printed.lemma_constants(alpha)
    right_mean = constants._replace(mean=theory.moments(law).mean)

    def heads(function, argument, phi=data.phi) -> Loss:
        return lambda size, t: function(phi, size * data.h, data.y, argument, t)

    def proto(function, argument, loss) -> Loss:
        theta = data.phi[0]

        def of_size(size, t):
            x, prototypes = size * data.h, size * data.prototypes
            return function(theta, x, data.y, prototypes, argument, t, loss=loss)

        return of_size

    def protonet_case(loss) -> Case:
        return Case(
            proto(theory.protonet_loss, law, loss),
            {
                RIGHT: proto(theory.protonet_approximation, law, loss),
                PRINTED: proto(printed.protonet, constants, loss),
                RIGHT_MEAN: proto(printed.protonet, right_mean, loss),
            },
        )

    one = jnp.broadcast_to(data.phi[0], data.phi.shape)
    return {
        "Lemma 1": Case(
            heads(theory.non_label_sharing_loss, law),
            {
                RIGHT: heads(theory.non_label_sharing_approximation, law),
                PRINTED: heads(printed.non_label_sharing, constants),
                RIGHT_MEAN: heads(printed.non_label_sharing, right_mean),
            },
        ),
        "Lemma 2, bounded": protonet_case(printed.bounded),
        "Lemma 2, logistic": protonet_case(theory.logistic),
        # Equals the label-sharing loss; the printed mean of lambda is correct.
        "Lemma 4, one head": Case(
            heads(printed.exchanged_loss, law, one),
            {
                RIGHT: heads(printed.exchanged_approximation, law, one),
                PRINTED: heads(printed.label_sharing, constants, one),
            },
        ),
        "Lemma 4, head per task": Case(
            heads(theory.label_sharing_loss, law),
            {
                RIGHT: heads(theory.label_sharing_approximation, law),
                PRINTED: heads(printed.label_sharing, constants),
            },
        ),
    }


@jax.jit
def remainders(data: Data, sizes: jax.Array) -> dict:
    """Loss minus approximation, `[S]`, by case, scaled quantity and approximation."""
    ones = jnp.ones_like(sizes)
    arguments = {"features": (sizes, ones), "spread": (ones, sizes)}

    def of_case(case: Case, by: str) -> dict[str, jax.Array]:
        loss = jax.vmap(case.loss)(*arguments[by])
        return {
            label: loss - jax.vmap(function)(*arguments[by])
            for label, function in case.approximations.items()
        }

    cases = make_cases(data)
    return {name: {by: of_case(case, by) for by in BY} for name, case in cases.items()}


def measure(seed: int = 0) -> list[dict]:
    """Measure all cases: remainders and their slopes, per scaled quantity."""
    with jax.enable_x64(True):
        found = remainders(make_data(seed), jnp.asarray(SIZES))
        found = jax.tree.map(lambda leaf: np.abs(np.asarray(leaf)), found)
    return [
        {
            "case": name,
            "sizes": SIZES,
            "order": dict(zip(BY, ORDERS[name], strict=True)),
            "remainder": jax.tree.map(np.ndarray.tolist, found[name]),
            "slope": jax.tree.map(last_slope, found[name]),
        }
        for name in ORDERS
    ]


def last_slope(remainder: np.ndarray) -> float:
    """Slope of log remainder against log size, at the smallest sizes above noise."""
    log_remainder = np.log(remainder[remainder > NOISE][-2:])
    return float((log_remainder[0] - log_remainder[1]) / np.log(2))


def table(results: list[dict]) -> str:
    """Format the remainders at size 1 and the slopes, one line per approximation."""
    lines = [
        f"Remainders of the approximations, Beta({ALPHA:g}, {ALPHA:g})",
        f"{'':45}{'at':>9}{'order in':>18}",
        f"{'':45}{'size 1':>9}{'features':>10}{'spread':>8}",
    ]
    for result in results:
        remainder = result["remainder"]["features"]
        for label in filter(remainder.get, APPROXIMATIONS):
            slopes = [result["slope"][by][label] for by in BY]
            lines.append(
                f"{result['case']:25}{label:20}{remainder[label][0]:>9.1e}"
                f"{slopes[0]:>10.2f}{slopes[1]:>8.2f}"
            )
    return "\n".join(lines)
