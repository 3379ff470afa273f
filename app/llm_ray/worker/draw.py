"""Choosing token ids from logits: pure functions on tensors, no requests. A row's result never depends on other rows.

Row-wise work over the vocabulary goes through chunks of CHUNK entries: torch's argmax and topk are scalar on CPUs, its
amax is not, so finding the best chunks first is two to four times faster.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import torch
import torch.nn.functional as F

CHUNK = 64
MIN_CANDIDATES = 64
MAX_CANDIDATES = 1024
LOW = 0xFFFFFFFF


def uniform(key: bytes, position: int) -> float:
    """The number in [0, 1) that draws a sequence's position-th output token; a function of key and position alone."""
    digest = hashlib.blake2b(struct.pack("<q", position), digest_size=8, key=key).digest()
    return float(int.from_bytes(digest, "little") >> 11) * 2.0**-53


def derive_key(*parts: int) -> bytes:
    """A key for `uniform` from integers of any size."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def argmax(scores: torch.Tensor) -> torch.Tensor:
    """Index of each row's largest entry, the lowest of equals. [N, V] -> int64 [N]."""
    chunks = _chunked(scores, float("-inf"))
    best = chunks.amax(-1).argmax(-1)
    rows = torch.arange(len(scores), device=scores.device)
    found: torch.Tensor = best * CHUNK + chunks[rows, best].argmax(-1)
    return found


def top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's k largest entries, largest first, and their indices; equals by index. [N, V] -> [N, k] twice.

    Which of the entries equal to the smallest one returned are among them is unspecified.
    """
    chunks = _chunked(scores, float("-inf"))
    rows, count = chunks.shape[:2]
    if k * 4 > count:
        values, index = scores.topk(k)
    else:
        # The k largest entries lie in the k chunks with the largest maxima.
        at = chunks.amax(-1).topk(k, sorted=False).indices
        flat = (at + torch.arange(rows, device=at.device)[:, None] * count).view(-1)
        values, index = chunks.reshape(-1, CHUNK).index_select(0, flat).view(rows, -1).topk(k)
        index = at.gather(1, index // CHUNK) * CHUNK + index % CHUNK
    index, order = index.sort(dim=-1)
    values, order = values.gather(1, order).sort(stable=True, dim=-1, descending=True)
    return values, index.gather(1, order)


def probabilities_(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """softmax(logits / temperature); overwrites logits. logits: float32 [N, V]; temperature: float32 [N], above 0."""
    # The maximum goes first: dividing by a tiny temperature must not overflow.
    return logits.sub_(logits.amax(-1, keepdim=True)).div_(temperature[:, None]).softmax(-1)


def draw(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution in index order. probs: [N, V]; uniforms: float64 [N] -> int64 [N]."""
    chunks = _chunked(probs, 0.0)
    rows = torch.arange(len(probs), device=probs.device)
    cumulative = chunks.sum(-1).cumsum(-1, dtype=torch.float64)
    target = uniforms * cumulative[:, -1]
    chunk = _first_above(cumulative, target)
    before = torch.where(chunk > 0, cumulative[rows, chunk - 1], 0.0)
    inside = chunks[rows, chunk].cumsum(-1, dtype=torch.float64)
    found = chunk * CHUNK + _first_above(inside, target - before)
    return found.clamp_(max=probs.shape[1] - 1)  # beyond only for NaN


def draw_truncated(
    probs: torch.Tensor, uniforms: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Draw after top-k, then top-p over what top-k left, then min-p relative to the best; in that order.

    probs: float32 [N, V]; uniforms, top_p, min_p: float64 [N]; top_k: int64 [N], the vocabulary's size for none.
    Of equally likely tokens the lower index is kept first. Result: int64 [N].
    """
    vocab_size = probs.shape[1]
    wanted = int(torch.where(top_k < vocab_size, top_k, 0).max()) + 8  # a few more, to see where equals end
    size = max(wanted, MIN_CANDIDATES)
    if size <= MAX_CANDIDATES < vocab_size:
        values, index = top(probs, size)
        places, is_complete = _place(values, uniforms, top_k, top_p, min_p, vocab_size)
        tokens, rest = index.gather(1, places[:, None])[:, 0], torch.nonzero(~is_complete)[:, 0].tolist()
    else:
        tokens, rest = torch.empty_like(top_k), list(range(len(probs)))
    for row in rest:
        one = slice(row, row + 1)
        values, index = sort_descending(probs[one])
        places, _ = _place(values, uniforms[one], top_k[one], top_p[one], min_p[one], vocab_size)
        tokens[row] = index[0, places[0]]
    return tokens


def sort_descending(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All of each row, largest first, and the indices; equals by index. probs: float32 [N, V], none negative."""
    if probs.device.type != "cpu":
        return torch.sort(probs, stable=True, dim=-1, descending=True)
    # The bits of floats >= 0 order like the floats: one integer key each, for numpy's vectorised sort (15 x torch's).
    bits = probs.contiguous().numpy().view(np.uint32).astype(np.uint64)
    keys = np.sort((bits ^ np.uint64(LOW)) << np.uint64(32) | np.arange(probs.shape[1], dtype=np.uint64))
    values = (~keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
    return torch.from_numpy(values), torch.from_numpy(keys.view(np.int64) & LOW)


def _place(
    values: torch.Tensor,
    uniforms: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw among each row's best candidates, [N, k] largest first: their places, and whether k were enough.

    Each filter keeps a leading part of the row, so counts are all there is to know.
    """
    size = values.shape[1]
    cumulative = values.cumsum(-1, dtype=torch.float64)
    count = top_k.clamp(max=size)
    # Without top-k all tokens count, candidates or not: their probabilities sum to one.
    total = torch.where(top_k < vocab_size, _at(cumulative, count - 1), 1.0)
    enough = torch.where(top_p < 1, top_p * total, float("inf"))
    count = torch.minimum(count, torch.searchsorted(cumulative, enough[:, None])[:, 0] + 1)
    if min_p.any():
        least = (min_p * values[:, 0]).float()
        count = torch.minimum(count, torch.searchsorted(-values, -least[:, None], right=True)[:, 0])
    last = (count - 1).clamp_(min=0)
    target = uniforms * _at(cumulative, last)
    places = torch.minimum(torch.searchsorted(cumulative, target[:, None], right=True)[:, 0], last)
    # No other token is likelier than the last candidate. If that one is less likely than the least likely kept, then
    # nothing kept, nor an equal of it with a lower index, is missing.
    return places, (values[:, -1] < _at(values, last)) | (size == vocab_size)


def _at(rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """One entry of each row. [N, k], int64 [N] -> [N]."""
    return rows.gather(1, places[:, None])[:, 0]


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First place whose cumulative sum exceeds the target, at most the last one that adds anything."""
    above = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())[:, 0]
    return torch.minimum(above, last).clamp_(max=cumulative.shape[1] - 1)  # beyond only for NaN


def _chunked(rows: torch.Tensor, padding: float) -> torch.Tensor:
    """[N, V] -> [N, chunks, CHUNK], padded at the end when V is no multiple of CHUNK."""
    missing = -rows.shape[1] % CHUNK
    padded = F.pad(rows, (0, missing), value=padding) if missing else rows
    return padded.reshape(len(rows), -1, CHUNK)
