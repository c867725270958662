"""Work in several processes."""

import pytest

from mlti_jax._internal.processes import ordered_map
from mlti_jax.errors import InputError


def square(number):
    if number < 0:
        raise InputError(f"{number} is negative")
    return number**2


def test_ordered_map_keeps_the_order():
    numbers = range(500)
    squares = [number**2 for number in numbers]
    assert list(ordered_map(square, numbers, 1)) == squares
    assert list(ordered_map(square, numbers, 2)) == squares


def test_ordered_map_bounds_items_in_progress():
    taken = []

    def numbers():
        for number in range(100_000):
            taken.append(number)
            yield number

    results = ordered_map(square, numbers(), 2)
    assert next(results) == 0
    results.close()
    assert len(taken) < 1000


def test_ordered_map_raises_errors_of_the_function():
    results = ordered_map(square, [*range(40), -1, *range(1000)], 2)
    with pytest.raises(InputError, match="-1 is negative"):
        list(results)
    with pytest.raises(InputError, match="processes is 0"):
        list(ordered_map(square, [1], 0))
