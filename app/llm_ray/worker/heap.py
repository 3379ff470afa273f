"""Two words with glibc's allocator. Elsewhere (musl, macOS) both do nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 << 20
NEVER_TRIM = 1 << 30


def trim() -> None:
    """Give freed memory back: unpacked weights leave holes in the heap that would otherwise stay resident."""
    call = _libc("malloc_trim")
    if call is not None:
        call(0)


def keep() -> None:
    """Keep what is freed from now on: or a step's large temporaries fault their pages in anew, step after step."""
    call = _libc("mallopt")
    if call is not None:
        call(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        call(M_TRIM_THRESHOLD, NEVER_TRIM)


def _libc(name: str) -> Callable[..., int] | None:
    try:
        call: Callable[..., int] = getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):
        return None
    return call
