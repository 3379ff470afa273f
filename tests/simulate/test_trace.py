"""Traces: both column sets, both formats, and what is said about a bad line."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_ray.errors import ConfigError
from llm_ray.simulate.shape import shape_trace, write_trace
from llm_ray.simulate.trace import read_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "traces" / "rise-and-fall.csv"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
OURS = "arrival_s,prompt_tokens,output_tokens\n"


def read(tmp_path: Path, text: str, name: str = "trace.csv") -> list[tuple[float, int, int]]:
    path = tmp_path / name
    path.write_text(text)
    trace = read_trace(path)
    return list(zip(trace.arrival, trace.prompt, trace.output, strict=True))


def test_our_columns_keep_their_times_and_other_columns_do_not_matter(tmp_path):
    text = "name,arrival_s,output_tokens,prompt_tokens\na,30.5,2,10\nb,3,4,0\n"
    assert read(tmp_path, text) == [(3.0, 0, 4), (30.5, 10, 2)]


def test_azures_times_count_from_the_first(tmp_path):
    text = AZURE + "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.9799600,4808,10\n"
    (first, second) = read(tmp_path, text)
    assert first == (0.0, 4808, 10)
    assert second == (pytest.approx(0.052), 3180, 8)


@pytest.mark.parametrize(
    ("one", "two"),
    [("1000.5", "1002"), ("2024-05-10T00:00:00Z", "2024-05-10T00:00:01.5Z"),
     ("2024-05-10 00:00:00+00:00", "2024-05-10 02:00:01.500000+02:00")],
)  # fmt: skip
def test_a_timestamp_may_be_seconds_or_an_iso_time(tmp_path, one, two):
    assert [t for t, _, _ in read(tmp_path, f"{AZURE}{one},1,1\n{two},1,1\n")] == pytest.approx([0.0, 1.5])


def test_json_lines_are_read_too(tmp_path):
    lines = ['{"arrival_s": 1.5, "prompt_tokens": 3, "output_tokens": 4}', "",
             '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 2}']  # fmt: skip
    assert read(tmp_path, "\n".join(lines), "trace.jsonl") == [(0.0, 1, 2), (1.5, 3, 4)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["holds no request"]),
        (OURS, ["holds no request"]),
        ("a,b\n1,2\n", ["line 2", "columns are a, b", "arrival_s", "TIMESTAMP", "rename"]),
        (OURS + "1,2,3\n2,-1,3\n", ["line 3", "prompt_tokens ('-1')", "0 to 10000000"]),
        (OURS + "1,2,many\n", ["line 2", "output_tokens ('many')", "whole number"]),
        (OURS + "1,2,3.5\n", ["line 2", "output_tokens ('3.5')"]),
        (OURS + "1,2,99999999\n", ["line 2", "output_tokens ('99999999')", "10000000"]),
        (OURS + "-1,2,3\n", ["line 2", "arrival_s ('-1')", "0 or more"]),
        (OURS + "inf,2,3\n", ["line 2", "arrival_s ('inf')"]),
        (OURS + "noon,2,3\n", ["line 2", "arrival_s ('noon')", "seconds"]),
        (OURS + "1,2\n", ["line 2", "output_tokens is missing"]),
        (OURS + "1,2,3,4\n", ["line 2", "more cells"]),
        (AZURE + "yesterday,2,3\n", ["line 2", "TIMESTAMP ('yesterday')", "ISO 8601"]),
        (AZURE + "nan,2,3\n", ["line 2", "TIMESTAMP ('nan')"]),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_column(tmp_path, text, words):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["line 1", "not JSON"]),
        ("[1]", ["line 1", "must be an object"]),
        ('{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": null}', ["line 1", "output_tokens is missing"]),
        ('{"arrival_s": null, "prompt_tokens": 1, "output_tokens": 1}', ["line 1", "arrival_s is missing"]),
    ],
)
def test_a_bad_json_line_is_named_too(tmp_path, text, words):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text, "trace.jsonl")
    assert all(word in str(raised.value) for word in words), raised.value


def test_a_file_that_is_not_there_or_not_text_is_said_to_be_so(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the trace .*none\.csv: No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_trace(tmp_path / "binary.csv")


def test_a_shape_is_evenly_spaced_stretches(tmp_path):
    trace = shape_trace("2:1,3:0,1:4", 5, 7)
    assert list(trace.arrival) == pytest.approx([0, 1, 5, 5.25, 5.5, 5.75])
    assert set(trace.prompt) == {5}
    write_trace(tmp_path / "made.csv", trace)
    assert read_trace(tmp_path / "made.csv") == trace


def test_the_example_is_what_its_shape_makes(tmp_path):
    write_trace(tmp_path / "made.csv", shape_trace("60:1,180:4,180:1", 128, 64))
    assert (tmp_path / "made.csv").read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("60", ["'60'", "SECONDS:REQUESTS_PER_SECOND"]),
        ("60:x", ["'60:x'"]),
        ("0:1", ["'0:1'", "above 0"]),
        ("60:-1", ["'60:-1'", "from 0"]),
        ("60:nan", ["'60:nan'"]),
        ("60:0", ["makes no request"]),
        ("1000000:1000", ["10000000", "lower a rate"]),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(shape, words):
    with pytest.raises(ConfigError) as raised:
        shape_trace(shape, 1, 1)
    assert all(word in str(raised.value) for word in words), raised.value
