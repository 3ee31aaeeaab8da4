"""Makes batches: the batch of a step is a function of (corpus, config, step).

The corpus is read as config.data.num_streams streams. A stream owns some of the shards
and visits them in a random order that differs between epochs. A visit draws the pairs
of a shard, packs them into rows and shuffles the rows. Its number of rows is known in
advance, so any position can be computed. Each step takes the same number of rows from
every stream. A host reads whole streams or a part of one: the number of hosts
determines which host reads a row, but not which rows a step has.

tf.data maps the numbers of the steps to their rows in parallel, keeps their order and
prefetches. The mapped function is a few dozen NumPy operations on all rows of a step,
see visits.py.

Shapes: B row of the batch, T token, P masked position, K sentence pair in a row.
"""

import atexit
import contextlib
import functools
import gc
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import numpy as np

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.data.batches.visits import (
    NUM_THREADS,
    Batch,
    Selection,
    StepRows,
    make_streams,
)
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.lazy_tensorflow import tf

# The number of results of the mapped function that wait for the model: enough that the
# end of a shard causes no delay.
NUM_AHEAD = 2
# How long the end of a program waits for the thread of `batches`.
EXIT_SECS = 10.0


def dataset(
    corpus: Corpus,
    config: ExperimentConfig,
    *,
    first_step: int,
    **selection: Unpack[Selection],
) -> "tf.data.Dataset":
    """Returns this host's rows of every step of a phase, from `first_step`, endlessly.

    An element is a batch. The rows of hosts 0, 1, ... concatenated are the global
    batch. An iterator may be deleted at any time, by any thread or at the end of the
    program, see `delete_in_a_thread`. Steps of the phase count from 0.

    Returns:
      Dictionaries of int32 and float32 tensors: [B, T] input_ids, segment_ids,
      position_ids, sequence_ids; [B, P] masked_lm_positions, masked_lm_ids,
      masked_lm_weights; [B, K] next_sentence_positions, next_sentence_labels,
      next_sentence_weights.

    Raises:
      tf.errors.UnknownError: while iterating, when a shard is missing or corrupt; the
        message contains that of the CorruptError.
    """
    rows = StepRows(corpus, config, **selection)

    def failed(step: int, error: Exception) -> None:
        # When Python ends, a thread pool refuses to work.
        if not isinstance(error, RuntimeError) or "shutdown" not in str(error):
            raise error

    delete_in_a_thread()
    infinite = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    made = _dataset(rows, first_step, failed)
    # Unlike `unbatch`, `rebatch` does not copy aligned rows.
    return made.rebatch(rows.size, drop_remainder=True).apply(infinite)


def batches(
    corpus: Corpus,
    config: ExperimentConfig,
    *,
    first_step: int,
    **selection: Unpack[Selection],
) -> Iterator[Batch]:
    """Yields the elements of `dataset` as NumPy arrays, which cannot be written to.

    A thread owns the iterator of tf.data, so that a caller who waits for storage still
    handles signals.

    Raises:
      CorruptError: when a shard is missing or corrupt.
    """
    rows = StepRows(corpus, config, **selection)
    errors: dict[int, Exception] = {}
    taken: queue.Queue[Batch | Exception] = queue.Queue(maxsize=1)
    is_closed = threading.Event()

    def take() -> None:
        try:
            made = _dataset(rows, first_step, errors.__setitem__)
            for i, batch in enumerate(made):
                if is_closed.is_set():
                    return
                if error := errors.get(first_step + i * rows.num_steps):
                    return taken.put(error)
                # `numpy()` would copy.
                taken.put({k: np.asarray(memoryview(x)) for k, x in batch.items()})
        except Exception as error:
            if not is_closed.is_set():  # otherwise nothing takes it
                taken.put(error)
        finally:
            atexit.unregister(close_and_wait)

    def close() -> None:
        is_closed.set()
        rows.close()
        with contextlib.suppress(queue.Empty):
            taken.get_nowait()  # the thread may wait for space

    def close_and_wait() -> None:
        close()
        thread.join(EXIT_SECS)

    thread = threading.Thread(target=take, name="batches", daemon=True)
    thread.start()
    atexit.register(close_and_wait)
    try:
        while True:
            batch = taken.get()
            if isinstance(batch, Exception):
                raise batch
            for i in range(0, rows.num_steps * rows.size, rows.size):
                yield {name: x[i : i + rows.size] for name, x in batch.items()}
    finally:
        if not is_closed.is_set():  # otherwise the program has ended
            close()


