"""Curves: their integral, their files, and the comparison of a simulated one with an observed one."""

from __future__ import annotations

import pytest

from llm_ray.errors import ConfigError
from llm_ray.simulate.curve import Curve, compare, curve_of, observed, read_csv, write_csv
from llm_ray.simulate.fleet import Point

POINTS = (Point(0.0, 1, 1, 1), Point(10.0, 3, 1, 1), Point(12.0, 3, 3, 1), Point(40.0, 3, 3, 3))


def test_the_integral_is_count_times_seconds():
    curve = curve_of(POINTS, "ready", 100.0)
    assert curve.integral(0, 100) == 40 * 1 + 60 * 3
    assert curve.integral(39, 41) == 4
    assert curve.at(39.9) == 1
    assert curve.at(40.0) == 3


def test_equal_curves_do_not_differ_and_a_late_step_differs_by_its_delay():
    simulated = Curve((0.0, 50.0), (1.0, 3.0), 100.0)
    assert compare(simulated, simulated).difference == 0
    late = compare(simulated, Curve((0.0, 60.0), (1.0, 3.0), 100.0))
    assert (late.simulated_s, late.observed_s, late.difference_s) == (200, 180, 20)
    assert late.difference == pytest.approx(20 / 180)


def test_only_the_time_that_both_cover_counts():
    both = compare(Curve((0.0,), (1.0,), 500.0), observed([(300.0, 2), (10.0, 1), (200.0, 1)]))
    assert (both.start, both.end) == (10.0, 300.0)
    assert both.observed_s == 290  # the last sample is where the observation ends


def test_a_curve_survives_its_file(tmp_path):
    write_csv(tmp_path / "curve.csv", POINTS, 100.0)
    for column in ("wanted", "pods", "ready"):
        read = read_csv(tmp_path / "curve.csv", column)
        assert read.integral(0, 100) == curve_of(POINTS, column, 100.0).integral(0, 100)
        assert read.end == 100.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Curve((), (), 1.0), ["as many times (0)"]),
        (lambda: Curve((2.0, 1.0), (1.0, 1.0), 3.0), ["must rise"]),
        (lambda: Curve((2.0,), (1.0,), 1.0), ["must rise"]),
        (lambda: compare(Curve((0.0,), (1.0,), 5.0), Curve((7.0,), (1.0,), 9.0)), ["share no time", "7 to 9"]),
    ],
)
def test_curves_that_say_nothing_are_refused(make, words):
    with pytest.raises(ConfigError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), raised.value


def test_a_file_without_the_column_or_with_other_than_numbers_is_refused(tmp_path):
    (tmp_path / "curve.csv").write_text("t,count\n0,1\n1,x\n")
    with pytest.raises(ConfigError, match="has no column ready; it has t, count"):
        read_csv(tmp_path / "curve.csv", "ready")
    with pytest.raises(ConfigError, match="could not convert"):
        read_csv(tmp_path / "curve.csv", "count")
