"""`llm-ray simulate` on the example trace: what it prints and writes, where its settings come from, what it refuses."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llm_ray.cli import main
from llm_ray.errors import ConfigError
from llm_ray.simulate.curve import read_csv
from llm_ray.simulate.values import plan_of, rules_of

REPO = Path(__file__).parents[2]
EXAMPLES = REPO / "examples" / "traces"
CHART_VALUES = REPO / "charts" / "llm-ray" / "values.yaml"
EXAMPLE = ["simulate", "--trace", str(EXAMPLES / "rise-and-fall.csv"), "--rates", str(EXAMPLES / "rates.yaml"),
           "--values", str(EXAMPLES / "values.yaml"), "--until", "600"]  # fmt: skip


def numbers(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    assert main([*EXAMPLE, "--output", "json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 2
    return capsys.readouterr().err


def test_the_example_goes_from_one_to_three_and_back(capsys, tmp_path):
    curve = tmp_path / "curve.csv"
    summary = numbers(capsys, "--ttft-slo", "2", "--latency-slo", "20", "--curve", str(curve))
    assert (summary["requests"], summary["finished"], summary["rejected"]) == (960, 960, 0)
    assert (summary["peak_replicas"], summary["scale_ups"], summary["scale_downs"]) == (3, 1, 1)
    assert 0 < summary["latency_misses"] < summary["ttft_misses"] < 960
    assert summary["ttft_s"]["p50"] < summary["ttft_s"]["p95"] < summary["latency_s"]["p95"]
    # Two pods of one GPU each are a replica.
    assert summary["gpu_hours"] == pytest.approx(summary["replica_seconds"] * 2 / 3600)
    assert read_csv(curve, "pods").integral(0, 600) == pytest.approx(summary["replica_seconds"], rel=1e-4)
    assert [row["wanted"] for row in csv.DictReader(curve.open())][-1] == "1"


def test_the_text_names_what_the_numbers_are(capsys):
    assert main([*EXAMPLE, "--ttft-slo", "2"]) == 0
    text = capsys.readouterr().out
    for words in (
        "960 finished, 0 rejected",
        "time to first token over 2 s",
        "GPU hours",
        "at most 3; 1 times up, 1 down",
    ):
        assert words in text
    assert "latency over" not in text


def test_the_plot_is_a_png(capsys, tmp_path):
    assert main([*EXAMPLE, "--plot", str(tmp_path / "plot.png")]) == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_plot_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None\nfrom llm_ray.cli import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *EXAMPLE, "--plot", str(tmp_path / "plot.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(REPO / "app")})
    assert done.returncode == 2
    assert "pip install 'llm-ray[plot]'" in done.stderr
    assert not (tmp_path / "plot.png").exists()


def test_flags_win_over_files(capsys):
    fixed = numbers(capsys, "--mode", "fixed", "--initial-replicas", "2")
    assert (fixed["scale_ups"], fixed["peak_replicas"], fixed["replica_seconds"]) == (0, 2, 1200)
    assert numbers(capsys, "--max-replicas", "2")["peak_replicas"] == 2
    assert numbers(capsys, "--average-value", "1000")["scale_ups"] == 0
    assert numbers(capsys, "--behavior", "{scaleUp: {selectPolicy: Disabled}}")["scale_ups"] == 0
    assert numbers(capsys, "--mode", "serve", "--target-ongoing-requests", "3")["scale_ups"] >= 1
    assert numbers(capsys, "--load-s", "200")["ttft_s"]["p95"] > numbers(capsys)["ttft_s"]["p95"]


def test_a_trace_is_made_and_saved(capsys, tmp_path):
    saved = tmp_path / "made.csv"
    made = ["simulate", "--shape", "10:2", "--prompt-tokens", "5", "--output-tokens", "6", "--save-trace", str(saved)]
    assert main(made) == 0
    assert saved.read_text().splitlines()[:2] == ["arrival_s,prompt_tokens,output_tokens", "0.000,5,6"]
    assert "20 finished" in capsys.readouterr().out


def test_the_defaults_are_the_charts():
    assert plan_of({}) == plan_of(yaml.safe_load(CHART_VALUES.read_text()))


def test_values_are_read_as_the_chart_derives_them():
    values = {
        "engine": {"tensorParallelSize": 4, "maxNumBatchedTokens": 256, "longPrefillTokenThreshold": 64},
        "workerDefaults": {"gpusPerNode": 8, "minReplicas": 2, "maxReplicas": 5},
        "autoscaling": {"mode": "serve", "serve": {"idleTimeoutSeconds": 60}},
        "monitoring": {"podMonitor": {"interval": "1m30s"}},
    }
    plan = plan_of({"llm-ray": values})
    assert plan.fleet == {"min_replicas": 2, "max_replicas": 5, "initial_replicas": 2, "engines": 2, "gpus": 8}
    assert (plan.serve["min_engines"], plan.serve["max_engines"], plan.serve["idle_timeout_s"]) == (4, 10, 60)
    assert (plan.rates["prefill_chunk_tokens"], plan.rates["prefill_sequences"]) == (64, 4)
    assert plan.metrics == {"scrape_s": 90}


def test_one_of_several_groups_has_to_be_named():
    values = {"workers": {"large": {"replicas": 3}, "small": {"gpusPerNode": 1}}}
    assert plan_of(values, "large").fleet["initial_replicas"] == 3
    assert plan_of(values, "small").fleet["gpus"] == 1
    with pytest.raises(ConfigError, match=r"workers has 2 groups \(large, small\).*--group"):
        plan_of(values)


def test_what_behavior_leaves_out_is_kubernetes_default():
    up = rules_of({"scaleUp": {"stabilizationWindowSeconds": 60}}, "scaleUp")
    assert (up.window_s, len(up.policies), up.select, up.tolerance) == (60, 2, "Max", 0.1)
    assert rules_of({}, "scaleDown").window_s == 300


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("--values", "autoscaling: {mode: sometimes}", ["mode ('sometimes')", "fixed, hpa, keda, serve"]),
        ("--values", "autoscaling: {mode: hpa, hpa: {averageValue: 0}}", ["averageValue (0.0)", "0.001"]),
        ("--values", "autoscaling: {mode: hpa, hpa: {averageValue: many}}", ["averageValue ('many')", "number"]),
        ("--values", "autoscaling: {mode: hpa, hpa: {metricType: Value}}", ["metricType (Value)", "AverageValue"]),
        ("--values", "autoscaling: {mode: hpa, hpa: {behavior: {scaleUp: {policies: [{type: Pods, value: 0}]}}}}",
         ["behavior.scaleUp.policies[0].periodSeconds (None)", "whole number"]),
        ("--values", "autoscaling: {mode: hpa, hpa: {behavior: {scaleup: {}}}}", ["behavior", "'scaleup'", "scaleUp"]),
        ("--values", "autoscaling: {mode: hpa}\nworkerDefaults: {minReplicas: 0}",
         ["min_replicas (0)", "at least 1", "keda"]),
        ("--values", "autoscaling: {mode: hpa}\nworkerDefaults: {minReplicas: 3, maxReplicas: 2}",
         ["max_replicas (2)", "min_replicas (3)", "raise it"]),
        ("--values", "workerDefaults: {replicas: 0}", ["initial_replicas (0)", "mode fixed"]),
        ("--values", "engine: {tensorParallelSize: 8}\nworkerDefaults: {ranksPerNode: 2, numOfHosts: 2}",
         ["no engine of 8"]),
        ("--values", "monitoring: {podMonitor: {interval: soon}}", ["interval (soon)", "15s"]),
        ("--values", "[1]", ["must be a mapping", "list"]),
        ("--values", "a: [", ["is not YAML"]),
        ("--rates", "decode_step_s: 1", ["unknown key 'decode_step_s'", "rates, metrics"]),
        ("--rates", "rates: {decode_s: 1}", ["rates: unknown key 'decode_s'", "decode_step_s"]),
        ("--rates", "rates: {load_s: soon}", ["rates: load_s ('soon')", "float"]),
        ("--rates", "rates: {max_num_seqs: 1.5}", ["rates: max_num_seqs (1.5)", "int"]),
        ("--rates", "rates: {load_s: -1}", ["rates: load_s (-1)", "at least 0"]),
        ("--rates", "metrics: {sync_s: 0}", ["metrics: sync_s (0)", "above 0"]),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_by_key_value_and_limit(capsys, tmp_path, file, text, words):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    mode = ["--mode", "hpa"] if text.startswith("metrics") else []
    said = refusal(capsys, "simulate", "--shape", "1:1", file, str(path), *mode)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ttft-slo", "-1"], ["--ttft-slo (-1.0)", "0 or more"]),
        (["--until", "inf"], ["--until (inf)"]),
        (["--output-tokens", "-1"], ["--output-tokens (-1)"]),
        (["--behavior", "3"], ["--behavior ('3')", "scaleUp"]),
        (["--values", "none.yaml"], ["cannot read --values none.yaml"]),
        (["--group", "b"], ["--group (b)", "worker"]),
        (["--initial-replicas", "3", "--max-replicas", "2"], ["initial_replicas (3)", "max_replicas (2)"]),
    ],
)
def test_a_bad_flag_is_refused(capsys, args, words):
    said = refusal(capsys, "simulate", "--shape", "1:1", *args)
    assert all(word in said for word in words), said


def test_a_trace_or_a_shape_is_needed_and_not_both(capsys):
    for args in ([], ["--shape", "1:1", "--trace", "x.csv"]):
        with pytest.raises(SystemExit) as raised:
            main(["simulate", *args])
        assert raised.value.code == 2
    assert "--trace" in capsys.readouterr().err
