"""Pretrains BERT in JAX: `python -m bert_jax.train --config=configs/X.py`."""

import os
import signal
import sys
import time

__version__ = "0.1.0"


def clock() -> float:
    """Returns seconds since the boot, to measure durations by differences.

    The time of day may step by hours when the machine sets its clock.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


BEGAN = clock()  # time of the import; the start time of a command
EXIT_FORCED = 128 + signal.SIGINT  # the code that shells report for SIGINT


def stop(*_: object) -> None:
    """Signal handler that ends this process at once, when there is nothing to save."""
    try:
        os.write(2, b"stopped\n")
    finally:  # exit even if stderr is closed
        os._exit(EXIT_FORCED)


def _is_command() -> bool:
    """Returns whether `python -m bert_jax.NAME` or `bert-jax NAME` is starting."""
    is_module = any(word.partition(".")[0] == "bert_jax" for word in sys.orig_argv)
    is_script = os.path.basename(sys.argv[0]) == "bert-jax"
    return is_script or (is_module and sys.argv[0] == "-m")


# The imports that follow take seconds. Without this handler, Ctrl-C would raise
# KeyboardInterrupt anywhere in them, often in a callback that swallows it. cli.py
# replaces the handler.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, stop)
