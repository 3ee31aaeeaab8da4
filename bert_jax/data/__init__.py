"""From raw text to batches; the only part of training that uses TensorFlow.

Execution order: sources -> sentences -> tokenizers -> corpus_writer -> corpus (on disk)
-> pairs -> packing -> masking -> pipeline.
"""

import os
import sys


def _import_tensorflow_quietly() -> None:
    """Imports TensorFlow with the process's stderr closed to it.

    TensorFlow 2.21 greets every process with lines about CUDA and oneDNN before it
    reads TF_CPP_MIN_LOG_LEVEL. A failing import raises as always.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        import tensorflow

        tensorflow.config.set_visible_devices([], "GPU")  # batches are made on the CPU
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


_import_tensorflow_quietly()
