"""Pretrains BERT in JAX: `python -m bert_jax.train --config=configs/X.py`."""

import os
import signal
import sys
import time

BEGAN = time.time()  # when Python had started, in seconds since 1970


def _stop(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(128 + signal.SIGINT)


# `python -m bert_jax.X` comes here first, and Python has not set sys.argv[0] by then.
# Ctrl-C would raise wherever it hits in the seconds of imports that follow, even in a
# callback of JAX's, which swallows it. `command_line` ends this.
if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, _stop)
