"""Held-out tasks of users' data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlti_jax.data._own.splitting import split_groups
from mlti_jax.errors import InputError
from tests.support.property_settings import settings_of

NAMES = [f"hospital_{i}" for i in range(10)]


def split(names=NAMES, validation=None, test=0.2, **options):
    return split_groups(names, validation=validation, test=test, **options)


def test_split_with_names():
    parts = split(validation=["hospital_3"], test=["hospital_9", "hospital_0"])
    assert parts["validation"] == ("hospital_3",)
    assert parts["test"] == ("hospital_0", "hospital_9")
    assert len(parts["train"]) == 7


def test_strings_as_on_the_command_line():
    assert split(test="0.2") == split(test=0.2)
    assert split(test="hospital_1, hospital_2")["test"] == ("hospital_1", "hospital_2")
    assert split(["1", "2", "3"], test="2")["test"] == ("2",)
    assert split(["1", "2", "3"], test=[2])["test"] == ("2",)


@pytest.mark.parametrize(
    ("fraction", "number"), [(0.01, 1), (0.2, 2), (0.24, 2), (0.25, 3)]
)
def test_a_fraction_holds_out_at_least_one_task(fraction, number):
    assert len(split(test=fraction)["test"]) == number


def test_a_fraction_holds_out_at_least_two_classes():
    parts = split(validation=0.01, test=0.01, kind="class")
    assert [len(parts[part]) for part in ("train", "validation", "test")] == [6, 2, 2]


def test_seeds_draw_different_tasks_and_validation_does_not_change_test():
    tests = {split(seed=seed)["test"] for seed in range(20)}
    assert len(tests) > 5
    for seed in range(5):
        alone = split(seed=seed)["test"]
        assert split(validation=0.3, seed=seed)["test"] == alone


@settings_of(max_examples=50)
@given(
    names=st.sets(st.text(min_size=1), min_size=6, max_size=30),
    validation=st.none() | st.floats(0.01, 0.3),
    test=st.none() | st.floats(0.01, 0.3),
    seed=st.integers(0, 5),
    random=st.randoms(use_true_random=False),
)
def test_splits_are_disjoint_and_independent_of_the_order(
    names, validation, test, seed, random
):
    listed = sorted(names)
    shuffled = random.sample(listed, len(listed))
    parts = split(listed, validation, test, seed=seed)
    assert split(shuffled, validation, test, seed=seed) == parts
    together = [name for part in parts.values() for name in part]
    assert sorted(together) == listed
    assert bool(parts["validation"]) == (validation is not None)
    assert bool(parts["test"]) == (test is not None)
    assert parts["train"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": ["hospital_1l"]}, r"did you mean 'hospital_1'\?"),
        (
            {"test": ["clinic"]},
            "unknown task 'clinic'; the tasks are: hospital_0.*and 5 more",
        ),
        (
            {"test": ["hospital_1"], "validation": ["hospital_1", "hospital_2"]},
            "'hospital_1' is in both validation and test",
        ),
        ({"test": ["hospital_1", "hospital_1"]}, "task 'hospital_1' twice"),
        (
            {"test": NAMES},
            "validation holds out 0 and test 10 of 10 tasks, which leaves 0",
        ),
        ({"test": 0.6, "validation": 0.5}, "which leaves 0 for training"),
        ({"test": 1.0}, "test is 1.0; expected a fraction between 0 and 1, a list of"),
        ({"validation": 3}, "validation is 3; expected a fraction"),
        ({"test": True}, "test is True"),
        ({"seed": -1}, "seed is -1"),
        ({"test": ["hospital_1"], "kind": "class"}, "test has a single class"),
        (
            {"names": ["a", "b", "c"], "kind": "class"},
            "of 3 classes, which leaves 1 for training; expected at least 2",
        ),
    ],
)
def test_errors(options, message):
    with pytest.raises(InputError, match=message):
        split(**options)
