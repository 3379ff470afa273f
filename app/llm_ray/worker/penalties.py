"""What changes single logits before a draw: repetition, presence and frequency penalties, and logit_bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from llm_ray.engine.sequence import SamplingParams


class TokenCounts:
    """How often each distinct token was generated; prompt tokens are listed too, 0 times, if repetition needs them."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._place = {token: place for place, token in enumerate(dict.fromkeys((*prompt, *output)))}
        self._ids = np.fromiter(self._place, dtype=np.int64, count=len(self._place))
        self._counts = np.zeros(len(self._place), dtype=np.float32)
        for token in output:
            self._counts[self._place[token]] += 1

    @staticmethod
    def of(params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int) -> TokenCounts | None:
        """Counts when the settings use any, else None."""
        repeats = params.repetition_penalty != 1
        if not repeats and not params.presence_penalty and not params.frequency_penalty:
            return None
        return TokenCounts(token_ids[:num_prompt_tokens] if repeats else (), token_ids[num_prompt_tokens:])

    @property
    def ids(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return self._counts[: len(self._place)]

    def add(self, token: int) -> None:
        """Count one more generated token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(place + 64, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(place + 64, dtype=np.float32)])
        self._ids[place] = token
        self._counts[place] += 1


def apply_penalties(
    logits: torch.Tensor, rows: Sequence[int], counts: Sequence[TokenCounts], params: Sequence[SamplingParams]
) -> None:
    """Change logits [N, V] in place: for each of the rows, repetition first, then frequency and presence."""
    vocab_size, device = logits.shape[1], logits.device
    sizes = torch.tensor([len(one.ids) for one in counts], device=device)
    places = torch.from_numpy(
        np.concatenate([one.ids + row * vocab_size for row, one in zip(rows, counts, strict=True)])
    ).to(device)
    times = torch.from_numpy(np.concatenate([one.counts for one in counts])).to(device)

    def spread(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device).repeat_interleave(sizes)

    repetition = spread([one.repetition_penalty for one in params])
    flat = logits.view(-1)
    scores = flat[places]
    scores = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores -= spread([one.frequency_penalty for one in params]) * times
    scores -= spread([one.presence_penalty for one in params]) * (times > 0)
    flat[places] = scores


def add_bias(logits: torch.Tensor, rows: Sequence[int], biases: Sequence[Sequence[tuple[int, float]]]) -> None:
    """Add each row's (token, bias) pairs to logits [N, V] in place."""
    vocab_size = logits.shape[1]
    places = [row * vocab_size + token for row, pairs in zip(rows, biases, strict=True) for token, _ in pairs]
    values = [bias for pairs in biases for _, bias in pairs]
    added = torch.tensor(values, dtype=logits.dtype, device=logits.device)
    logits.view(-1).index_add_(0, torch.tensor(places, device=logits.device), added)
