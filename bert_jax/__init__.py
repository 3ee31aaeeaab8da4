"""Pretrains BERT in JAX: `python -m bert_jax.train --config=configs/X.py`."""

import os
import signal
import sys
import time

# When this was imported, in seconds since 1970: of a command, when Python had started.
BEGAN = time.time()
EXIT_FORCED = 128 + signal.SIGINT  # as shells tell of a process that SIGINT ended


def stop(*_: object) -> None:
    """Ends this process: nothing is begun that would have to be finished."""
    try:
        os.write(2, b"stopped\n")
    finally:  # whether or not anybody listens
        os._exit(EXIT_FORCED)


def _is_command() -> bool:
    """Returns whether Python is looking for a `python -m bert_jax.X` just now."""
    is_ours = any(argument.startswith("bert_jax.") for argument in sys.orig_argv)
    return is_ours and sys.argv[0] == "-m"


# Else Ctrl-C raises wherever it hits in the seconds of imports that follow, often in a
# callback that swallows it. `command_line` puts another handler in the place of this.
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, stop)
