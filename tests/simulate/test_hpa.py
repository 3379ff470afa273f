"""The HPA's algorithm, against the cases that Kubernetes' own controller keeps (their numbers, our words)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_ray.errors import ConfigError
from llm_ray.simulate.hpa import DEFAULT_DOWN, DEFAULT_UP, Hpa, HpaSpec, Rules, ScalingPolicy

NOW = 10_000.0


def rules(pods: int = 0, pods_s: int = 0, percent: int = 0, percent_s: int = 0, window_s: int = 0, **more) -> Rules:
    policies = [ScalingPolicy("Pods", pods, pods_s)] if pods else []
    policies += [ScalingPolicy("Percent", percent, percent_s)] if percent else []
    return Rules(window_s, tuple(policies), **more)


def spread(changes: list[int], period_s: float = 120.0) -> list[tuple[float, int]]:
    """Past changes at even distances within the period before NOW."""
    return [(NOW - period_s * (i + 1) / (len(changes) + 1), n) for i, n in enumerate(changes)]


def hpa(least: int = 1, most: int = 1000, up: Rules | None = None, down: Rules | None = None, **memory) -> Hpa:
    return Hpa(HpaSpec(30, least, most, up or DEFAULT_UP, down or DEFAULT_DOWN), **memory)


@pytest.mark.parametrize(
    ("least", "most", "current", "wanted", "expected"),
    [(3, 8, 5, 7, 7), (2, 8, 3, 1, 2), (1, 10, 20, 1000, 10), (100, 150, 100, 1000, 150), (1, 1000, 10, 50, 20)],
)
def test_default_behaviour_keeps_to_the_bounds_and_doubles_at_most(least, most, current, wanted, expected):
    assert hpa(least, most).limit(NOW, current, wanted) == expected


@pytest.mark.parametrize(
    ("up", "most", "current", "wanted", "expected"),
    [
        (rules(pods=1, pods_s=60), 2000, 3, 1000, 4),
        (rules(100, 60, 100, 60), 1000, 10, 500, 110),
        (rules(2, 60, 100, 60), 1000, 10, 500, 20),
        (rules(2, 60, 100, 60, select="Min"), 1000, 10, 500, 12),
        (rules(2, 60, 100, 60, select="Disabled"), 1000, 10, 500, 10),
        (rules(pods=100, pods_s=60), 1000, 10, 50, 50),
        (rules(percent=10000, percent_s=60), 1000, 10, 50, 50),
        (rules(pods=30, pods_s=60), 1000, 10, 50, 40),
        (rules(percent=200, percent_s=60), 1000, 10, 50, 30),
        (rules(percent=1, percent_s=60), 1000, 10, 50, 11),
    ],
)
def test_policies_limit_the_way_up(up, most, current, wanted, expected):
    assert hpa(most=most, up=up).limit(NOW, current, wanted) == expected


@pytest.mark.parametrize(
    ("down", "least", "current", "wanted", "expected"),
    [
        (rules(20, 60, 1, 60), 1, 100, 2, 80),
        (rules(2, 60, 1, 60), 1, 100, 2, 98),
        (rules(2, 60, 1, 60, select="Min"), 1, 100, 2, 99),
        (rules(2, 60, 1, 60, select="Disabled"), 1, 100, 2, 100),
        (rules(pods=100, pods_s=60), 1, 10, 0, 1),
        (rules(percent=100, percent_s=60), 5, 10, 2, 5),
        (rules(pods=5, pods_s=60), 1, 10, 2, 5),
        (rules(percent=50, percent_s=60), 1, 10, 5, 5),
        (rules(percent=50, percent_s=60), 1, 5, 1, 2),
    ],
)
def test_policies_limit_the_way_down(down, least, current, wanted, expected):
    assert hpa(least=least, down=down).limit(NOW, current, wanted) == expected


@pytest.mark.parametrize(
    ("up", "most", "expected"),
    [
        (rules(pods=300, pods_s=60), 200, 200),
        (rules(percent=10000, percent_s=60), 200, 200),
        (rules(pods=5, pods_s=120), 1000, 100),  # 85 + 5 is below what there is: nothing goes up, nothing goes down
        (rules(pods=150, pods_s=120), 1000, 235),
        (rules(percent=200, percent_s=120), 1000, 255),
    ],
)
def test_what_was_added_within_the_period_counts_against_the_limit(up, most, expected):
    assert hpa(most=most, up=up, ups=spread([1, 5, 9])).limit(NOW, 100, 500) == expected


@pytest.mark.parametrize(
    ("down", "least", "changes", "wanted", "expected"),
    [
        (rules(pods=115, pods_s=120), 1, [1, 5, 9], 0, 1),
        (rules(pods=130, pods_s=120), 5, [1, 5, 9], 0, 5),
        (rules(percent=100, percent_s=120), 5, [1, 5, 9], 2, 5),
        (rules(pods=5, pods_s=120), 1, [1, 5, 9], 2, 100),
        (rules(percent=50, percent_s=120), 1, [2, 4, 6], 0, 56),
        (rules(percent=10, percent_s=120), 1, [10, 10, 10], 0, 100),
    ],
)
def test_what_was_removed_within_the_period_counts_against_the_limit(down, least, changes, wanted, expected):
    assert hpa(least=least, down=down, downs=spread(changes)).limit(NOW, 100, wanted) == expected


def test_changes_in_the_other_direction_count_too():
    up = hpa(up=rules(percent=300, percent_s=300), ups=spread([4]), downs=spread([2]))
    assert up.limit(NOW, 6, 24) == 16
    down = hpa(down=rules(percent=50, percent_s=180), ups=spread([2]), downs=spread([4]))
    assert down.limit(NOW, 10, 1) == 6


MINUTE = 60.0


@pytest.mark.parametrize(
    ("past", "current", "proposal", "up_s", "down_s", "expected"),
    [
        ([], 100, 5, 0, 0, 5),
        ([(4, 2), (5, 1)], 100, 3, 0, 180, 5),
        ([(4, 2), (5, 1)], 1, 7, 300, 0, 4),
        ([(1, 2), (2, 1)], 100, 3, 300, 0, 3),
        ([(4, 2), (5, 1)], 1, 3, 0, 300, 3),
        ([(10, 10), (9, 9)], 100, 3, 0, 0, 3),
        ([(10, 10), (9, 9)], 1, 100, 0, 0, 100),
        ([(10, 10), (4, 1), (5, 2), (9, 9)], 100, 3, 0, 180, 5),
        ([(10, 100), (6, 1), (5, 2), (9, 3)], 1, 100, 300, 0, 5),
        ([(2, 100), (3, 3)], 2, 1, 300, 300, 2),
        ([(2, 100), (1, 3)], 2, 3, 300, 300, 2),
    ],
)
def test_recent_recommendations_hold_back_both_ways(past, current, proposal, up_s, down_s, expected):
    one = hpa(
        up=Rules(up_s, DEFAULT_UP.policies),
        down=Rules(down_s, DEFAULT_DOWN.policies),
        recommendations=[(NOW - ago * MINUTE, n) for n, ago in past],
    )
    assert one.stabilize(NOW, current, proposal) == expected


def test_a_new_recommendation_takes_the_place_of_an_outdated_one():
    past = [(NOW - ago * MINUTE, n) for n, ago in [(10, 10), (4, 1), (5, 2), (9, 9)]]
    one = hpa(down=Rules(180, DEFAULT_DOWN.policies), recommendations=past)
    one.stabilize(NOW, 100, 3)
    assert [n for _, n in one.recommendations] == [10, 4, 5, 3]


def test_a_new_change_takes_the_place_of_one_outdated_change():
    past = [(NOW - 29, 8), (NOW - 59, 6), (NOW - 61, 7), (NOW - 61, 9)]
    one = hpa(most=100, up=Rules(0, (ScalingPolicy("Pods", 100, 60), ScalingPolicy("Percent", 100, 30))), ups=past)
    assert one.sync(NOW, 10, 10, 15 * 30.0) == 15
    assert [n for _, n in one.ups] == [8, 6, 7, 5]


@pytest.mark.parametrize(
    ("existing", "metric", "expected"),
    [
        (1, 30.0, 1),
        (1, 32.9, 1),  # within 10 %
        (1, 33.1, 2),
        (3, 81.0, 3),  # exactly at the edge of the tolerance
        (3, 80.9, 3),  # below it, and yet three are needed
        (3, 60.0, 2),
        (3, 59.0, 2),
        (2, 0.0, 0),
        (1, 90.001, 4),
        (1, 90.0004, 3),  # milli-units: the API cannot say more
        (0, 31.0, 2),  # nothing exists: no tolerance
    ],
)
def test_the_proposal_is_the_metric_over_the_average_rounded_up(existing, metric, expected):
    assert hpa().propose(existing, metric) == expected


def test_each_direction_has_its_own_tolerance():
    one = hpa(up=rules(4, 15, tolerance=0.5), down=rules(4, 15, tolerance=0.0))
    assert one.propose(2, 89.0) == 2
    assert one.propose(2, 91.0) == 4
    assert one.propose(4, 89.0) == 3


def test_a_target_outside_its_bounds_is_brought_back_without_a_look_at_the_metric():
    one = hpa(least=2, most=10, up=rules(1, 60), down=rules(1, 60))
    assert one.sync(NOW, 20, 20, 0.0) == 10
    assert hpa(least=5).sync(NOW, 1, 1, 0.0) == 5


def test_a_target_at_zero_is_left_alone():
    assert hpa().sync(NOW, 0, 0, 1000.0) == 0


def test_the_first_count_is_a_recommendation_that_delays_the_way_down():
    one = hpa(down=rules(100, 15, window_s=300))
    counts = [one.sync(t, 5, 5, 30.0) for t in (0.0, 150.0, 299.0)]
    assert counts == [5, 5, 5]
    assert one.sync(301.0, 5, 5, 30.0) == 1


def test_one_pod_a_minute_means_one_pod_a_minute():
    one, current, counts = hpa(up=rules(1, 60)), 1, []
    for t in range(0, 240, 15):
        current = one.sync(float(t), current, current, 300.0)
        counts.append(current)
    # The controller counts changes younger than the period: the fourth look, after 60 s, may add the next.
    assert counts == [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4


def test_the_known_steps_of_the_default_policies_from_1_to_10():
    # Measured on a real controller: 1, 5, then at most double, within 15 s windows.
    one, current, counts = hpa(most=10), 1, []
    for t in range(0, 40, 5):
        current = one.sync(float(t), current, current, 285.0)
        counts.append(current)
    assert counts == [5, 5, 5, 10, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScalingPolicy("Share", 1, 60), ["type", "Share", "Pods or Percent"]),
        (lambda: ScalingPolicy("Pods", 0, 60), ["value (0)", "at least 1", "Disabled"]),
        (lambda: ScalingPolicy("Pods", 1, 1801), ["periodSeconds (1801)", "1800"]),
        (lambda: Rules(3601, DEFAULT_UP.policies), ["stabilizationWindowSeconds (3601)", "3600"]),
        (lambda: Rules(0, ()), ["policies is empty"]),
        (lambda: Rules(0, DEFAULT_UP.policies, "Most"), ["selectPolicy", "Most", "Disabled"]),
        (lambda: HpaSpec(0.0, 1, 2), ["averageValue (0.0)", "0.001"]),
    ],
)
def test_what_the_api_server_would_refuse_is_refused(make, words):
    with pytest.raises(ConfigError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), raised.value


RUNS = json.loads((Path(__file__).parent / "hpa_runs.json").read_text())


@pytest.mark.parametrize("run", RUNS, ids=[str(i) for i in range(len(RUNS))])
def test_random_runs_end_as_in_the_controller_itself(run):
    # Recorded from the functions of Kubernetes 1.37.2's controller with a clock that can be set; the target's status is
    # as many looks behind its spec as lags says.
    up, down = (
        Rules(side["window_s"], tuple(ScalingPolicy(*p) for p in side["policies"]), side["select"], side["tolerance"])
        for side in (run["up"], run["down"])
    )
    one = Hpa(HpaSpec(run["average"], run["min"], run["max"], up, down))
    counts = [run["start"]]
    for look, (metric, lag) in enumerate(zip(run["metrics"], run["lags"], strict=True), 1):
        existing = counts[max(0, len(counts) - 1 - lag)]
        counts.append(one.sync(float(look * run["period_s"]), counts[-1], existing, metric))
    assert counts[1:] == run["replicas"]
