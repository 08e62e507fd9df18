"""The checker of settings: which values fit a type, and what is said of the others."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from guard_core.config import (
    ConfigError,
    Count,
    Interval,
    Positive,
    Share,
    ShareBelowOne,
    check_fields,
    fault,
)

FITS: list[tuple[Any, Any]] = [
    (True, bool),
    (3, int),
    (3, float),
    (1, Share),
    (0.0, ShareBelowOne),
    (None, Count | None),
    (2, Count | None),
    ("a", Literal["a"] | None),
    ("a", int | float | str),
    ((), tuple[Share, ...]),
    ((0.5, 1), tuple[Share, Count]),
    ({"a": 1}, dict[str, int]),
    (5, Annotated[int, "a remark"]),
    (object(), "a type that is not known"),
]


@pytest.mark.parametrize(("value", "kind"), FITS)
def test_a_value_that_fits(value: Any, kind: Any):
    assert fault("x", value, kind) is None


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (1, bool, "x = 1: must be of type bool"),
        (True, float, "x = True: must be of type float"),
        (True, Share, "x = True: must be of type float"),
        (2.0, Count, "x = 2.0: must be of type int"),
        (0, Count, "x = 0: must be at least 1"),
        (math.inf, Positive, "x = inf: must be above 0 and finite"),
        (math.nan, Positive, "x = nan: must be above 0 and finite"),
        (math.nan, Share, "x = nan: must lie in [0, 1]"),
        (math.nan, float, "x = nan: must be a finite number"),
        (1.0, ShareBelowOne, "x = 1.0: must lie in [0, 1)"),
        (1.0, Annotated[float, Interval("(-inf, 0]")], "x = 1.0: must be at most 0"),
        (0, Count | None, "x = 0: must be at least 1"),
        ("1", Count | None, "x = '1': must be of type int"),
        ("b", Literal["a", 1], "x = 'b': must be one of a, 1"),
        ([1.0], tuple[float, ...], "x = [1.0]: must be of type tuple"),
        ((0.5,), tuple[Share, Share], "x = (0.5,): must have 2 entries"),
        ((0.5, 2.0), tuple[Share, ...], "x[1] = 2.0: must lie in [0, 1]"),
        (((0.5, -1.0),), tuple[tuple[float, Share], ...], "x[0][1] = -1.0: must lie in [0, 1]"),
        (3, dict[str, int], "x = 3: must be of type dict"),
    ],
)
def test_a_value_that_does_not_fit(value: Any, kind: Any, message: str):
    assert fault("x", value, kind) == message


@dataclass
class Record:
    """A record with one bounded field."""

    share: Share = 0.5


def test_a_record_raises_the_error_it_is_given():
    check_fields(Record())
    with pytest.raises(ConfigError, match=r"^share = 2: must lie in \[0, 1\]$"):
        check_fields(Record(2))
    with pytest.raises(KeyError, match=r"mine\.share"):
        check_fields(Record(2), error=KeyError, prefix="mine.")
