"""Makes the training shards of a streamed corpus from their text when they are read.

A shard is the set of documents in its units, which can be read without the rest of the
text: some row groups of Parquet, the lines that start in a range of bytes of
uncompressed JSON Lines, or the whole of any other file. Worker processes read and
encode units; they must not import TensorFlow. The result is what `shard_file.read`
returns for a shard of the same documents in a prepared corpus.
"""

import hashlib
import math
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.corpus import encoding, keyed, workers
from bert_jax.data.corpus.work_directory import is_written_for
from bert_jax.data.sources import lines, sources
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError

# A text is encoded only once, if its token ids take no more memory than this.
KEPT_BYTES = 2**28
# There is a process for so many bytes of token ids, so that a small text, which takes
# seconds, is encoded in this process.
BYTES_PER_WORKER = 2**22
# A process encodes a million tokens per second of CPU time, and this process arranges
# 30 million (measured on 10 MB of English with WordPiece).
MAX_WORKERS = 16

# Token ids, sentence lengths and document lengths, as `shard_file.read` returns them.
Shard = tuple[np.ndarray, np.ndarray, np.ndarray]


class Unit(NamedTuple):
    """A part of a file that is read at once."""

    source: int  # index in config.data.sources
    path: str
    part: lines.Part  # row groups or bytes


class UnitEncoder:
    def __init__(self, data: DataConfig, tokenizer: tokenizers.Tokenizer):
        self._data = data
        self._encoder = encoding.DocumentEncoder(data, tokenizer)

    def __call__(self, unit: Unit) -> tuple[keyed.Documents, lines.ReadCounts]:
        """Encodes a unit, held-out and repeated documents included.

        Raises ConfigError if the unit is larger than a shard may be.
        """
        counts = lines.ReadCounts()
        spec = self._data.sources[unit.source]
        entries: list[keyed.Entry] = []
        num_bytes = 0
        for document in sources.read(spec, self._data, counts, [unit[1:]]):
            for entry in self._encoder(document, unit.source, counts):
                entries.append(entry)
                num_bytes += len(entry.token_ids)
            if num_bytes > keyed.MAX_SHARD_BYTES:
                limit = f"{keyed.MAX_SHARD_BYTES / 2**20:,.0f} MB"
                raise ConfigError(
                    f"{unit.path} has more than {limit} of token ids in a part that can"
                    " only be read as a whole, and readers keep it in memory; write it"
                    " as Parquet with smaller row groups or as uncompressed JSON Lines,"
                    " or set config.data.stream=False to prepare a corpus"
                )
        return keyed.from_entries(entries, self._encoder.dtype), counts


def arrange(
    pieces: Sequence[keyed.Documents], data: DataConfig
) -> tuple[keyed.Documents, keyed.Documents, int]:
    """Orders the documents of a shard by key, without repeats.

    Returns the documents to train on, the held-out documents, and the number of
    repeats.
    """
    everything = keyed.concatenate(list(pieces))
    order, num_repeated = keyed.distinct(everything.records)
    keys = np.ascontiguousarray(everything.records["key"][:, 0])[order]
    num_held_out = np.searchsorted(keys, np.uint64(keyed.held_out_end(data)))
    return (
        everything.select(order[num_held_out:]),
        everything.select(order[:num_held_out]),
        num_repeated,
    )


def digest(documents: keyed.Documents) -> str:
    """Returns the SHA-256 of the token ids and of all lengths."""
    sha256 = hashlib.sha256(documents.token_ids.tobytes())
    sha256.update(documents.sentence_lengths.astype("<u4").tobytes())
    sha256.update(documents.records["num_sentences"].astype("<u4").tobytes())
    return sha256.hexdigest()


