"""Token masks for structured output, on the rank that samples. A broken matcher ends its sequence, never the step."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from llguidance import LLMatcher, LLTokenizer

from llm_ray.grammar import parser_limits

logger = logging.getLogger(__name__)


def load_tokenizer(path: str | Path, vocab_size: int) -> LLTokenizer:
    """The checkpoint's tokenizer for masks at least vocab_size wide. Takes a second or two.

    Its end tokens are the tokenizer's and those of generation_config.json. Raises ValueError for a slow tokenizer.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{path}: structured output needs a tokenizer.json; convert the tokenizer to a fast one")
    backend.no_padding()
    backend.no_truncation()
    end_ids = list(dict.fromkeys([tokenizer.eos_token_id, *_generation_end_ids(Path(path))]))
    return LLTokenizer(
        backend.to_str(),
        n_vocab=max(vocab_size, len(tokenizer)),
        eos_token=[one for one in end_ids if one is not None],
    )


def _generation_end_ids(path: Path) -> list[int]:
    file = path / "generation_config.json"
    found = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
    return found if isinstance(found, list) else [] if found is None else [found]


class GrammarMatcher:
    """One sequence's place in its grammar. After any error only end tokens are allowed, and is_failed is true.

    end_ids: the tokens that end this sequence; when it has none of its own, the tokenizer's.
    """

    def __init__(
        self, tokenizer: LLTokenizer, grammar: str, vocab_size: int, end_ids: Sequence[int], output: Sequence[int] = ()
    ) -> None:
        """output: tokens sampled before a preemption, consumed at once."""
        self._vocab_size = vocab_size
        self._end_ids = list(end_ids) or list(tokenizer.eos_tokens)
        self._words = np.zeros(((tokenizer.vocab_size + 31) // 32,), dtype=np.uint32)
        self._matcher = LLMatcher(tokenizer, grammar, limits=parser_limits(), log_level=0)
        for token in output:
            self.consume(token)

    @property
    def error(self) -> str:
        """Why only end tokens are left, or an empty string."""
        return str(self._matcher.get_error())

    @property
    def is_failed(self) -> bool:
        return bool(self._matcher.is_error())

    @property
    def is_complete(self) -> bool:
        """Nothing but an end token can follow."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> torch.Tensor:
        """bool [vocab_size]: the tokens that may come next, never none."""
        if not self._matcher.is_stopped():
            self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_stopped():
            return self._only_end()
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")
        allowed = torch.from_numpy(bits[: self._vocab_size].view(np.bool_))
        return allowed if allowed.any() else self._only_end()

    def consume(self, token: int) -> None:
        """Take the sampled token; one that the mask forbids is an error."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def _only_end(self) -> torch.Tensor:
        allowed = torch.zeros(self._vocab_size, dtype=torch.bool)
        allowed[self._end_ids] = True
        return allowed
