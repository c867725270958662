"""NumPy loops for the losses and formulas of the lemmas."""

import functools

import jax
import numpy as np
import scipy.special

PAIRS = [(2.0, 2.0), (0.5, 0.5), (0.1, 0.1), (3.0, 1.5), (0.4, 2.5)]  # of Beta


@functools.cache
def program(function, **static):
    """Jit a function: one program instead of one per operation."""
    return jax.jit(functools.partial(function, **static))


def slope(remainder):
    """Slope of the log of a remainder, from one size to half of it."""
    first, second = np.log(np.abs(np.asarray(remainder)))
    return (first - second) / np.log(2)


def uneven_data(seed=0):
    """Heads, features, labels and prototypes of three tasks with five samples each.

    Features are not centered and classes are not balanced.
    """
    rng = np.random.default_rng(seed)
    y = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [1, 1, 0, 1, 1]])
    h = rng.normal(size=(3, 5, 2)) + rng.normal(size=(3, 1, 2)) + 0.7 * y[..., None]
    return rng.normal(size=(3, 2)), h, y, rng.normal(size=(3, 2, 2))


def logistic(u, y):
    return np.log1p(np.exp(u)) - y * u


def psi(u):
    return np.exp(u) / (1 + np.exp(u)) ** 2


def bounded(u, y):
    return 1 / (1 + np.exp(u))


def jacobi_points(alpha, beta, number=40):
    """Points and probabilities of Beta(alpha, beta), from SciPy."""
    x, weight = scipy.special.roots_jacobi(number, beta - 1, alpha - 1)
    return (1 + x) / 2, weight / weight.sum()


def exchanged_points(alpha, beta, number=40):
    """Points and probabilities of the paper's D_lambda, from its two Beta laws."""
    first, p = jacobi_points(alpha + 1, beta, number)
    second, q = jacobi_points(beta + 1, alpha, number)
    share = alpha / (alpha + beta)
    return np.append(first, second), np.append(share * p, (1 - share) * q)


def draws(y, by_class):
    """Every partner (j, k') with its probability."""
    for j, labels in enumerate(y):
        num_classes = len(set(labels.tolist()))
        for k, label in enumerate(labels):
            if by_class:
                yield j, k, 1 / len(y) / num_classes / (labels == label).sum()
            else:
                yield j, k, 1 / len(y) / len(labels)


def loop_loss(loss, phi, h, y, points, by_class, mixed_labels=False):
    """The interpolated loss, one term at a time."""
    total = 0.0
    for i in range(len(h)):
        for k in range(h.shape[1]):
            for j, other, probability in draws(y, by_class):
                for lam, p in zip(*points, strict=True):
                    mixed = lam * h[i, k] + (1 - lam) * h[j, other]
                    label = y[i, k]
                    if mixed_labels:
                        label = lam * y[i, k] + (1 - lam) * y[j, other]
                    total += probability * p * loss(phi[i] @ mixed, label)
    return total / y.size


def loop_approximation(loss, curvature, phi, h, y, points, by_class):
    """Lemma 1 with the right constants, from the features' covariance matrix."""
    lam, p = points
    mean = p @ lam
    variance, partner = p @ lam**2 - mean**2, p @ (1 - lam) ** 2
    centre = sum(w * h[j, k] for j, k, w in draws(y, by_class))
    sigma = sum(
        w * np.outer(h[j, k] - centre, h[j, k] - centre)
        for j, k, w in draws(y, by_class)
    )
    total = 0.0
    for i in range(len(h)):
        for k in range(h.shape[1]):
            m = phi[i] @ (mean * h[i, k] + (1 - mean) * centre)
            spread = variance * (phi[i] @ (h[i, k] - centre)) ** 2
            spread += partner * phi[i] @ sigma @ phi[i]
            total += loss(m, y[i, k]) + curvature(m) * spread / 2
    return total / y.size


def loop_printed(loss, phi, h, y, constants, by_class, raw=None):
    """A lemma as printed; `raw` are the features of the second moment."""
    mean, c = map(float, constants)
    raw = h if raw is None else raw
    sigma = sum(w * np.outer(raw[j, k], raw[j, k]) for j, k, w in draws(y, by_class))
    total = 0.0
    for i in range(len(h)):
        for k in range(h.shape[1]):
            u = phi[i] @ h[i, k]
            total += loss(mean * u, y[i, k])
            total += c * psi(u) * phi[i] @ sigma @ phi[i]
    return total / y.size
