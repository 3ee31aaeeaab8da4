"""Tests of the watchdog: a hung process is aborted, a working one is not."""

import threading
import time

import pytest

from bert_jax.distributed import stopping
from tests.commands import run_code


@pytest.mark.slow
def test_hang_exits_with_76_and_dumps_all_stacks():
    started = time.monotonic()
    result = run_code("""
        import threading
        from bert_jax.distributed.stopping import Watchdog

        def waits_for_a_peer():
            threading.Event().wait()

        threading.Thread(target=waits_for_a_peer, daemon=True).start()
        def hangs_in_a_collective():
            threading.Event().wait()

        with Watchdog(patience_secs=2.0) as dog:
            dog.heartbeat("step 7")
            hangs_in_a_collective()
    """)
    assert result.returncode == 76
    assert "no progress for 2 s after step 7" in result.stderr
    assert "waits_for_a_peer" in result.stderr
    assert "hangs_in_a_collective" in result.stderr
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_compilation_pauses_and_other_activities_are_not_hangs():
    """Other activities have a limit of their own."""
    result = run_code("""
        import time
        from bert_jax.distributed import stopping

        stopping.LONG_SECS = 5.0
        with stopping.Watchdog(patience_secs=1.5) as dog:
            time.sleep(2.0)  # compilation, before the first step
            for step in range(6):
                dog.heartbeat(f"step {step}")
                time.sleep(0.4)
            dog.pause()
            time.sleep(2.0)
            dog.heartbeat("step 6")
            dog.begin("a save")
            time.sleep(2.0)
            print("done", dog.limit_secs(), flush=True)
            time.sleep(60)
    """)
    assert result.returncode == 76 and result.stdout == "done 5.0\n"
    assert "no progress for 5 s after the start of a save" in result.stderr


def test_limit_of_slow_steps_is_ten_times_their_median(monkeypatch):
    dog = stopping.Watchdog(patience_secs=60.0)
    assert dog.limit_secs() == 60.0
    clock = iter([100.0, 110.0, 120.0, 400.0])  # steps of 10, 10 and 280 s
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(clock))
    for step in range(4):
        dog.heartbeat(f"step {step}")
    assert dog.limit_secs() == 100.0
    dog.pause()


def test_thread_ends_with_the_context():
    with pytest.raises(KeyError):
        with stopping.Watchdog() as dog:
            (thread,) = (x for x in threading.enumerate() if x.name == "watchdog")
            dog.heartbeat("step 1")
            raise KeyError
    assert not thread.is_alive()
