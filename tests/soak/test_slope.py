"""Growth of a measured series, and noise that is not growth."""

from __future__ import annotations

import math
from random import Random

import pytest

from tests.soak.__main__ import verdicts_of, warm_up_s
from tests.soak.slope import Bound, judge, slope, thinned

BOUND = Bound(10, 0.05)


def a_line(growth_per_s: float, *, noise: float = 0.0, peaks: int = 0) -> list[tuple[float, float]]:
    """Return 600 samples of an hour and forty minutes around 100."""
    random = Random(4)  # noqa: S311  no secret
    line = [
        (10.0 * number, 100 + growth_per_s * 10 * number + random.uniform(-noise, noise))
        for number in range(600)
    ]
    for at in random.sample(range(600), peaks):
        line[at] = (line[at][0], line[at][1] + 1_000)
    return line


@pytest.mark.parametrize("growth_per_s", [0.0, 0.01, -0.02])
def test_the_slope_is_found_under_noise_and_peaks(growth_per_s: float) -> None:
    """Single peaks change next to nothing."""
    found = slope(a_line(growth_per_s, noise=5, peaks=60))
    assert math.isclose(found, growth_per_s, abs_tol=0.0015)


def test_what_grows_past_its_bound_is_told() -> None:
    """A hundred entries in an hour and a half are too many, noise and a step at the start not."""
    assert not judge("x", a_line(0.02, noise=5), BOUND, 0).is_good
    assert judge("x", a_line(0, noise=50, peaks=100), BOUND, 0).is_good
    warm = [(at, 20.0 if at < 900 else 100.0) for at, _ in a_line(0)]
    assert judge("x", warm, BOUND, 900).is_good


def test_a_share_of_the_median_is_allowed() -> None:
    """The larger of both bounds counts."""
    line = [(at, 10 * value) for at, value in a_line(0.005)]
    assert judge("x", line, Bound(10), 0).growth > 10
    assert judge("x", line, Bound(10, 0.5), 0).is_good


def test_a_long_series_is_thinned_by_medians() -> None:
    """All parts are kept."""
    line = [(float(at), float(at)) for at in range(6_000)]
    few = thinned(line)
    assert len(few) == 200
    assert math.isclose(slope(line), 1.0)
    assert thinned(line[:5]) == line[:5]


def test_fewer_than_two_samples_have_no_slope() -> None:
    """A run that was too short grows nothing."""
    assert slope([]) == slope([(1.0, 5.0)]) == 0.0


def test_a_memory_may_fill_up_to_its_constant() -> None:
    """Growth is judged from then on, and more than the constant is wrong."""
    filling = [(10.0 * n, min(16_384.0, 82.0 * n)) for n in range(600)]
    blocks = [(at, 200_000 + 3 * value) for at, value in filling]
    series = {"broker table Calls._past": filling, "broker blocks": blocks}
    assert 1_900 < warm_up_s(series, 6_000) < 2_100
    assert all(each.is_good for each in verdicts_of(series, 6_000))
    too_many = {"broker table Calls._past": [(at, value + 1) for at, value in filling]}
    assert [each.is_good for each in verdicts_of(too_many, 6_000)] == [False]
