"""Imports TensorFlow at its first use, without its messages on standard error.

The import takes seconds, three quarters of a command's start-up, and most commands read
no records; `train` reads the first one while the step compiles. TensorFlow 2.21 prints
lines about CUDA and oneDNN before it reads TF_CPP_MIN_LOG_LEVEL, so stderr is
redirected during the import. Import errors are raised as usual.
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
    """A proxy of the `tensorflow` module."""

    _module: Any = None

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the module, which is imported at the first call."""
        with _lock:
            if self._module is None:
                self._module = _import_tensorflow()
        return getattr(self._module, name)


def _import_tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _discard_stderr(), without_keras():
        import tensorflow

        tensorflow.config.set_visible_devices([], "GPU")  # batches are made on the CPU
    return tensorflow


@contextlib.contextmanager
def without_keras() -> Iterator[None]:
    """Imports of TensorFlow in this context omit Keras, half of the import time.

    Keras imports SciPy too. TensorFlow tolerates that Keras cannot be imported, and
    `tf.keras` imports it later.
    """
    found = sys.modules.setdefault("keras.src", None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if found is None:
            del sys.modules["keras.src"]


@contextlib.contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discards the stderr output of C++ code, but not that of Python's threads."""
    sys.stderr.flush()
    kept = os.fdopen(os.dup(2), "w", buffering=1)  # closes when no thread refers to it
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.redirect_stderr(kept):
        try:
            os.dup2(null, 2)
            yield
        finally:
            os.dup2(kept.fileno(), 2)
            os.close(null)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _TensorFlow()
