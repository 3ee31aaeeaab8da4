"""Tests of bert_jax.data.corpus.workers."""

import os
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.data.corpus import workers
from bert_jax.errors import ConfigError


def adder(value):
    return lambda item: (os.getpid(), value + item)


def made(task):
    return task


def fail_at_three(item):
    if item == 3:
        raise ConfigError("three is too many")
    return item


def receives_ctrl_c(item):
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def take_long(item):
    time.sleep(600)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_item_has_one_result(num_workers):
    found = list(workers.run(adder, (100,), range(20), num_workers))
    assert sorted(result for _, result in found) == list(range(100, 120))
    pids = {pid for pid, _ in found}
    assert pids == {os.getpid()} if num_workers == 1 else os.getpid() not in pids
    assert len(pids) <= num_workers


def test_ctrl_c_only_interrupts_the_parent():
    assert list(workers.run(made, (receives_ctrl_c,), range(4), 2)) == [False] * 4
    assert receives_ctrl_c(0)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_read_ahead_is_bounded(num_workers):
    num_read = num_done = 0

    def items():
        nonlocal num_read
        for i in range(60):
            num_read += 1
            # The items in progress, the waiting items, and the one being read.
            assert num_read - num_done <= num_workers + workers.LOOK_AHEAD + 1
            yield i

    for _ in workers.run(made, (return_item,), items(), num_workers):
        num_done += 1
    assert num_read == num_done == 60


def return_item(item):
    return item


def kill_itself(item):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "task, num_workers, message",
    [
        (fail_at_three, 1, "^three is too many$"),
        (fail_at_three, 2, "^three is too many$"),
        (kill_itself, 2, "worker process was killed.* fewer --workers"),
    ],
)
def test_a_failing_task_ends_the_work(task, num_workers, message):
    with pytest.raises(ConfigError, match=message):
        list(workers.run(made, (task,), range(1000), num_workers))


def touch_slowly(path):
    time.sleep(0.5)
    with open(path, "w"):
        pass


@pytest.mark.slow
def test_nothing_is_written_after_the_work_has_ended(tmp_path):
    """Cleaning up after a failure must not race with running tasks."""

    def items():
        yield from (tmp_path / name for name in "abc")
        raise ConfigError("line 4 is bad")

    with pytest.raises(ConfigError, match="line 4"):
        list(workers.run(made, (touch_slowly,), items(), 2))
    before = sorted(os.listdir(tmp_path))
    time.sleep(1)
    assert sorted(os.listdir(tmp_path)) == before


PROGRAM = """
import multiprocessing, sys
if __name__ == "__main__":
    from bert_jax.data.corpus import workers
    from tests.data.corpus import test_workers
    def items():
        yield from (1, 2)
        pids = [process.pid for process in multiprocessing.active_children()]
        print(*pids, flush=True)
        yield 3
    list(workers.run(test_workers.made, (test_workers.take_long,), items(), 2))
else:
    print("imported as", __name__, flush=True)
"""


def test_processes_end_with_their_killed_parent_and_do_not_import_it(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(signal.SIGKILL)
    rest = parent.stdout.read()  # ends when the last of them has closed it
    parent.wait()
    assert rest == ""
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}/cmdline") and is_ours(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process outlived its parent"
        time.sleep(0.05)


def is_ours(pid):
    """Returns whether a process runs; a zombie process has no command line."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return "multiprocessing" in file.read()
    except OSError:
        return False
