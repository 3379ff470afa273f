"""The official OpenAI client against the running app: proxy, replica, two ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.serve.running_app import MODEL_NAME, RunningApp, wait_for

pytestmark = pytest.mark.serve

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
ANSWER = "The capital of France is Paris."


def ask(client: OpenAI, **options: Any) -> Any:
    settings = {"model": MODEL_NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    return client.chat.completions.create(**(settings | options))


def complete(client: OpenAI, prompt: Any = "The sea is", **options: Any) -> Any:
    settings = {"model": MODEL_NAME, "prompt": prompt, "temperature": 0, "max_tokens": 8}
    return client.completions.create(**(settings | options))


def test_the_model_is_listed_under_its_directorys_name(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]


def test_a_chat_answer_is_whole_and_counted(client: OpenAI) -> None:
    answer = ask(client)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_answer_is_the_same_text_in_pieces(client: OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 3
    assert chunks[-1].usage.completion_tokens > len(pieces) - 1


def test_completions_are_what_hugging_face_generates(client: OpenAI, smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompts = ["The sea is", "Once upon a time, in a village by the river, there lived"]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype="float32")
    expected = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        made = model.generate(ids, max_new_tokens=12, do_sample=False)
        expected.append(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))
    answer = complete(client, prompts, max_tokens=12)
    assert [choice.text for choice in answer.choices] == expected


def test_logprobs_name_the_greedy_token_first(client: OpenAI) -> None:
    logprobs = complete(client, logprobs=3).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 8
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert max(top, key=top.get) == token
        assert top[token] == pytest.approx(logprob)
    content = ask(client, logprobs=True, top_logprobs=2, max_tokens=3).choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == "The capital of"
    assert all(len(entry.top_logprobs) == 2 for entry in content)


def test_n_seeded_choices_differ_and_repeat(client: OpenAI) -> None:
    first, second = (complete(client, n=3, temperature=1, seed=7) for _ in range(2))
    texts = [choice.text for choice in sorted(first.choices, key=lambda choice: choice.index)]
    assert len(set(texts)) > 1
    assert texts == [choice.text for choice in sorted(second.choices, key=lambda choice: choice.index)]


def test_a_stop_string_ends_the_answer_before_it(client: OpenAI) -> None:
    choice = ask(client, stop=[" is P"]).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("The capital of France", "stop")
    streamed = [chunk.choices[0].delta.content or "" for chunk in ask(client, stop=[" is P"], stream=True)]
    assert "".join(streamed) == "The capital of France"


def test_a_json_schema_is_kept(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "population": {"type": "integer", "maximum": 99}},
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    answer = json.loads(ask(client, response_format=wanted, max_tokens=64).choices[0].message.content)
    assert set(answer) == {"city", "population"}
    assert answer["city"] in ("Paris", "Rome")
    assert answer["population"] <= 99


def test_a_json_object_and_a_regex_are_kept(client: OpenAI) -> None:
    messages = [{"role": "user", "content": 'Write this JSON object and nothing else: {"colour": "red"}'}]
    text = ask(client, messages=messages, response_format={"type": "json_object"}, max_tokens=48)
    assert isinstance(json.loads(text.choices[0].message.content), dict)
    code = complete(client, extra_body={"guided_regex": "[A-Z]{3}-[0-9]{3}"}, max_tokens=24).choices[0].text
    assert re.fullmatch(r"[A-Z]{3}-[0-9]{3}", code)


def test_refusals_have_openais_shape(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        ask(client, model="other")
    with pytest.raises(openai.BadRequestError) as unknown:
        ask(client, extra_body={"temperatur": 1})
    assert (unknown.value.param, unknown.value.code) == ("temperatur", "unknown_parameter")
    with pytest.raises(openai.BadRequestError) as too_long:
        complete(client, "sea " * 1100)
    assert too_long.value.code == "context_length_exceeded"


def test_a_client_that_times_out_is_not_computed_for(client: OpenAI, app: RunningApp) -> None:
    with pytest.raises(openai.APITimeoutError):
        complete(client.with_options(timeout=1.5), max_tokens=900, extra_body={"ignore_eos": True})
    wait_for(lambda: app.stats()["num_running"] == 0, 30, "the end of the abandoned request")
    assert app.stats()["num_used_blocks"] == 0


def test_the_articles_route_answers(client: OpenAI, app: RunningApp) -> None:
    answer = client.post(
        "/../llm_backend", body={"prompt": "The sea is", "max_tokens": 8, "temperature": 0}, cast_to=object
    )
    assert answer == {"generated_text": complete(client).choices[0].text}
