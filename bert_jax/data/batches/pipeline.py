"""Makes batches: the batch of a step is a function of (corpus, config, step).

The corpus is read as config.data.num_streams streams. A stream owns some of the shards
and visits them in a random order that differs between epochs. A visit draws the pairs
of a shard, packs them into rows and shuffles the rows. Its number of rows is known in
advance, so any position can be computed. Each step takes the same number of rows from
every stream. A host reads whole streams or a part of one: the number of hosts
determines which host reads a row, but not which rows a step has.

tf.data reads the records of the shards. A few dozen NumPy operations on all pairs of a
shard, or on all rows of a step, then make the batches. They run ahead of the model in
Python threads and not in those of tf.data: a run that waits for `batches` still handles
signals and gets the errors of the corpus as they are. `dataset` is a tf.data.Dataset
over the same threads. docs/architecture.md compares the two.

Shapes: B row of the batch, T token, P masked position, K sentence pair in a row,
R row of a visit, S step.
"""

import collections
import concurrent.futures
import itertools
import sys
from collections.abc import Callable, Iterator

import numpy as np

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.data.batches import masking, row_layout, tf_iterators, visits
from bert_jax.data.batches.streams import Stream, make_streams
from bert_jax.data.batches.visits import Visit
from bert_jax.data.corpus import encoding
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.lazy_tensorflow import tf

Batch = dict[str, np.ndarray]


# Smaller batches are made for several steps at once: NumPy operations on few tokens are
# so short that the threads spend much of their time waiting for the GIL (half as many
# rows per second, at 256 rows of 128 tokens).
TOKENS_AT_A_TIME = 2**18
MAX_STEPS_AT_A_TIME = 8
# The number of tasks that run ahead of the model: enough that the end of a shard causes
# no delay.
NUM_AHEAD = 4
# The number of threads that make batches. NumPy releases the GIL while it computes, but
# not in between, so more than two threads are not faster.
NUM_THREADS = 2


# A visit, which may still be running, its first row and the row after its last.
Part = tuple[concurrent.futures.Future[Visit], int, int]


def batches(
    corpus: Corpus,
    config: ExperimentConfig,
    *,
    split: str,
    seed: int,
    phase_index: int,
    first_step: int,
    host: int = 0,
    num_hosts: int = 1,
) -> Iterator[Batch]:
    """Yields this host's rows of every step of a phase, from `first_step`, endlessly.

    The rows of hosts 0, 1, ... concatenated are the global batch.

    Args:
      corpus: corpus opened by `corpus.read`.
      config: its data section and the phase are used.
      split: "train" or "validation". A host reads the streams that contain its rows.
        Validation is one small stream, which every host reads completely.
      seed: seed of pairs, order and masks.
      phase_index: index in config.phases; each phase starts a new epoch.
      first_step: step of the phase, from 0.
      host: index of this host.
      num_hosts: number of hosts; it divides the global_batch_size of the phase.

    Returns:
      Batches of int32 and float32 arrays: [B, T] input_ids, segment_ids, position_ids,
      sequence_ids; [B, P] masked_lm_positions, masked_lm_ids, masked_lm_weights;
      [B, K] next_sentence_positions, next_sentence_labels, next_sentence_weights.
    """
    part = (split, seed, phase_index, first_step, host, num_hosts)
    return (
        {name: rows_SB[i] for name, rows_SB in steps.items()}
        for steps in _several_steps(corpus, config, *part)
        for i in range(len(steps["input_ids"]))
    )


def dataset(
    corpus: Corpus,
    config: ExperimentConfig,
    *,
    split: str,
    seed: int,
    phase_index: int,
    first_step: int,
    host: int = 0,
    num_hosts: int = 1,
) -> "tf.data.Dataset":
    """Returns `batches` as an endless tf.data.Dataset, one element per step.

    Every iterator starts at `first_step` and has its own threads and visits, which end
    soon after it is deleted. An iterator may be deleted at any time, by any thread or
    at the end of the program, see tf_iterators.py.

    Args:
      corpus, config, split, seed, phase_index, first_step, host, num_hosts: see
        `batches`.

    Returns:
      Dictionaries of int32 and float32 tensors with the names and shapes of `batches`.

    Raises:
      tf.errors.UnknownError: while iterating, when a shard is missing or corrupt; the
        message contains that of the CorruptError.
    """
    part = (split, seed, phase_index, first_step, host, num_hosts)
    size = config.phases[phase_index].global_batch_size // num_hosts

    def several_steps() -> Iterator[Batch]:
        try:
            for steps in _several_steps(corpus, config, *part):
                yield {name: x.reshape(-1, x.shape[-1]) for name, x in steps.items()}
        except RuntimeError as error:  # TensorFlow would print it when a program ends
            if not str(error).startswith("cannot schedule new futures after"):
                raise

    tf_iterators.delete_in_a_thread()
    made = tf.data.Dataset.from_generator(
        several_steps,
        output_signature={
            name: tf.TensorSpec((None, width), dtype)
            for name, ((_, width), dtype) in batch_shapes(
                config.phases[phase_index]
            ).items()
        },
    )
    # Unlike `unbatch`, it does not copy aligned rows.
    made = made.rebatch(size, drop_remainder=True).prefetch(1)
    options = tf.data.Options()
    # Its thread sleeps for up to a minute and cannot be woken to end (seen with
    # TensorFlow 2.21).
    options.autotune.enabled = False
    return made.with_options(options).apply(
        tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    )


