"""Freed memory is not mapped and zeroed anew where that costs."""

import subprocess
import sys

import pytest

from bert_jax import cli
from bert_jax.distributed import host_memory

COUNT_FAULTS = """
import ctypes, resource, sys, threading
from bert_jax.distributed import host_memory

if sys.argv[1] == "keep":
    host_memory.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
ctypes.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def allocate():
    block = libc.malloc(64 * 2**20)
    ctypes.memset(block, 1, 64 * 2**20)
    libc.free(block)


def faults_of_a_second_block():
    allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    allocate()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


# XLA works in threads, and threads have arenas of their own by default.
thread = threading.Thread(target=faults_of_a_second_block)
thread.start()
thread.join()
"""


def faults(mode):
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS, mode],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone")
def test_a_second_block_reuses_the_pages_of_the_first():
    assert faults("default") > 1000  # what the setting is for: else it is not needed
    assert faults("keep") < 100


def test_what_is_available_is_read_from_linux(tmp_path):
    meminfo = tmp_path / "meminfo"
    assert host_memory.available_bytes(meminfo) is None
    meminfo.write_text("MemTotal:  4000 kB\nMemAvailable:    3000 kB\nSwap: 1 kB\n")
    assert host_memory.available_bytes(meminfo) == 3000 * 1024


@pytest.mark.parametrize(
    ("platforms", "installed", "computes", "keeps"),
    [
        ("cpu", "libtpu", True, True),
        ("cpu", "libtpu", False, False),
        ("tpu", None, True, False),
        ("", None, True, True),
        ("", "libtpu", True, False),
        ("", "jax_plugins", True, False),
    ],
)
def test_only_what_computes_on_a_cpu_keeps_memory(
    monkeypatch, platforms, installed, computes, keeps
):
    calls = []
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(
        host_memory.importlib.util, "find_spec", lambda name: name == installed or None
    )
    monkeypatch.setattr(host_memory, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(sys, "argv", ["command"])
    cli.run(lambda: None, "", computes=computes)
    assert bool(calls) == keeps
