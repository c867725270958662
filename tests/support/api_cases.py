"""Small tasks for the tests of `fit`, `adapt` and `predict`."""

import functools

import numpy as np

import mlti_jax
from mlti_jax.data import ClassPool, DomainPool, RegressionPool, Splits

SMALL = {
    "backbone.mlp.hidden": (8, 8),
    "train.log_every": 10,
    "train.meta_batch_size": 2,
    "eval.every": 10,
    "eval.num_tasks": 20,
    "eval.validation_tasks": 10,
}
FEATURES = 6


def samples(label, per_class=12, spread=0.7):
    """Vectors of one class, whose mean the name of the class determines."""
    rng = np.random.default_rng(abs(hash_of(label)))
    mean = 2 * rng.normal(size=FEATURES)
    noise = rng.normal(size=(per_class, FEATURES))
    return (mean + spread * noise).astype(np.float32)


def hash_of(label):
    """A number for a name, the same in every process."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(str(label)))


def class_pool(prefix, number, per_class=12, spread=0.7):
    names = [f"{prefix}{i}" for i in range(number)]
    x = np.concatenate([samples(name, per_class, spread) for name in names])
    return ClassPool.from_arrays(x, np.repeat(names, per_class))


def class_splits(validation=True, spread=0.7):
    """Non-label-sharing: 6 classes to train on, 4 to choose, 4 to test."""
    return Splits(
        "toy_classes",
        "non_label_sharing",
        class_pool("train", 6, spread=spread),
        class_pool("validation", 4, spread=spread) if validation else None,
        class_pool("test", 4, spread=spread),
        "toy classes",
    )


def domain_pool(prefix, number, labels=("inactive", "active"), per_class=12):
    """Classes mean the same in all domains, which are shifted against each other."""
    x, domain, label = [], [], []
    for i in range(number):
        shift = samples(f"{prefix}{i}", 1)
        for name in labels:
            x.append(samples(name, per_class) + 0.3 * shift)
            domain += [f"{prefix}{i}"] * per_class
            label += [name] * per_class
    x = np.concatenate(x)
    return DomainPool.from_arrays(x, np.array(domain), np.array(label), classes=labels)


def domain_splits(labels=("inactive", "active")):
    return Splits(
        "toy_domains",
        "label_sharing",
        domain_pool("train", 4, labels),
        None,
        domain_pool("test", 3, labels),
        "toy domains",
    )


def regression_pool(prefix, number, per_object=24, targets=1):
    rng = np.random.default_rng(hash_of(prefix))
    x = rng.normal(size=(number * per_object, FEATURES)).astype(np.float32)
    slopes = 0.5 * rng.normal(size=(number, FEATURES, targets))
    names = np.repeat([f"{prefix}{i}" for i in range(number)], per_object)
    y = np.einsum("nf,nft->nt", x, np.repeat(slopes, per_object, axis=0))
    return RegressionPool.from_arrays(x, y, names)


def regression_splits(targets=1):
    return Splits(
        "toy_targets",
        "regression",
        regression_pool("train", 4, targets=targets),
        None,
        regression_pool("test", 3, targets=targets),
        "toy targets",
    )


def fit_small(splits, learner=None, strategy="mlti", **fields):
    """A learner after a few steps, in silence."""
    given = {name: v for name, v in fields.items() if "." not in name}
    overrides = {**SMALL, **{name: v for name, v in fields.items() if "." in name}}
    given = {"steps": 20, "shots": 3, "verbose": False, **given}
    return mlti_jax.fit(splits, learner, strategy, overrides=overrides, **given)


@functools.cache
def fitted(name):
    """Learners that several tests of a file share."""
    return {
        "protonet": lambda: fit_small(class_splits(), ways=3),
        "matchingnet": lambda: fit_small(
            class_splits(), "matchingnet", ways=3, **{"eval.num_tasks": 4}
        ),
        "maml": lambda: fit_small(class_splits(), "maml", ways=3),
        "maml_running": lambda: fit_small(
            class_splits(), "maml", ways=3, **{"learner.maml.norm": "running"}
        ),
        "anil_domains": lambda: fit_small(
            domain_splits(), "anil", **{"learner.anil.norm": "running"}
        ),
        "protonet_domains": lambda: fit_small(domain_splits()),
        "regression": lambda: fit_small(
            regression_splits(), shots=5, **{"learner.maml.norm": "running"}
        ),
    }[name]()


def task(names, shots, queries=4):
    """A new task of named classes: support and query samples, and their labels."""
    x = {name: samples(f"new {name}", shots + queries) for name in names}
    support = np.concatenate([x[name][:shots] for name in names])
    query = np.concatenate([x[name][shots:] for name in names])
    return (
        (support, np.repeat(list(names), shots)),
        (query, np.repeat(list(names), queries)),
    )
