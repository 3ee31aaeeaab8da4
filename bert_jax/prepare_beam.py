r"""Prepares a corpus on many machines, with an Apache Beam pipeline.

    python -m bert_jax.prepare_beam --config=configs/X.py [--config.KEY=VALUE ...] \
        --runner=DirectRunner [--OPTION_OF_THE_RUNNER=VALUE ...]

Writes the same corpus as bert_jax.prepare, byte for byte. The pipeline reads files,
encodes their documents in parallel and groups them by shard. Each shard is written by
one worker; this process writes the manifest last. Sources and corpus must be accessible
to all workers, for example in a bucket. Requires requirements-beam.txt.
"""

import collections
import contextlib
import functools
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bert_jax import cli, storage
from bert_jax.config import DataConfig, ExperimentConfig
from bert_jax.data.corpus import (
    build,
    corpus,
    encoding,
    input_groups,
    key_ranges,
    segments,
    work_directory,
    writer,
)
from bert_jax.data.sources import document as document_lib
from bert_jax.data.sources import input_files, lines, sources
from bert_jax.data.tokenizers import tokenizers, training, unknown_tokens
from bert_jax.errors import ConfigError

try:
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import (  # pyright: ignore
        PipelineOptions,
    )
except ImportError:
    if __name__ != "__main__":
        raise
    cli.fail("Apache Beam is not installed; pip install -r requirements-beam.txt")

# The workers write the metadata of their shards here, for the manifest.
METADATA_DIRECTORY = "unfinished-beam"
COUNTS = "counts.json"


def run(config: ExperimentConfig, options: list[str]) -> None:
    """Prepares the corpus of a config, unless it is complete already.

    Args:
      config: config.data names the sources and the corpus.
      options: options of Beam and its runner, as on a command line.

    Raises:
      ConfigError: when a source, the vocabulary, the directory or an option is invalid.
    """
    directory = config.data.corpus_dir
    pipeline_options = _parse(options)
    if corpus.exists(directory):
        corpus.read(config)
        print(f"corpus: {directory} is already prepared", flush=True)
        return
    found = input_files.find(config.data.sources)
    metadata = os.path.join(directory, METADATA_DIRECTORY)
    with work_directory.opened(directory) as work:
        # Runners cannot resume, so no later call can use the shards of this one.
        made_for = {"beam": uuid.uuid4().hex}
        clear = functools.partial(work_directory.remove_shards, directory)
        work_directory.stage(work, "shards", made_for, clear=clear)
        vocabulary = work_directory.stage(work, "tokenizer", made_for)
        try:
            storage.make_directory(metadata)
            groups = input_groups.plan(found, config.data, work, build.BATCH_BYTES)
            reader = input_groups.Reader(groups, config.data)
            kept = reader.keep() if build.keeps_text(config, found) else None
            tokenizer, trained_on = training.load_or_train(
                config, found, kept, vocabulary
            )
            with _raising_worker_errors(), beam.Pipeline(options=pipeline_options) as p:
                _build(p, config.data, tokenizer, groups)
            counts, written = _read_metadata(metadata)
            for number, source in enumerate(config.data.sources):
                if not counts.pop(_with_text(number), 0):
                    raise input_files.no_text(source)
            writer.finish(config, tokenizer, trained_on, counts, written, found)
        finally:
            storage.remove_directory(metadata)
    work_directory.remove(directory)
    made = corpus.read(config)
    print(
        f"corpus: {sum(s.num_tokens for s in made.shards['train']):,} tokens to train"
        f" on, {sum(s.num_tokens for s in made.shards['validation']):,} held out"
        f" -> {directory}",
        flush=True,
    )
    shares = unknown_tokens.shares(counts, len(config.data.sources))
    for line in unknown_tokens.report(config, shares):
        print(line, flush=True)


def _parse(options: list[str]) -> PipelineOptions:
    parsed = PipelineOptions(options)
    known = parsed.get_all_options()
    unknown = parsed.get_all_options(retain_unknown_options=True).keys() - known.keys()
    if unknown:
        raise ConfigError(
            f"--{min(unknown)} is neither a flag of bert_jax nor an option of Beam; see"
            " https://beam.apache.org/documentation/runners/capability-matrix"
        )
    return parsed


def _build(
    pipeline: beam.Pipeline,
    data: DataConfig,
    tokenizer: tokenizers.Tokenizer,
    groups: list[input_groups.Group],
) -> None:
    """Adds the stages that read, encode, group and write documents."""
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
    metadata = os.path.join(data.corpus_dir, METADATA_DIRECTORY)
    id_dtype = encoding.id_dtype(tokenizer, data).str
    counts = (
        (documents["counts"], encoded["counts"])
        | "merge counts" >> beam.Flatten()
        | "sum counts" >> beam.CombineGlobally(_sum)
    )
    _ = counts | "write counts" >> beam.Map(
        _write_counts, os.path.join(metadata, COUNTS)
    )
    _ = (
        encoded["entries"]
        | "assign shards"
        >> beam.Map(_with_shard, data, id_dtype, beam.pvalue.AsSingleton(counts))
        | "group by shard" >> beam.GroupByKey()
        | "write shards" >> beam.Map(_write_shard, data, id_dtype, metadata)
    )


class _Read(beam.DoFn):
    """Maps (source number, file) to (source number, document)."""

    def __init__(self, data: DataConfig):
        self._data = data

    def process(
        self, part: tuple[int, str, input_files.InputFile | None]
    ) -> Iterator[Any]:
        number, spec, file = part
        counts: collections.Counter[str] = collections.Counter()
        paths = None if file is None else [file.path]
        rows = lines.WHOLE if file is None else file.part
        for document in sources.read(spec, self._data, counts, paths, rows):
            counts[_with_text(number)] += bool(document.lines)
            yield number, document
        yield beam.pvalue.TaggedOutput("counts", dict(counts))


def _with_text(number: int) -> str:
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
    group: tuple[str, Iterable[tuple]], data: DataConfig, id_dtype: str, metadata: str
) -> None:
    file, entries = group
    piece = segments.from_entries(
        [encoding.Entry(*entry) for entry in entries], np.dtype(id_dtype)
    )
    written = writer.write_shard(os.path.join(data.corpus_dir, file), [piece])
    storage.write(os.path.join(metadata, f"{file}.json"), written.to_json().encode())


def _read_metadata(
    metadata: str,
) -> tuple[collections.Counter[str], dict[str, writer.WrittenShard]]:
    """Returns the document counts, and the metadata of shards by file name."""
    counts = collections.Counter(
        json.loads(storage.read(os.path.join(metadata, COUNTS)))
    )
    written = {
        name.removesuffix(".json"): writer.read_written(os.path.join(metadata, name))
        for name in storage.names(metadata)
        if name.endswith(".json") and name != COUNTS
    }
    return counts, written


@contextlib.contextmanager
def _raising_worker_errors() -> Iterator[None]:
    """Raises the ConfigError of a worker as a ConfigError here.

    Most runners keep only the text of an error, and append its location in brackets.
    """
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        found = re.search(r"ConfigError: (.+)", text)
        if not found:
            raise
        raise ConfigError(re.sub(r" \[while running .*", "", found.group(1))) from None


def main(options: list[str]) -> None:
    run(cli.load_config(_CONFIG), options)


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    cli.run_with_rest(main, __doc__)
