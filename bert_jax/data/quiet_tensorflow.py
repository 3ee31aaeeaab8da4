"""TensorFlow, imported with the process's stderr closed to it.

TensorFlow 2.21 greets every process with lines about CUDA and oneDNN before it reads
TF_CPP_MIN_LOG_LEVEL. A failing import raises as always. The import takes seconds, so
what runs in tokenising processes does without.
"""

import os
import sys

__all__ = ["tf"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.stderr.flush()
_stderr, _null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
try:
    os.dup2(_null, 2)
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # batches are made on the CPU
finally:
    os.dup2(_stderr, 2)
    os.close(_stderr)
    os.close(_null)
