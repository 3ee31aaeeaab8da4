"""This machine's memory: how much there is, and what becomes of what is freed."""

import ctypes
import importlib.util
import os
import re
import sys
from pathlib import Path

# mallopt(3) of glibc, by the numbers in malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Returns the memory that processes can still take; None where Linux is not."""
    try:
        found = re.search(
            r"^MemAvailable: *(\d+) kB$", meminfo.read_text(), re.MULTILINE
        )
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def has_accelerator() -> bool:
    """Returns whether JAX would look for more than a CPU, before it is imported."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms != "cpu"
    return any(map(importlib.util.find_spec, ("libtpu", "jax_plugins")))


def keep_freed_memory() -> None:
    """Tells glibc to keep large freed blocks for the next request of that size.

    By default it hands a block over 32 MB back to Linux at once. XLA on the CPU asks
    for its temporary memory anew at every step, so every step had all of it mapped and
    zeroed again, a page at a time: 9% of the CPU time of a step of BERT-base, 25% of
    one of configs/tiny.py. Peak memory stays as it is.

    Not for a process whose work is compiling: the threads of the TPU's compiler wait
    for each other's allocations then (BERT-large takes 294 s, and 219 s without).

    Call it before threads are started: those that have an arena of their own keep it.
    Does nothing with another C library.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return
    mallopt(_M_ARENA_MAX, 1)  # only the first arena can hold blocks of any size
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_M_TOP_PAD, 64 * 2**20)