class TextStream:
    """Reads the training shards of an index, which consist of `units` of `files`.

    `num_workers` is the number of processes that encode text; 1 if this process does.
    """

    def __init__(
        self,
        manifest: dict[str, Any],
        data: DataConfig,
        tokenizer: tokenizers.Tokenizer,
    ):
        """Creates a reader; its processes are started by the first call of `read`."""
        # Source, path and size of every file: a copy of the text has other modification
        # times, which earlier versions list as well.
        stream = manifest["stream"]
        self.files = [
            (source, path, size) for source, path, size, *_ in stream["files"]
        ]
        self.units = {
            shard: [
                Unit(self.files[i][0], self.files[i][1], (start, stop))
                for i, start, stop in units
            ]
            for shard, units in stream["units"].items()
        }
        # The commit of each source that was indexed from the Hugging Face Hub.
        self._commits: dict[str, str] = manifest.get("hub_commits", {})
        self._data, self._tokenizer = data, tokenizer
        num_bytes = sum(manifest["splits"]["train"]["num_bytes"])  # of the token ids
        num_cores = len(os.sched_getaffinity(0))
        self.num_workers = min(
            num_cores, MAX_WORKERS, math.ceil(num_bytes / BYTES_PER_WORKER)
        )
        self._kept: dict[str, Shard] | None = {} if num_bytes <= KEPT_BYTES else None
        self._encoder = UnitEncoder(data, tokenizer)
        self._pool: workers.Pool | None = None
        self._lock = threading.Lock()

    def check_files(self) -> None:
        """Raises ConfigError if names or sizes of files differ from the index."""
        indexed, now = {}, {}
        for i, spec in enumerate(self._data.sources):
            if spec in self._commits:  # files of a commit on the Hub do not change
                continue
            indexed |= {file[:2]: file[2] for file in self.files if file[0] == i}
            for file in sources.find((spec,))[0].files:
                # ** may match the files of the index itself.
                if not is_written_for(file.path, self._data.corpus_dir):
                    now[i, file.path] = file.num_bytes
        for file in sorted(indexed | now):
            if indexed.get(file) == now.get(file):
                continue
            change = "changed" if file in now else "removed"
            change = change if file in indexed else "added"
            raise ConfigError(
                f"{file[1]} was {change} after its text was indexed in"
                f" config.data.corpus_dir={self._data.corpus_dir!r}; restore the files,"
                " or set config.data.corpus_dir to a new directory for a new index"
            )

    def read(self, shard: str, sha256: str) -> Shard:
        """Reads the documents of a shard, ordered by key and without repeats.

        The arrays must not be changed, because they may be returned again.
        """
        if self._kept is not None and shard in self._kept:
            return self._kept[shard]
        units = self.units[shard]
        pieces, all_counts = zip(*self._encode(units), strict=True)
        bad = [message for counts in all_counts for message in counts.messages]
        documents, _, _ = arrange(pieces, self._data)
        if bad or digest(documents) != sha256:
            paths = sorted({unit.path for unit in units})
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            raise CorruptError(
                f"{', '.join(paths[:3])}{more} give other token ids for {shard} than"
                f" when they were indexed in {self._data.corpus_dir}"
                f"{f' ({bad[0]})' if bad else ''}; restore the files and the versions"
                " of Python and tokenizers, or set config.data.corpus_dir to a new"
                " directory for a new index"
            )
        arrays = (
            documents.token_ids,
            documents.sentence_lengths,
            documents.records["num_sentences"],
        )
        if self._kept is not None:
            self._kept[shard] = arrays
        return arrays

    def _encode(
        self, units: list[Unit]
    ) -> list[tuple[keyed.Documents, lines.ReadCounts]]:
        """Encodes units in worker processes; starts new ones if one was killed."""
        if self.num_workers == 1:
            with self._lock:
                return list(map(self._encoder, units))
        for _ in range(2):
            with self._lock:
                pool = self._pool = self._pool or self._started_pool()
            try:
                return [f.result() for f in list(map(pool.run, units))]
            except BrokenProcessPool:
                with self._lock:
                    if self._pool is pool:
                        self._pool = None
        raise ConfigError(
            "a process that encodes text was killed twice, most likely because memory"
            " ran out; use shards and units of less text, or a host with more memory"
        )

    def _started_pool(self) -> workers.Pool:
        args = self._data, self._tokenizer
        pool = workers.Pool(self.num_workers, UnitEncoder, args)
        # Also at exit, where Python would drop the pool too late.
        weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
        return pool
