"""Builds the rows of a step from visits to shards, which are drawn ahead.

Shapes: B row of a batch, T token, P masked position, K sentence pair in a row.
"""

import collections
import concurrent.futures
import threading
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import masking, row_layout, visits
from bert_jax.data.batches.visits import Visit, make_streams
from bert_jax.data.corpus import shard_file
from bert_jax.data.corpus.corpus import Corpus

Batch = dict[str, np.ndarray]

# The number of threads that make rows. NumPy releases the GIL while it computes, but
# not in between, so more than two threads are not faster.
NUM_THREADS = 2
# Smaller batches are made for several steps at once: NumPy operations on few tokens are
# so short that the threads spend much of their time waiting for the GIL (half as many
# rows per second, at 256 rows of 128 tokens).
TOKENS_AT_A_TIME = 2**18
MAX_STEPS_AT_A_TIME = 8

# Index of the stream, epoch and index of the shard in the stream.
VisitKey = tuple[int, int, int]


class Selection(TypedDict):
    """Selects the rows of a phase that a host makes: the arguments of `StepRows`."""

    split: str  # "train" or "validation", which is one small stream
    seed: int
    phase_index: int  # in config.phases; each phase starts a new epoch
    host: NotRequired[int]
    num_hosts: NotRequired[int]  # divides the global_batch_size of the phase


class Part(NamedTuple):
    """Consecutive rows of a visit, which may still be in progress."""

    visit: concurrent.futures.Future[Visit]
    first: int
    stop: int


class StepRows:
    """Builds a host's rows of any step of a phase.

    Threads may call it at the same time. It keeps the visits of the latest calls and
    draws the following ones ahead, so that calls in the order of the steps draw each
    visit once.

    Attributes:
      size: the number of this host's rows in a step.
      num_steps: the number of steps to make at a time.
    """

    def __init__(
        self,
        corpus: Corpus,
        config: ExperimentConfig,
        *,
        split: str,
        seed: int,
        phase_index: int,
        host: int = 0,
        num_hosts: int = 1,
    ):
        self._corpus, self._config = corpus, config
        self.phase = phase = config.phases[phase_index]
        streams = make_streams(corpus, config, split, seed, phase_index)
        self._per_stream = phase.global_batch_size // len(streams)
        self.size = phase.global_batch_size // num_hosts
        # The streams that contain rows of this host: whole streams, if num_hosts
        # divides their number.
        start, stop = host * self.size, (host + 1) * self.size
        read = slice(start // self._per_stream, -(-stop // self._per_stream))
        self._streams = streams[read]
        self._first = start - read.start * self._per_stream
        num_read = len(self._streams) * self._per_stream
        at_a_time = TOKENS_AT_A_TIME // (num_read * phase.sequence_length)
        self.num_steps = max(1, min(MAX_STEPS_AT_A_TIME, at_a_time))
        self._rule = masking.MaskRule.from_config(config, phase, corpus.tokenizer)
        self._pool = concurrent.futures.ThreadPoolExecutor(corpus.num_loading)
        self._lock = threading.Lock()
        self._visits: dict[VisitKey, concurrent.futures.Future[Visit]] = {}
        # The visits of the calls that may be running, and those that follow them.
        self._in_use = collections.deque[set[VisitKey]](maxlen=NUM_THREADS + 1)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def parts(self, first_step: int, num_steps: int) -> list[Part]:
        """Returns the parts of visits that contain the rows of some steps, in order.

        They include rows of other hosts in the streams of this one.
        """
        rows = [
            ((i, epoch, index), first, stop)
            for step in range(first_step, first_step + num_steps)
            for i, stream in enumerate(self._streams)
            for epoch, index, first, stop in stream.parts(
                step * self._per_stream, self._per_stream
            )
        ]
        last_row = (first_step + num_steps) * self._per_stream - 1
        following = [
            (i, *stream.following_visit(last_row))
            for i, stream in enumerate(self._streams)
        ]
        with self._lock:
            needed = dict.fromkeys([*(key for key, _, _ in rows), *following])
            for key in needed:
                if key not in self._visits:
                    self._visits[key] = self._pool.submit(self._draw, *key)
            parts = [Part(self._visits[key], *bounds) for key, *bounds in rows]
            self._in_use.append({*needed})
            for key in self._visits.keys() - set().union(*self._in_use):
                del self._visits[key]
        return parts

    def _draw(self, stream_index: int, epoch: int, index: int) -> Visit:
        stream = self._streams[stream_index]
        number, shard = stream.shards[index]
        key = (*stream.key, epoch, number)
        num_rows = stream.rows[index]
        return visits.draw(
            self._corpus, self._config, self.phase, shard, num_rows, key, epoch
        )

    def make(self, first_step: int) -> Batch:
        """Returns this host's rows of `num_steps` steps, see `pipeline.dataset`."""
        own = slice(self._first, self._first + self.size)

        def cut(x: np.ndarray) -> np.ndarray:
            by_step = x.reshape(self.num_steps, -1, x.shape[-1])
            return by_step[:, own].reshape(-1, x.shape[-1])

        made = self._rows(self.parts(first_step, self.num_steps))
        return {name: cut(x) for name, x in made.items()}

    def _rows(self, parts: list[Part]) -> Batch:
        drawn = [(visit.result(), first, stop) for visit, first, stop in parts]
        pairs_BK5 = np.concatenate([visit.pairs_RK5[i:j] for visit, i, j in drawn])
        keys_B2 = np.concatenate([visit.keys_R2[i:j] for visit, i, j in drawn])
        layout = row_layout.lay_out(pairs_BK5, self.phase.sequence_length)
        ids_BT = np.empty(layout.source_BT.shape, drawn[0][0].tokens.dtype)
        row = 0
        for visit, i, j in drawn:
            rows = slice(row, row := row + j - i)
            # All indices are in range; mode="clip" writes to `out` without a copy.
            np.take(visit.tokens, layout.source_BT[rows], out=ids_BT[rows], mode="clip")
        continues_BT = None
        if self._corpus.word_segmented:
            ids_BT, continues_BT = shard_file.split_marks(ids_BT)
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
