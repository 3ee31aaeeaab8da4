"""TensorFlow, imported at its first use, with the process's stderr closed to it.

The import takes seconds, three quarters of a command's start, and most commands read no
record; `train` reads the first one while the step compiles. TensorFlow 2.21 greets each
process with lines about CUDA and oneDNN before it reads TF_CPP_MIN_LOG_LEVEL. A failing
import raises as always.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

__all__ = ["tf"]

_lock = threading.Lock()


class _TensorFlow:
    """Stands for the module."""

    _module: Any = None

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the module, imported now if it was not yet."""
        with _lock:
            if self._module is None:
                self._module = _imported()
        return getattr(self._module, name)


def _imported() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _closed_stderr():
        import tensorflow

        tensorflow.config.set_visible_devices([], "GPU")  # batches are made on the CPU
    return tensorflow


@contextlib.contextmanager
def _closed_stderr() -> Iterator[None]:
    """Closes the process's stderr, but not to what Python's other threads print."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    before = sys.stderr
    sys.stderr = os.fdopen(os.dup(kept), "w", buffering=1)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        sys.stderr = before  # the other is closed when no thread has it any more
        os.close(kept)
        os.close(null)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _TensorFlow()
