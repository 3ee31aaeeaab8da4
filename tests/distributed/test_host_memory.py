"""Tests that freed memory is reused by commands that compute on the CPU."""

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


def count_faults_of_a_second_block():
    allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    allocate()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


# In a thread, as in XLA: threads have arenas of their own by default.
thread = threading.Thread(target=count_faults_of_a_second_block)
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_block_is_reused_without_page_faults():
    assert faults("default") > 1000  # when this fails, the setting is not needed
    assert faults("keep") < 100


@pytest.mark.parametrize(
    ("has_accelerator", "computes", "keeps"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_only_commands_that_compute_on_the_cpu_keep_freed_memory(
    monkeypatch, has_accelerator, computes, keeps
):
    calls = []
    monkeypatch.setattr(cli.devices, "has_accelerator", lambda: has_accelerator)
    monkeypatch.setattr(host_memory, "keep_freed_memory", lambda: calls.append(1))
    monkeypatch.setattr(sys, "argv", ["command"])
    cli.run(lambda: None, "", computes=computes)
    assert bool(calls) == keeps