def _dataset(
    rows: StepRows, first_step: int, failed: Callable[[int, Exception], None]
) -> "tf.data.Dataset":
    """Returns the dataset of the batches that `rows` makes.

    `failed` is called with a step and its error, and may raise. The rows are zeros if
    it returns: TensorFlow logs every exception.
    """
    shapes = batch_shapes(rows.phase)

    def arrays(step: np.ndarray) -> list[np.ndarray]:
        try:
            return list(rows.make(int(step)).values())
        except Exception as error:
            failed(int(step), error)
            num_rows = rows.num_steps * rows.size
            return [np.zeros((num_rows, n), dtype) for (_, n), dtype in shapes.values()]

    @tf.autograph.experimental.do_not_convert  # which writes a file to /tmp
    def tensors(step: "tf.Tensor") -> "dict[str, tf.Tensor]":
        dtypes = [dtype for _, dtype in shapes.values()]
        made = dict(zip(shapes, tf.numpy_function(arrays, [step], dtypes), strict=True))
        for name, ((_, width), _) in shapes.items():
            made[name].set_shape((rows.num_steps * rows.size, width))
        return made

    steps = tf.data.Dataset.range(first_step, np.iinfo(np.int64).max, rows.num_steps)
    made = steps.map(tensors, num_parallel_calls=NUM_THREADS, deterministic=True)
    made = made.prefetch(NUM_AHEAD)
    options = tf.data.Options()
    # Its thread sleeps for up to a minute and cannot be woken to end (seen with
    # TensorFlow 2.21).
    options.autotune.enabled = False
    return made.with_options(options)


def batch_shapes(phase: PhaseConfig) -> dict[str, tuple[tuple[int, int], np.dtype]]:
    B, T = phase.global_batch_size, phase.sequence_length
    P, K = phase.max_predictions, phase.max_sequences_per_row
    tokens = ("input_ids", "segment_ids", "position_ids", "sequence_ids")
    widths = {name: T for name in tokens}
    widths |= {f"masked_lm_{name}": P for name in ("positions", "ids", "weights")}
    pairs = ("positions", "labels", "weights")
    widths |= {f"next_sentence_{name}": K for name in pairs}
    return {
        name: ((B, width), np.dtype("float32" if "weights" in name else "int32"))
        for name, width in widths.items()
    }


def places(
    corpus: Corpus, config: ExperimentConfig, *, seed: int, phase_index: int, step: int
) -> list[tuple[str, int, int, int]]:
    """Returns the rows that a step trains on, without drawing them.

    These are (shard, epoch, first row, row after the last) of each part of the global
    batch, in order. Rows are numbered in their visit to the shard.
    """
    streams = make_streams(corpus, config, "train", seed, phase_index)
    per_stream = config.phases[phase_index].global_batch_size // len(streams)
    return [
        (stream.shards[index][1].file, epoch, first, stop)
        for stream in streams
        for epoch, index, first, stop in stream.parts(step * per_stream, per_stream)
    ]


# ----------------------------------------------- deletion of tf.data iterators


# The attributes of iterators to delete; None ends the thread. `SimpleQueue.put` may be
# called in a garbage collection.
_attributes: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()


@functools.cache
def delete_in_a_thread() -> None:
    """Starts a thread that deletes tf.data iterators, the remaining ones at exit.

    The destructor of an iterator waits until its threads have returned from Python. Two
    deletions never end (seen with TensorFlow 2.21 and Python 3.11):

    - The garbage collector runs in whichever thread allocates an object. If this is a
      thread of the iterator that it deletes, that thread waits for itself.
    - When the interpreter ends, it ends every other thread that asks for the GIL, so
      that calls into Python do not return.

    Another thread can delete iterators, because TensorFlow releases the GIL while it
    waits. This includes iterators of datasets derived by `map`, `zip` and so on.
    """
    iterator: Any = type(iter(tf.data.Dataset.range(0)))
    iterator.__del__ = _hand_over
    thread = threading.Thread(target=_delete, name="delete iterators", daemon=True)
    thread.start()

    def delete_all() -> None:
        for found in gc.get_objects():
            if type(found) is iterator:
                _hand_over(found)
        _attributes.put(None)
        thread.join()

    atexit.register(delete_all)


def _hand_over(iterator: Any, put: Callable[[Any], None] = _attributes.put) -> None:
    """Moves the only reference to the C++ iterator into the queue."""
    attributes = dict(vars(iterator))
    vars(iterator).clear()
    put(attributes)


def _delete() -> None:
    while (attributes := _attributes.get()) is not None:
        attributes.clear()
