"""A process that hangs says where and leaves; one that works is left alone."""

import subprocess
import sys
import textwrap
import threading
import time

import pytest

from bert_jax.distributed import watchdog
from tests.commands import ENV, ROOT


def run(program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_hang_ends_with_76_and_the_stacks_of_all_threads():
    started = time.monotonic()
    result = run("""
        import threading
        from bert_jax.distributed.watchdog import Watchdog

        def waits_for_a_peer():
            threading.Event().wait()

        threading.Thread(target=waits_for_a_peer, daemon=True).start()
        def hangs_in_a_collective():
            threading.Event().wait()

        with Watchdog(patience_secs=2.0) as dog:
            dog.saw("step 7")
            hangs_in_a_collective()
    """)
    assert result.returncode == 76
    assert "nothing has happened for 2 s after step 7" in result.stderr
    assert "waits_for_a_peer" in result.stderr
    assert "hangs_in_a_collective" in result.stderr
    assert time.monotonic() - started < 60


def test_steps_and_rests_of_any_length_are_no_hang():
    result = run("""
        import time
        from bert_jax.distributed.watchdog import Watchdog

        with Watchdog(patience_secs=2.0) as dog:
            time.sleep(2.5)  # before the first step: compiling
            for step in range(6):
                dog.saw(f"step {step}")
                time.sleep(0.4)
            dog.rest()
            time.sleep(2.5)
            dog.saw("step 6")
        time.sleep(2.5)
        print("done")
    """)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_slow_steps_have_ten_times_their_median(monkeypatch):
    dog = watchdog.Watchdog(patience_secs=60.0)
    assert dog.limit_secs() == 60.0
    clock = iter([100.0, 110.0, 120.0, 400.0])  # steps of 10, 10 and 280 s
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: next(clock))
    for step in range(4):
        dog.saw(f"step {step}")
    assert dog.limit_secs() == 100.0
    dog.rest()


def test_what_is_no_step_has_longer_but_not_for_ever():
    result = run("""
        import time
        from bert_jax.distributed import watchdog

        watchdog.LONG_SECS = 5.0
        with watchdog.Watchdog(patience_secs=1.0) as dog:
            for step in range(3):
                dog.begin("a save")
                time.sleep(2.0)
            print("done", dog.limit_secs(), flush=True)
            time.sleep(60)
    """)
    assert result.returncode == 76 and result.stdout == "done 5.0\n"
    assert "nothing has happened for 5 s after the start of a save" in result.stderr


def test_no_thread_is_left_after_the_context():
    before = threading.active_count()
    with pytest.raises(KeyError):
        with watchdog.Watchdog() as dog:
            assert threading.active_count() == before + 1
            dog.saw("step 1")
            raise KeyError
    assert threading.active_count() == before
