"""Apache Beam pipeline that reads, encodes and groups documents, and writes shards.

Workers import this module by name, so it must not be run as `__main__`, whose functions
are pickled by value. A runner may run any part again after an error, or twice at the
same time: stages depend on their inputs only, and files are replaced atomically.
"""

import collections
import functools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
import numpy as np

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.corpus import (
    encoding,
    input_groups,
    key_ranges,
    segments,
    writer,
)
from bert_jax.data.sources import document as document_lib
from bert_jax.data.sources import lines, sources
from bert_jax.data.sources.kind import InputFile
from bert_jax.data.tokenizers import tokenizers, unknown_tokens

# The file of the document counts in the directory of results.
COUNTS = "counts.json"


def build(
    pipeline: beam.Pipeline,
    data: DataConfig,
    tokenizer: tokenizers.Tokenizer,
    groups: list[input_groups.Group],
    results: str,
) -> None:
    """Adds the stages that read, encode, group and write documents.

    Args:
      pipeline: the pipeline.
      data: sources and corpus; both must be accessible to all workers.
      tokenizer: encodes the documents.
      groups: the files to read.
      results: directory for the counts and the results of shards, see `read_results`.
    """
    files = [
        (group.source, group.spec, file)
        for group in groups
        for file in group.files or (None,)
    ]
    documents = (
        pipeline
        | "files" >> beam.Create(files)
        | "distribute files" >> beam.Reshuffle()
        | "read" >> beam.ParDo(_Read(data)).with_outputs("counts", main="documents")
    )
    encoded = (
        documents["documents"]
        | "distribute documents" >> beam.Reshuffle()
        | "encode"
        >> beam.ParDo(_Encode(data, tokenizer)).with_outputs("counts", main="entries")
    )
    id_dtype = encoding.id_dtype(tokenizer, data).str
    counts = (
        (documents["counts"], encoded["counts"])
        | "merge counts" >> beam.Flatten()
        | "sum counts" >> beam.CombineGlobally(_sum)
    )
    _ = counts | "write counts" >> beam.Map(
        _write_counts, os.path.join(results, COUNTS)
    )
    _ = (
        encoded["entries"]
        | "assign shards"
        >> beam.Map(_with_shard, data, id_dtype, beam.pvalue.AsSingleton(counts))
        | "group by shard" >> beam.GroupByKey()
        | "write shards" >> beam.Map(_write_shard, data, id_dtype, results)
    )


class _Read(beam.DoFn):
    """Maps (source number, file) to (source number, document)."""

    def __init__(self, data: DataConfig):
        self._data = data

    def process(self, part: tuple[int, str, InputFile | None]) -> Iterator[Any]:
        number, spec, file = part
        counts: collections.Counter[str] = collections.Counter()
        paths = None if file is None else [file.path]
        rows = lines.WHOLE if file is None else file.part
        for document in sources.read(spec, self._data, counts, paths, rows):
            counts[with_text(number)] += bool(document.lines)
            yield number, document
        yield beam.pvalue.TaggedOutput("counts", dict(counts))


def with_text(number: int) -> str:
    """Returns the name of the count of a source's documents that have text."""
    return f"with text, of source {number}"


class _Encode(beam.DoFn):
    """Maps documents to entries, as plain tuples, which Beam can encode."""

    def __init__(self, data: DataConfig, tokenizer: tokenizers.Tokenizer):
        self._data, self._tokenizer = data, tokenizer

    def setup(self) -> None:
        self._encoder = encoding.DocumentEncoder(self._data, self._tokenizer)

    def process(self, element: tuple[int, document_lib.Document]) -> Iterator[Any]:
        source, document = element
        counts: collections.Counter[str] = collections.Counter()
        for entry in self._encoder(document, source, counts):
            yield tuple(entry)
        yield beam.pvalue.TaggedOutput("counts", dict(counts))


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for some in counts:
        total.update(some)
    return dict(total)


def _write_counts(counts: dict[str, int], path: str) -> None:
    storage.write(path, json.dumps(counts).encode())


def _with_shard(
    entry: tuple, data: DataConfig, id_dtype: str, counts: dict[str, int]
) -> tuple[str, tuple]:
    """Returns the file name of an entry's shard, and the entry."""
    ranges = _ranges(data, id_dtype, unknown_tokens.num_tokens(counts))
    return ranges.files[ranges.index(encoding.Entry(*entry).key)], entry


@functools.lru_cache(1)
def _ranges(data: DataConfig, id_dtype: str, num_tokens: int) -> key_ranges.KeyRanges:
    num_validation = key_ranges.num_validation_shards(
        data, num_tokens, np.dtype(id_dtype)
    )
    return key_ranges.KeyRanges(data, num_validation)


def _write_shard(
    group: tuple[str, Iterable[tuple]], data: DataConfig, id_dtype: str, results: str
) -> None:
    file, entries = group
    piece = segments.from_entries(
        [encoding.Entry(*entry) for entry in entries], np.dtype(id_dtype)
    )
    written = writer.write_shard(os.path.join(data.corpus_dir, file), [piece])
    storage.write(os.path.join(results, f"{file}.json"), written.to_json().encode())


def read_results(
    directory: str,
) -> tuple[collections.Counter[str], dict[str, writer.WrittenShard]]:
    """Returns the document counts, and the results of shards by file name."""
    counts = collections.Counter(
        json.loads(storage.read(os.path.join(directory, COUNTS)))
    )
    written = {
        name.removesuffix(".json"): writer.read_written(os.path.join(directory, name))
        for name in storage.names(directory)
        if name.endswith(".json") and name != COUNTS
    }
    return counts, written
