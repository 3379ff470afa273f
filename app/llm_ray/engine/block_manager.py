"""Which KV block belongs to whom: reference counts, the free list and the prefix cache. Holds no tensors.

Two promises carry the whole cache. A block with a reader is never written by another sequence, and a block is found
only by a sequence whose tokens up to that block's end are the very same.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llm_ray.engine.outputs import Counters
from llm_ray.engine.sequence import Sequence

HashBlock = Callable[[bytes, bytes], bytes]
"""(digest of the block before, this block's token ids as int64) -> digest of the whole prefix."""


def hash_block(parent: bytes, tokens: bytes) -> bytes:
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """What a published block holds. Blocks of equal prefix_id hold equal tokens behind equal prefixes."""

    digest: bytes
    parent_id: int
    tokens: bytes
    prefix_id: int


class BlockManager:
    """Hands out blocks 1 .. num_blocks - 1; block 0 is scratch for padding and belongs to nobody.

    A freed block keeps its content for reuse until it is handed out again: blocks without content go first, then the
    one that was freed longest ago. A sequence's blocks are freed tail first, so that common prefixes live longest.

    A block is found by digest, then compared by tokens and by the prefix_id before it. So even a colliding digest
    finds nothing, and the newest content owns a disputed one.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        *,
        counters: Counters | None = None,
        hash_block: HashBlock = hash_block,
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks ({num_blocks}) must be at least 2: block 0 is scratch")
        self.num_blocks = num_blocks - 1
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.counters = counters or Counters()
        self._hash_block = hash_block
        self._ref_counts = [0] * num_blocks
        self._contents: list[CachedBlock | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        self._free_empty = list(range(num_blocks - 1, 0, -1))
        self._free_cached: OrderedDict[int, None] = OrderedDict()
        self._prefix_ids = itertools.count(1)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free_empty) + len(self._free_cached)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[int]:
        """Published blocks that continue the sequence's computed tokens. Changes nothing.

        Only for a sequence whose computed tokens end on a block border. At least one token is left to compute.
        """
        found: list[int] = []
        if not self.prefix_caching:
            return found
        prefix_id = sequence.prefix_id
        first = sequence.num_computed_tokens // self.block_size
        for index in range(first, (sequence.num_tokens - 1) // self.block_size):
            digest, tokens = self._identify(sequence, index)
            block = self._find(digest, prefix_id, tokens)
            if block is None:
                break
            found.append(block)
            prefix_id = self._content(block).prefix_id
        return found

    def num_idle(self, blocks: list[int]) -> int:
        """How many of these are on the free list now, and leave it when shared."""
        return sum(self._ref_counts[block] == 0 for block in blocks)

    def share(self, sequence: Sequence, blocks: list[int]) -> None:
        """Append what `match` found, unchanged since, to the sequence's table and count its tokens as computed."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free_cached[block]
            self._ref_counts[block] += 1
        if blocks:
            sequence.block_table.extend(blocks)
            sequence.prefix_id = self._content(blocks[-1]).prefix_id
            sequence.num_computed_tokens += len(blocks) * self.block_size
            self.counters.num_cached_tokens += len(blocks) * self.block_size

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Grow the table to hold num_tokens tokens in all. False, with nothing changed, when too few are free."""
        table = sequence.block_table
        missing = self.num_blocks_for(num_tokens) - len(table)
        if missing > self.num_free_blocks:
            return False
        for _ in range(missing):
            table.append(self._take())
        return True

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Make findable the blocks that fill up when the computed tokens grow to num_tokens.

        Call it before num_computed_tokens moves, and only when the step that computes them is sure to be submitted.
        """
        if not self.prefix_caching:
            return
        for index in range(sequence.num_computed_tokens // self.block_size, num_tokens // self.block_size):
            digest, tokens = self._identify(sequence, index)
            equal = self._find(digest, sequence.prefix_id, tokens)
            if equal is None:
                equal = sequence.block_table[index]
                self._set_content(equal, CachedBlock(digest, sequence.prefix_id, tokens, next(self._prefix_ids)))
            sequence.prefix_id = self._content(equal).prefix_id

    def free(self, sequence: Sequence) -> None:
        """Give up all blocks of a sequence, which then has computed nothing."""
        self.free_blocks(sequence.block_table)
        # A new list: a plan that has been collected may still refer to the old one.
        sequence.block_table = []
        sequence.prefix_id = 0
        sequence.num_computed_tokens = 0

    def free_blocks(self, blocks: list[int]) -> None:
        """Drop one reference to each block of one table, the last block first. ValueError, with nothing changed,
        when a block is not in use or comes twice."""
        for block in blocks:
            if not 0 < block <= self.num_blocks or self._ref_counts[block] < 1:
                raise ValueError(f"block {block} is not in use and cannot be freed")
        if len(set(blocks)) != len(blocks):
            raise ValueError(f"one table holds a block twice: {blocks}")
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0 and self._contents[block] is None:
                self._free_empty.append(block)
            elif self._ref_counts[block] == 0:
                self._free_cached[block] = None

    def check(self, tables: Iterable[list[int]]) -> None:
        """Raise ValueError unless the books balance; tables are the block tables of all living sequences."""
        holders = Counter(block for table in tables for block in table)
        free = [*self._free_empty, *self._free_cached]
        faults = {
            "a block is on the free list twice": len(set(free)) != len(free),
            "scratch or an unknown block was handed out": any(
                not 0 < block <= self.num_blocks for block in (*free, *holders)
            ),
            "free and used blocks do not add up": set(free) | set(holders) != set(range(1, self.num_blocks + 1)),
            "a block is both free and in use": not set(free).isdisjoint(holders),
            "reference counts differ from the tables": any(
                count != holders[block] for block, count in enumerate(self._ref_counts)
            ),
            "a free block is on the wrong list": any(self._contents[b] is not None for b in self._free_empty)
            or any(self._contents[b] is None for b in self._free_cached),
            "digests and contents disagree": self._by_digest
            != {content.digest: block for block, content in enumerate(self._contents) if content is not None}
            or len(self._by_digest) != sum(content is not None for content in self._contents),
        }
        for fault, found in faults.items():
            if found:
                raise ValueError(f"block manager: {fault}")

    def _take(self) -> int:
        if self._free_empty:
            block = self._free_empty.pop()
        else:
            block, _ = self._free_cached.popitem(last=False)
            self._clear_content(block)
            self.counters.num_evicted_blocks += 1
        self._ref_counts[block] = 1
        return block

    def _identify(self, sequence: Sequence, index: int) -> tuple[bytes, bytes]:
        """Digest and token bytes of a full block; the sequence remembers its digests, as its tokens only grow."""
        start = index * self.block_size
        tokens = array("q", sequence.token_ids[start : start + self.block_size]).tobytes()
        hashes = sequence.block_hashes
        if index == len(hashes):
            hashes.append(self._hash_block(hashes[-1] if hashes else b"", tokens))
        return hashes[index], tokens

    def _find(self, digest: bytes, parent_id: int, tokens: bytes) -> int | None:
        block = self._by_digest.get(digest)
        if block is None:
            return None
        content = self._content(block)
        return block if content.parent_id == parent_id and content.tokens == tokens else None

    def _content(self, block: int) -> CachedBlock:
        content = self._contents[block]
        if content is None:
            raise ValueError(f"block {block} has no published content")
        return content

    def _set_content(self, block: int, content: CachedBlock) -> None:
        rival = self._by_digest.get(content.digest)
        if rival is not None:
            self._clear_content(rival)
            if rival in self._free_cached:
                del self._free_cached[rival]
                self._free_empty.append(rival)
        self._contents[block] = content
        self._by_digest[content.digest] = block

    def _clear_content(self, block: int) -> None:
        del self._by_digest[self._content(block).digest]
        self._contents[block] = None
