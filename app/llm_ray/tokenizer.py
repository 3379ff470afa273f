"""Text to token ids and back: chat template, streaming detokenisation, stop strings. Knows no requests and no model."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2

from llm_ray.errors import ConfigError, InvalidRequestError

REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# A window decoder that has seen this many tokens without a clean end is looking at garbage bytes, not at a character.
_MAX_HELD_TOKENS = 16


class Tokenizer:
    """A checkpoint's own tokenizer. Thread safe: `encode`, `chat` and `decode` only read.

    Raises ConfigError when the directory holds no fast tokenizer (tokenizer.json).
    """

    def __init__(self, path: str | Path) -> None:
        from transformers import AutoTokenizer  # seconds to import, so only where a tokenizer is really wanted

        if not Path(path).is_dir():
            raise ConfigError(f"model ({str(path)!r}) must be a local directory with the checkpoint's tokenizer.json")
        self._hf: Any = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        if not self._hf.is_fast:
            raise ConfigError(f"model ({str(path)!r}) has no fast tokenizer: add its tokenizer.json")
        self._fast: Any = self._hf.backend_tokenizer
        self._fast.no_truncation()  # what a trainer may have left in tokenizer.json
        self._fast.no_padding()
        added = self._fast.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.eos_token_ids = _eos_token_ids(Path(path), self._hf.eos_token_id)
        self.vocab_size: int = self._fast.get_vocab_size(with_added_tokens=True)
        self.has_chat_template = bool(self._hf.chat_template)
        self._byte_level = _is_byte_level(json.loads(self._fast.to_str())["decoder"])
        self._bytes: dict[int, bytes] = {}

    @property
    def hf(self) -> Any:
        """The transformers object, for libraries that want one."""
        return self._hf

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw prompt, with the tokenizer's own prefix (BOS) unless told otherwise."""
        # the batch call gives up the GIL; the single one does not, and a megabyte would stop all threads for a second
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        messages: {"role": …, "content": …} each. Raises InvalidRequestError when the model has no chat template, or
        when the template refuses these messages.
        """
        if not self.has_chat_template:
            raise InvalidRequestError("this model has no chat template: use /v1/completions", param="messages")
        try:
            text = self._hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids in 0 <= id; ids that the vocabulary lacks are dropped, broken UTF-8 becomes U+FFFD."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """One token's own bytes, which need not be whole characters. Empty for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._piece_bytes(self._fast.id_to_token(token_id))
        return known

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def detokenizer(self) -> IncrementalDetokenizer:
        """A fresh one for one sequence."""
        return ByteDetokenizer(self) if self._byte_level else WindowDetokenizer(self)

    def _piece_bytes(self, piece: str | None) -> bytes:
        if piece is None:
            return b""
        if self._byte_level:
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in piece)
            except KeyError:  # an added token, kept as plain text
                return piece.encode()
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()


class IncrementalDetokenizer(Protocol):
    """Turns one sequence's tokens into text as they come. The pieces add up to `Tokenizer.decode` of all tokens."""

    def push(self, token_id: int) -> str:
        """The text that this token settles: whole characters only, often empty."""
        ...

    def finish(self) -> str:
        """What was held back; an unfinished character is U+FFFD, as in a full decode."""
        ...


class ByteDetokenizer:
    """For byte-level BPE: a token is bytes, and UTF-8 has an incremental decoder. Exact for any token ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        if token_id in self._tokenizer.special_ids:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For every other tokenizer: decode a short window twice, with and without what is new, and emit the difference.

    The window starts one emitted piece back, because such decoders strip the space of the first token they see.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._num_emitted = 0

    def push(self, token_id: int) -> str:
        if token_id in self._tokenizer.special_ids:
            return ""
        self._ids.append(token_id)
        old, new = self._texts()
        held = len(self._ids) - self._num_emitted
        if len(new) <= len(old) or (new.endswith(REPLACEMENT) and held < _MAX_HELD_TOKENS):
            return ""
        self._ids = self._ids[self._num_emitted :]
        self._num_emitted = len(self._ids)
        return new[len(old) :]

    def finish(self) -> str:
        old, new = self._texts()
        self._num_emitted = len(self._ids)
        return new[len(old) :]

    def _texts(self) -> tuple[str, str]:
        return self._tokenizer.decode(self._ids[: self._num_emitted]), self._tokenizer.decode(self._ids)


class StopChecker:
    """Cuts text at the first stop string to be completed, wherever the borders of its pieces fall.

    Text that may still turn out to be the beginning of a stop string is held back until it is decided.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of the text so far that may be shown now. Once `stopped`, nothing more may."""
        if self.stopped:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        self._held = ""
        cut = self._first_match(text)
        if cut is not None:
            self.stopped = True
            return text[:cut]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        """Start of the stop string that ends first; of two that end together, the longer one."""
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _undecided(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        for size in range(longest, 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stop):
                return size
        return 0


def _eos_token_ids(path: Path, eos_token_id: int | None) -> frozenset[int]:
    """The tokenizer's end token and those of generation_config.json, where chat models list their turn ends."""
    ids = set() if eos_token_id is None else {eos_token_id}
    file = path / "generation_config.json"
    if file.is_file():
        more = json.loads(file.read_text("utf-8")).get("eos_token_id")
        ids.update(more if isinstance(more, list) else [] if more is None else [more])
    return frozenset(ids)


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return len(decoder["decoders"]) == 1 and _is_byte_level(decoder["decoders"][0])
    return bool(decoder.get("type") == "ByteLevel")


def _byte_of_char() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character: itself where it prints, else U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in table.values()]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_of_char()
