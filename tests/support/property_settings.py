"""Settings of property tests: the same examples each time, on slow machines too."""

import functools

from hypothesis import HealthCheck, settings

settings_of = functools.partial(
    settings,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