def batch_shapes(phase: PhaseConfig) -> dict[str, tuple[tuple[int, int], np.dtype]]:
    """Returns the shape and dtype of every array of a phase's global batches."""
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


def _several_steps(
    corpus: Corpus,
    config: ExperimentConfig,
    split: str,
    seed: int,
    phase_index: int,
    first_step: int,
    host: int,
    num_hosts: int,
) -> Iterator[Batch]:
    """Yields the rows of `batches` for several steps at once, as [S, B, ...] arrays."""
    phase = config.phases[phase_index]
    streams = make_streams(corpus, config, split, seed, phase_index)
    size = phase.global_batch_size // num_hosts
    per_stream = phase.global_batch_size // len(streams)
    # The streams that contain rows of this host: whole streams, if num_hosts divides
    # their number.
    read = slice(host * size // per_stream, -(-(host + 1) * size // per_stream))
    first, num_read = (
        host * size - read.start * per_stream,
        (read.stop - read.start) * per_stream,
    )
    reader = Reader(corpus, config, phase_index, streams[read], len(streams))
    num_steps = TOKENS_AT_A_TIME // (num_read * phase.sequence_length)
    num_steps = max(1, min(MAX_STEPS_AT_A_TIME, num_steps))

    def make(parts: list[Part]) -> Batch:
        rows = slice(first, first + size)
        return {
            name: made.reshape(num_steps, num_read, -1)[:, rows]
            for name, made in reader.batch(parts).items()
        }

    places = (
        [part for step in range(i, i + num_steps) for part in reader.parts(step)]
        for i in itertools.count(first_step, num_steps)
    )
    return _run_ahead(make, places, reader.close)


def _run_ahead(
    make: Callable[[list[Part]], Batch],
    places: Iterator[list[Part]],
    close: Callable[[], None],
) -> Iterator[Batch]:
    """Calls `make` for each of `places` in threads, and yields the results in order."""
    pool = concurrent.futures.ThreadPoolExecutor(NUM_THREADS)
    is_finalizing = sys.is_finalizing  # modules may be gone when it returns True
    try:
        ahead = collections.deque(
            pool.submit(make, parts) for parts in itertools.islice(places, NUM_AHEAD)
        )
        for parts in places:
            ahead.append(pool.submit(make, parts))
            yield ahead.popleft().result()
    finally:
        if not is_finalizing():  # otherwise the threads have already ended
            close()
            pool.shutdown(wait=False, cancel_futures=True)


def places(
    corpus: Corpus, config: ExperimentConfig, *, seed: int, phase_index: int, step: int
) -> list[tuple[str, int, int, int]]:
    """Returns the rows that a step trains on, without drawing them.

    Returns:
      (shard, epoch, first row, row after the last) of each part of the global batch, in
      order; see `provenance.Origin`.
    """
    streams = make_streams(corpus, config, "train", seed, phase_index)
    per_stream = config.phases[phase_index].global_batch_size // len(streams)
    found = []
    for stream in streams:
        left = per_stream
        for epoch, index, row in stream.visits(step * per_stream):
            taken = min(left, stream.rows[index] - row)
            found.append((stream.shards[index][1].file, epoch, row, row + taken))
            left -= taken
            if not left:
                break
    return found


# --------------------------------------------------------------- from step to rows


class Reader:
    """Makes the batches of some streams from their visits."""

    def __init__(
        self,
        corpus: Corpus,
        config: ExperimentConfig,
        phase_index: int,
        streams: list[Stream],
        num_streams: int,
    ):
        phase = config.phases[phase_index]
        self._rows_per_step = phase.global_batch_size // num_streams
        self._length = phase.sequence_length
        self._rule = masking.MaskRule.from_config(config, phase, corpus.tokenizer)
        self._has_marks = corpus.word_segmented

        def draw(stream: Stream, epoch: int, index: int) -> Visit:
            number, shard = stream.shards[index]
            key = (*stream.key, epoch, number)
            num_rows = stream.rows[index]
            return visits.draw(corpus, config, phase, shard, num_rows, key, epoch)

        self._pool = concurrent.futures.ThreadPoolExecutor(corpus.num_loading)
        self._cursors = [_Cursor(stream, draw, self._pool) for stream in streams]

    def close(self) -> None:
        """Cancels all visits that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def parts(self, step: int) -> list[Part]:
        """Returns the parts of visits that contain the rows of a step, in order."""
        first = step * self._rows_per_step
        for cursor in self._cursors:
            cursor.seek(first)  # starts all visits before the first one is read
        return [
            part
            for cursor in self._cursors
            for part in cursor.read(self._rows_per_step)
        ]

    def batch(self, parts: list[Part]) -> Batch:
        """Returns the rows of any number of steps as arrays, see `batches`."""
        drawn = [(visit.result(), i, j) for visit, i, j in parts]
        pairs_BK5 = np.concatenate([visit.pairs_RK5[i:j] for visit, i, j in drawn])
        keys_B2 = np.concatenate([visit.keys_R2[i:j] for visit, i, j in drawn])
        layout = row_layout.lay_out(pairs_BK5, self._length)
        ids_BT = np.empty(layout.source_BT.shape, drawn[0][0].tokens.dtype)
        row = 0
        for visit, i, j in drawn:
            rows = slice(row, row := row + j - i)
            # All indices are in range; mode="clip" writes to `out` without a copy.
            np.take(visit.tokens, layout.source_BT[rows], out=ids_BT[rows], mode="clip")
        continues_BT = None
        if self._has_marks:
            ids_BT, continues_BT = encoding.split_marks(ids_BT)
        num_to_predict_BK = self._rule.num_to_predict[layout.lengths_BK]
        num_to_predict_BK[layout.lengths_BK == 0] = 0
        input_ids_BT, positions_BP, ids_BP, weights_BP = masking.mask_rows(
            ids_BT.astype(np.int32),
            layout.candidates_BT,
            pairs_BK5[:, :, 1] + pairs_BK5[:, :, 3].astype(np.int64),
            num_to_predict_BK,
            keys_B2,
            self._rule,
            continues_BT,
        )
        return {
            "input_ids": input_ids_BT,
            "segment_ids": layout.segment_ids_BT,
            "position_ids": layout.position_ids_BT,
            "sequence_ids": layout.sequence_ids_BT,
            "masked_lm_positions": positions_BP,
            "masked_lm_ids": ids_BP,
            "masked_lm_weights": weights_BP,
            "next_sentence_positions": layout.first_BK,
            "next_sentence_labels": pairs_BK5[:, :, 4],
            "next_sentence_weights": (pairs_BK5[:, :, 3] > 0).astype(np.float32),
        }


class _Cursor:
    """A position in the visits of a stream; draws the next visit in the background."""

    def __init__(
        self,
        stream: Stream,
        draw: Callable[[Stream, int, int], Visit],
        pool: concurrent.futures.Executor,
    ):
        self._stream, self._draw, self._pool = stream, draw, pool
        self._row = -1
        self._left = 0  # number of unread rows of the visit
        self._next: concurrent.futures.Future[Visit] | None = None

    def seek(self, row: int) -> None:
        """Moves to a row of the stream, unless it is the next one."""
        if row == self._row:
            return
        self._row = row
        self._places = self._stream.visits(row)
        self._next = None
        self._enter_visit()

    def read(self, num_rows: int) -> Iterator[Part]:
        """Yields the parts of visits that contain the next rows."""
        self._row += num_rows
        while num_rows:
            if not self._left:
                self._enter_visit()
            if self._next is None:
                self._place = next(self._places)
                self._next = self._submit(self._place)
            first = self._num_rows - self._left
            taken = min(num_rows, self._left)
            yield self._visit, first, first + taken
            self._left -= taken
            num_rows -= taken

    def _enter_visit(self) -> None:
        if self._next is None:
            self._place = next(self._places)
            self._next = self._submit(self._place)
        epoch, index, first_row = self._place
        self._visit, self._next = self._next, None
        self._num_rows = self._stream.rows[index]
        self._left = self._num_rows - first_row

    def _submit(self, place: tuple[int, int, int]) -> concurrent.futures.Future[Visit]:
        epoch, index, _ = place
        return self._pool.submit(self._draw, self._stream, epoch, index)
