"""Groups that come and go, and what is true of every run."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_ray.simulate.curve import curve_of
from llm_ray.simulate.hpa import HpaSpec, Rules, ScalingPolicy
from llm_ray.simulate.scalers import FixedScaler, HpaScaler, KedaScaler, Scaler, ServeScaler, ServeSpec
from llm_ray.simulate.settings import Fleet, MetricPath, Rates
from llm_ray.simulate.shape import shape_trace
from llm_ray.simulate.simulator import Result, simulate
from llm_ray.simulate.trace import Trace, make_trace

QUICK = Rates(
    decode_step_s=0.02, decode_seq_s=0.002, max_num_seqs=8, scale_delay_s=2, pod_start_s=10, load_s=20, stop_s=5
)
PATH = MetricPath(push_s=2, scrape_s=2, sync_s=5)
FAST = Rules(0, (ScalingPolicy("Pods", 4, 15),))
RISE = "60:1,180:4,120:1"


def hpa(average: float, most: int = 3, down_s: int = 30, least: int = 1) -> HpaScaler:
    return HpaScaler(HpaSpec(average, least, most, FAST, Rules(down_s, (ScalingPolicy("Percent", 100, 15),))), PATH)


def changes(result: Result, column: str) -> list[int]:
    counts = [getattr(point, column) for point in result.curve]
    return [n for i, n in enumerate(counts) if not i or counts[i - 1] != n]


def test_an_hpa_follows_a_load_that_rises_and_falls():
    result = simulate(shape_trace(RISE, 64, 64), QUICK, Fleet(1, 3), hpa(3), until=420)
    assert changes(result, "wanted") == [1, 3, 1]
    assert changes(result, "ready") == [1, 3, 1]
    up = next(point.t for point in result.curve if point.wanted == 3)
    assert 60 < up < 60 + 2 + 2 + 5 + 5  # what the metric's way takes, and the load needs a moment to build up
    assert next(point.t for point in result.curve if point.pods == 3) == pytest.approx(up + 2)
    assert next(point.t for point in result.curve if point.ready == 3) == pytest.approx(up + 32)
    assert not result.rejected


def test_pods_that_stop_first_finish_what_they_have():
    # One long request per group; then nothing, so that the HPA takes a group that still works on its own.
    requests = [(0.0, 0, 10_001), (0.0, 0, 10_001)]
    rates = Rates(decode_step_s=0.02, decode_seq_s=0.0, stop_s=5)
    result = simulate(make_trace(requests), rates, Fleet(1, 2, 2), hpa(3), until=300)
    assert list(result.latency) == pytest.approx([200.0, 200.0])
    down = next(point.t for point in result.curve if point.wanted == 1)
    assert down < 60
    assert next(point.t for point in result.curve if point.pods == 1) == pytest.approx(205)
    assert result.longest_drain_s == pytest.approx(200 - down - rates.scale_delay_s)


def test_the_idle_group_goes_before_the_busy_one():
    # Group 1 gets the short request, group 2 the long one: when one has to go, 1 is idle, though 2 is newer.
    requests = [(0.0, 0, 11), (0.0, 0, 10_001)]
    rates = Rates(decode_step_s=0.02, decode_seq_s=0.0)
    result = simulate(make_trace(requests), rates, Fleet(1, 2, 2), hpa(3), until=300)
    assert result.longest_drain_s == 0
    assert next(point.t for point in result.curve if point.pods == 1) < 100


def test_a_group_that_never_served_goes_first_and_one_without_pods_costs_nothing():
    rates = Rates(decode_step_s=0.02, decode_seq_s=0.0, scale_delay_s=40)
    burst = [(float(i) / 10, 0, 101) for i in range(100)]
    result = simulate(make_trace(burst), rates, Fleet(1, 3), hpa(1, down_s=0), until=200)
    assert changes(result, "wanted")[:2] == [1, 3]
    assert max(point.pods for point in result.curve) == 1


def test_every_engine_of_a_group_serves():
    burst = [(0.0, 0, 101)] * 16
    one = simulate(make_trace(burst), QUICK, Fleet(engines=1), FixedScaler())
    two = simulate(make_trace(burst), QUICK, Fleet(engines=2), FixedScaler())
    assert max(two.latency) == pytest.approx(max(one.latency) / 2)


def serve(**spec: float) -> ServeScaler:
    return ServeScaler(ServeSpec(**({"max_engines": 3, "target_ongoing_requests": 3} | spec)))  # type: ignore[arg-type]


def test_serve_waits_its_delays_and_an_empty_group_its_idle_time():
    scaler = serve(upscale_delay_s=20, downscale_delay_s=40, idle_timeout_s=100)
    result = simulate(shape_trace(RISE, 64, 64), QUICK, Fleet(1, 3), scaler, until=700)
    assert changes(result, "ready")[0] == changes(result, "ready")[-1] == 1
    assert max(changes(result, "ready")) == 3
    up = next(point.t for point in result.curve if point.wanted > 1)
    assert 60 + 20 < up < 60 + 20 + 30 + 10 + 5
    stopped = next(point.t for point in result.curve if point.t > 240 and point.ready < 3)
    assert 240 + 40 <= stopped < 240 + 40 + 30 + 10 + 5
    gone = next(point.t for point in result.curve if point.t > stopped and point.pods < 3)
    assert gone - stopped >= 100 + QUICK.stop_s


def test_serve_uses_an_idle_group_again_without_waiting_for_pods():
    scaler = serve(upscale_delay_s=0, downscale_delay_s=10, idle_timeout_s=1000)
    trace = shape_trace("60:4,120:0.1,60:4", 64, 64)
    result = simulate(trace, QUICK, Fleet(1, 3), scaler, until=300)
    assert changes(result, "pods") in ([1, 2, 3], [1, 3])
    again = [point.t for point in result.curve if point.t > 180 and point.ready > 1]
    assert 180 + QUICK.load_s < again[0] < 180 + QUICK.load_s + 30 + 10 + 5


def test_serve_comes_back_from_nothing_when_a_request_waits():
    scaler = serve(min_engines=0, downscale_delay_s=5, idle_timeout_s=5)
    trace = make_trace([(0.0, 0, 11), (300.0, 0, 11)])
    result = simulate(trace, QUICK, Fleet(0, 3, 1), scaler)
    assert 0 in changes(result, "pods")
    assert 32 < result.latency[1] < 40


def test_keda_goes_to_nothing_and_comes_back():
    spec = HpaSpec(3, 1, 3, FAST, Rules(30, (ScalingPolicy("Percent", 100, 15),)))
    scaler = KedaScaler(spec, PATH, polling_s=10, cooldown_s=60, min_replicas=0)
    result = simulate(make_trace([(0.0, 0, 11), (300.0, 0, 11)]), QUICK, Fleet(0, 3, 1), scaler)
    assert changes(result, "wanted")[:3] == [1, 0, 1]
    down = next(point.t for point in result.curve if point.wanted == 0)
    assert 60 < down < 60 + 2 * 10 + 5
    assert 32 < result.latency[1] < 32 + 10 + 5 + 2


SCALERS = {
    "fixed": lambda: FixedScaler(),
    "hpa": lambda: hpa(2),
    "serve": lambda: serve(upscale_delay_s=5, downscale_delay_s=20, idle_timeout_s=30),
}


def random_trace(seed: int, count: int = 400) -> Trace:
    rng = random.Random(seed)
    times = sorted(rng.choice((rng.uniform(0, 60), rng.uniform(0, 400))) for _ in range(count))
    return make_trace((t, rng.randrange(0, 3000), rng.randrange(0, 200)) for t in times)


def check(result: Result, trace: Trace, fleet: Fleet) -> None:
    """Each request ends once, and nothing is out of its bounds."""
    finished = [not math.isnan(t) for t in result.latency]
    assert sum(finished) + result.rejected == len(trace)
    assert [math.isnan(t) for t in result.ttft] == [not one for one in finished]
    assert all(0 <= a <= b + 1e-9 for a, b, one in zip(result.ttft, result.latency, finished, strict=True) if one)
    assert all(0 <= p.ready <= p.pods and fleet.min_replicas <= p.wanted <= fleet.max_replicas for p in result.curve)
    assert [p.t for p in result.curve] == sorted({p.t for p in result.curve})


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(sorted(SCALERS)), engines=st.integers(1, 3),
       queue=st.sampled_from([0, 5, 256]), start=st.integers(1, 3))  # fmt: skip
def test_every_request_ends_once_whatever_the_policy_does(seed, kind, engines, queue, start):
    trace, fleet = random_trace(seed), Fleet(1, 4, start, engines)
    rates = Rates(decode_step_s=0.01, decode_seq_s=0.004, max_num_seqs=4, max_queue_len=queue, pod_start_s=5, load_s=10)
    result = simulate(trace, rates, fleet, SCALERS[kind]())
    check(result, trace, fleet)
    again = simulate(trace, rates, fleet, SCALERS[kind]())
    assert (again.curve, again.samples) == (result.curve, result.samples)
    assert list(map(str, again.latency)) == list(map(str, result.latency))


@pytest.mark.parametrize("seed", range(5))
def test_more_groups_are_not_worse(seed):
    trace = random_trace(seed)
    means = []
    for count in (1, 2, 4, 8):
        result = simulate(trace, QUICK, Fleet(count, count, count), FixedScaler())
        check(result, trace, Fleet(count, count, count))
        means.append(sum(result.latency) / len(trace))
    assert means == sorted(means, reverse=True)


def test_replica_seconds_are_the_sum_over_groups_of_the_time_they_had_pods():
    result = simulate(shape_trace(RISE, 64, 64), QUICK, Fleet(1, 3), hpa(3), until=420)
    pods = {n: [p.t for p in result.curve if p.pods == n] for n in (1, 2, 3)}
    by_hand = 420 + (pods[2][-1] - pods[3][0]) + (pods[1][-1] - pods[3][0])
    assert curve_of(result.curve, "pods", result.end).integral(0, 420) == pytest.approx(by_hand)


def test_a_missing_metric_scales_nothing():
    # A window that is shorter than the scrapes' distance is empty at most looks; at the one that is not, it is quiet.
    blind = MetricPath(push_s=2, scrape_s=1000, sync_s=1000, window_s=1)
    scaler: Scaler = HpaScaler(HpaSpec(1, 1, 3, FAST, FAST), blind)
    result = simulate(make_trace([(3.0, 0, 20_001)] * 8), QUICK, Fleet(1, 3, 2), scaler)
    assert changes(result, "wanted") == [2]


def test_an_idle_time_begins_anew_when_the_group_was_used_meanwhile():
    scaler = serve(min_engines=0, downscale_delay_s=5, idle_timeout_s=150)
    trace = make_trace([(0.0, 0, 11), (100.0, 0, 11)])
    result = simulate(trace, QUICK, Fleet(0, 3, 1), scaler, until=600)
    stops = [b.t for a, b in pairwise(result.curve) if a.ready and not b.ready]
    assert len(stops) == 2
    assert next(point.t for point in result.curve if not point.pods) == pytest.approx(stops[1] + 150 + QUICK.stop_s)


def test_the_fewest_groups_stay_even_when_empty():
    scaler = serve(min_engines=0, downscale_delay_s=5, idle_timeout_s=10)
    result = simulate(make_trace([(0.0, 0, 11)]), QUICK, Fleet(1, 3, 2), scaler, until=300)
    assert changes(result, "pods") == [2, 1]
    assert result.curve[-1].ready == 0
