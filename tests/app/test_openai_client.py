"""The official client against the app over HTTP: what it gets is what it knows from OpenAI."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from llm_ray.executor.fake import answer
from llm_ray.tokenizer import Tokenizer
from tests.app.conftest import openai_client
from tests.app.front import MODEL, Front, serving, wait_for

CHAT = [{"role": "user", "content": "Say something"}]


def expected_text(tokenizer: Tokenizer, prompt: list[int], num_tokens: int, seed: int | None = None) -> str:
    return tokenizer.decode(answer(prompt, num_tokens, seed=seed, vocab_size=tokenizer.vocab_size))


def test_a_completion_is_the_decoded_answer_with_its_usage(client: OpenAI, tokenizer: Tokenizer) -> None:
    completion = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=12)
    prompt = tokenizer.encode("Once upon")
    assert completion.choices[0].text == expected_text(tokenizer, prompt, 12)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(prompt)
    assert completion.usage.completion_tokens == 12
    assert completion.usage.total_tokens == len(prompt) + 12


def test_a_completion_without_max_tokens_has_sixteen_as_at_openai(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="Once upon")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 16


def test_prompts_may_be_texts_or_token_ids_one_or_many(client: OpenAI, tokenizer: Tokenizer) -> None:
    texts = ["Once upon", "a time"]
    ids = [tokenizer.encode(text) for text in texts]
    wanted = [expected_text(tokenizer, each, 5) for each in ids]
    for prompt in (texts, ids):
        completion = client.completions.create(model=MODEL, prompt=prompt, max_tokens=5)
        assert [choice.text for choice in completion.choices] == wanted
        assert [choice.index for choice in completion.choices] == [0, 1]
    assert client.completions.create(model=MODEL, prompt=ids[1], max_tokens=5).choices[0].text == wanted[1]


def test_a_chat_answer_streams_the_same_text_that_it_gives_at_once(client: OpenAI, tokenizer: Tokenizer) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=40)
    chunks = list(client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=40, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    assert streamed == expected_text(tokenizer, tokenizer.chat(CHAT), 40)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert whole.choices[0].message.role == "assistant"


def test_max_completion_tokens_is_max_tokens(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_completion_tokens=7)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 7


def test_a_chat_answer_without_max_tokens_fills_the_model(client: OpenAI, server: Front) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, extra_body={"ignore_eos": True})
    assert whole.usage is not None
    assert whole.usage.total_tokens == server.engine.info.max_model_len
    assert whole.choices[0].finish_reason == "length"


def test_usage_comes_last_in_a_stream_that_asks_for_it(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


def test_a_repeated_prompt_reports_its_cached_tokens(client: OpenAI) -> None:
    prompt = "The same long beginning of a prompt, again and again and again. " * 4
    for _ in range(2):
        completion = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    cached = completion.usage.prompt_tokens_details.cached_tokens
    assert cached
    assert 0 < cached < completion.usage.prompt_tokens


def test_several_choices_with_a_seed_differ_and_repeat(client: OpenAI, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.chat(CHAT)
    for _ in range(2):
        whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, n=3, seed=5)
        wanted = [expected_text(tokenizer, prompt, 8, seed=5 + i) for i in range(3)]
        assert [choice.message.content for choice in whole.choices] == wanted
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(prompt)
    assert whole.usage.completion_tokens == 24


def test_several_streamed_choices_are_told_apart_by_index(client: OpenAI, tokenizer: Tokenizer) -> None:
    texts = ["", "", ""]
    finished = []
    stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=8, n=3, seed=5, stream=True)
    for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        finished += [choice.index] if choice.finish_reason else []
    assert texts == [expected_text(tokenizer, tokenizer.chat(CHAT), 8, seed=5 + i) for i in range(3)]
    assert sorted(finished) == [0, 1, 2]


def test_chat_logprobs_name_every_token_with_its_bytes(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=6, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert len(content) == 6
    raw = b"".join(bytes(token.bytes or []) for token in content)
    assert raw.decode("utf-8", "replace") == choice.message.content
    assert [len(token.top_logprobs) for token in content] == [3] * 6
    assert content[0].token == content[0].top_logprobs[0].token
    assert content[0].logprob == -0.5


def test_streamed_logprobs_are_those_of_the_whole_answer(client: OpenAI) -> None:
    def tokens(logprobs: object) -> list[str]:
        return [token.token for token in getattr(logprobs, "content", None) or []]

    whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, logprobs=True)
    stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=20, logprobs=True, stream=True)
    streamed = [token for chunk in stream for token in tokens(chunk.choices[0].logprobs)]
    assert streamed == tokens(whole.choices[0].logprobs)
    assert len(streamed) == 20


def test_completion_logprobs_have_offsets_into_the_text(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=6, logprobs=2)
    choice = completion.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.text_offset is not None
    assert choice.logprobs.top_logprobs is not None
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert "\ufffd" in token or choice.text[offset:].startswith(token)
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)


def test_a_stop_string_across_token_borders_ends_the_text_before_it(client: OpenAI) -> None:
    full = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=60).choices[0].message.content
    assert full
    stop = full[40:46]
    cut = full.index(stop)
    whole = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=60, stop=[stop])
    assert whole.choices[0].message.content == full[:cut]
    assert whole.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=60, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == full[:cut]


def test_after_a_stop_string_nothing_more_is_computed(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, step_s=0.01) as server, openai_client(server.url) as client:
        full = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5).choices[0].text
        client.completions.create(model=MODEL, prompt="Once upon", max_tokens=400, stop=full[4:9])
        wait_for(lambda: server.engine.num_open == 0)
        assert server.engine.stats().num_generated_tokens < 200


def test_an_end_token_stops_and_is_not_text(client: OpenAI, tokenizer: Tokenizer) -> None:
    """Found by trying seeds: with one of them the fake model draws the end token early."""
    prompt = tokenizer.encode("Once upon")
    [eos] = tokenizer.eos_token_ids
    seed, tokens = next(
        (seed, tokens)
        for seed in range(100_000)
        if eos in (tokens := answer(prompt, 2, seed=seed, vocab_size=tokenizer.vocab_size))[1:]
    )
    stopped = client.completions.create(model=MODEL, prompt=prompt, max_tokens=9, seed=seed, logprobs=0)
    assert stopped.choices[0].text == tokenizer.decode(tokens[:1])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].logprobs is not None
    assert stopped.choices[0].logprobs.tokens == [tokenizer.token_text(tokens[0])]
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens == 2
    going_on = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=9, seed=seed, extra_body={"ignore_eos": True}
    )
    assert going_on.usage is not None
    assert going_on.usage.completion_tokens == 9


def test_the_served_model_is_listed_and_found_by_name(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_the_clients_own_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="other", messages=CHAT)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(
            model=MODEL, messages=CHAT, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert (unsupported.value.param, unsupported.value.code) == ("tools", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="word " * 600, max_tokens=1)
    assert too_long.value.code == "context_length_exceeded"


def test_the_clients_own_timeout_aborts_the_request_here(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, step_s=0.05) as server, openai_client(server.url) as client:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).completions.create(model=MODEL, prompt="a", max_tokens=400)
        wait_for(lambda: server.engine.num_open == 0)


def test_the_deadline_before_the_first_token_is_a_408(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, request_timeout_s=0.3) as server, openai_client(server.url) as client:
        server.executor.hold()
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError) as timeout:
                client.completions.create(model=MODEL, prompt="a", stream=stream)
            assert timeout.value.status_code == 408
            assert timeout.value.code == "request_timeout"
        server.executor.release()
        wait_for(lambda: server.engine.num_open == 0)
        assert server.engine.stats().num_used_blocks == 0


def test_the_deadline_after_the_first_token_is_an_error_event(tokenizer: Tokenizer) -> None:
    with serving(tokenizer, step_s=0.02, request_timeout_s=0.4) as server, openai_client(server.url) as client:
        chunks = 0
        with pytest.raises(openai.APIError, match="request_timeout_s"):  # noqa: PT012
            for _ in client.completions.create(model=MODEL, prompt="a", max_tokens=400, stream=True):
                chunks += 1
        assert chunks > 1
        wait_for(lambda: server.engine.num_open == 0)


def test_dead_ranks_end_an_open_stream_with_an_error_event_and_the_next_request_is_served(
    tokenizer: Tokenizer,
) -> None:
    with serving(tokenizer, step_s=0.01) as server, openai_client(server.url) as client:
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=400, stream=True)
        next(stream)
        server.executor.fail()
        with pytest.raises(openai.APIError, match="rank 0 died"):
            list(stream)
        wait_for(lambda: server.engine.status == "ready" and server.executor.num_starts == 2)
        assert client.completions.create(model=MODEL, prompt="a", max_tokens=2).choices[0].text


def test_while_ranks_are_rebuilt_requests_get_503_with_retry_after(tokenizer: Tokenizer) -> None:
    with serving(tokenizer) as server, openai_client(server.url) as client:
        server.executor.fail(starts=3)
        with pytest.raises(openai.APIStatusError):
            client.completions.create(model=MODEL, prompt="a")
        with pytest.raises(openai.InternalServerError) as unavailable:
            client.completions.create(model=MODEL, prompt="a")
        assert unavailable.value.status_code == 503
        assert int(unavailable.value.response.headers["retry-after"]) >= 1
