"""Text and tokens: incremental detokenisation and stop strings, against a full decode and a naive search."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from llm_ray.errors import ConfigError, InvalidRequestError
from llm_ray.tokenizer import ByteDetokenizer, StopChecker, Tokenizer, WindowDetokenizer

TEXTS = st.text(max_size=60) | st.text(alphabet="aé中👩‍👧🇩🇪\u0301\n <|im_end|>", max_size=40)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


@pytest.fixture(scope="session")
def spaced_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Like Llama 2's: word pieces with a space mark, bytes as a fallback, the first space stripped."""
    path = tmp_path_factory.mktemp("spaced")
    alphabet = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", *"abcdefg"]
    merges = [("\u2581", "a"), ("\u2581", "b"), ("a", "b"), ("\u2581a", "b")]
    vocab = {piece: i for i, piece in enumerate([*alphabet, *("".join(m) for m in merges)])}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=fast, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(path)
    return Tokenizer(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_pieces_of_random_tokens_add_up_to_the_full_decode(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_no_piece_of_text_breaks_a_character_that_the_full_decode_keeps(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS | st.text(alphabet="ab c👩中", max_size=40))
def test_the_window_detokenizer_gives_the_same_text_for_a_byte_fallback_vocabulary(
    spaced_tokenizer: Tokenizer, text: str
) -> None:
    ids = spaced_tokenizer.encode(text)
    parts = pieces(spaced_tokenizer, ids)
    assert "".join(parts) == spaced_tokenizer.decode(ids)
    assert "".join(parts).count("\ufffd") == text.count("\ufffd")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_window_detokenizer_keeps_going_through_invalid_bytes(
    spaced_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    garbage = data.draw(st.lists(st.integers(0, spaced_tokenizer.vocab_size - 1), max_size=60))
    word = spaced_tokenizer.encode("ab cd")
    text = "".join(pieces(spaced_tokenizer, [*garbage, *word]))
    assert text.strip().endswith("ab cd")


def test_each_kind_of_vocabulary_gets_its_detokenizer(tokenizer: Tokenizer, spaced_tokenizer: Tokenizer) -> None:
    assert isinstance(tokenizer.detokenizer(), ByteDetokenizer)
    assert isinstance(spaced_tokenizer.detokenizer(), WindowDetokenizer)


def test_other_threads_go_on_while_a_very_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    """Here this thread is the event loop: it must not stand still until the encoder is done."""
    text = "the cat sat " * 80_000
    encoder = threading.Thread(target=tokenizer.encode, args=(text,))
    encoder.start()
    num_turns = 0
    while encoder.is_alive():
        time.sleep(0.001)
        num_turns += 1
    assert num_turns > 10


def test_a_partial_emoji_is_held_until_it_is_whole_and_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("👩")
    assert len(ids) > 1
    assert pieces(tokenizer, ids) == ["", "", "👩", ""][-len(ids) - 1 :]
    assert pieces(tokenizer, ids[:-1])[-1] == "\ufffd"


def test_special_tokens_are_skipped_inside_the_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("one"), *tokenizer.eos_token_ids, *tokenizer.encode(" two")]
    assert "".join(pieces(tokenizer, ids)) == "one two"


def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer, spaced_tokenizer: Tokenizer) -> None:
    text = "ab 👩‍👧 中"
    for each in (tokenizer, spaced_tokenizer):
        joined = b"".join(each.token_bytes(i) for i in each.encode(text)).decode()
        assert joined.strip() == text
    assert tokenizer.token_bytes(10**6) == b""


def test_chat_renders_the_template_up_to_the_answer(tokenizer: Tokenizer) -> None:
    ids = tokenizer.chat([{"role": "user", "content": "Hi"}])
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_model_without_a_chat_template_refuses_chat(spaced_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        spaced_tokenizer.chat([{"role": "user", "content": "Hi"}])


def test_a_template_that_refuses_the_messages_is_the_clients_error(spaced_tokenizer: Tokenizer, tmp_path: Path) -> None:
    spaced_tokenizer.hf.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        Tokenizer(tmp_path).chat([{"role": "user", "content": "Hi"}])


def test_end_tokens_come_from_the_tokenizer_and_the_generation_config(
    spaced_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    spaced_tokenizer.hf.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert Tokenizer(tmp_path).eos_token_ids == {2, 5}


def test_a_checkpoint_that_was_saved_with_truncation_and_padding_does_neither(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Trainers leave both behind in tokenizer.json; transformers switches them off for each call."""
    tokenizer.hf.save_pretrained(tmp_path)
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.enable_truncation(8)
    fast.enable_padding(length=16, pad_id=2)
    fast.save(str(tmp_path / "tokenizer.json"))
    trained = Tokenizer(tmp_path)
    for text in ("short", "one two three four five six seven eight nine ten eleven"):
        assert trained.encode(text) == tokenizer.encode(text)


def test_a_path_that_is_no_directory_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="local directory"):
        Tokenizer(tmp_path / "absent")


def cut_naively(text: str, stops: list[str]) -> tuple[str, bool]:
    """Grow the text one character at a time and stop at the first that completes a stop string."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


@settings(max_examples=1000, deadline=None)
@given(
    parts=st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_where_a_naive_search_does_whatever_the_token_borders(
    parts: list[str], stops: list[str]
) -> None:
    checker = StopChecker(stops)
    shown = ""
    for part in parts:
        shown += checker.push(part)
        assert cut_naively("".join(parts), stops)[0].startswith(shown)
    if not checker.stopped:
        shown += checker.finish()
    assert (shown, checker.stopped) == cut_naively("".join(parts), stops)


def test_text_that_cannot_become_a_stop_string_is_shown_at_once() -> None:
    checker = StopChecker(["END"])
    assert [checker.push(part) for part in ("abc", "dE", "N", "x", "E")] == ["abc", "d", "", "ENx", ""]
    assert checker.finish() == "E"
