"""Raw text -> tokenizer + token corpus.

    python -m bert_jax.prepare --config=configs/X.py [--config.KEY=VALUE ...]

Reads config.data.sources, trains a vocabulary (or takes config.tokenizer.vocab_file)
and writes the corpus to config.data.corpus_dir, with --workers processes. Killed, it
goes on where it was when it is called again. A finished corpus is left alone.
"""

import collections
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import tokenizers as tokenizers_lib
from absl import flags

from bert_jax import command_line
from bert_jax.config import ConfigError, ExperimentConfig
from bert_jax.data import (
    corpus,
    corpus_writer,
    encoding,
    processes,
    sorted_runs,
    sources,
    tokenizer_training,
    tokenizers,
    unknown_tokens,
    work_directory,
)
from bert_jax.progress import Progress

# Above this much local text `train` does not prepare by itself: minutes of work
# should be asked for.
SMALL_BYTES = 64 * 2**20
# Text up to this much is kept when it must be gone through twice; 60 MB of Wikipedia
# took 50 to 100 MB of memory, all the time.
KEPT_BYTES = 16 * 2**20
# Text that one process encodes at a time: seconds of work, and small enough that what
# waits for 64 processes is under 1 GB.
BATCH_BYTES = 8 * 2**20

Documents = Iterable[tuple[int, sources.Document]]  # with the number of their source


def prepare(config: ExperimentConfig, num_workers: int | None = None) -> corpus.Corpus:
    """Makes the config's corpus, unless it is there already, and opens it.

    The files are the same for any number of workers, and any order of the documents
    under a given vocabulary.

    Args:
      config: what to make of what, and where.
      num_workers: processes; None for one a core.

    Raises:
      ConfigError: when a source, the vocabulary or the directory does not allow it.
    """
    directory = config.data.corpus_dir
    if corpus.exists(directory):
        found = corpus.read(config)
        work_directory.remove(directory)
        print(f"corpus: {directory} is prepared already", flush=True)
        return found
    sources.check(config.data.sources)
    if config.init_from and not config.tokenizer.vocab_file:
        raise ConfigError(
            "config.tokenizer.vocab_file='', so the corpus would get a vocabulary of"
            f" its own; give that of config.init_from={config.init_from!r}"
        )
    start = time.time()
    num_workers = num_workers or len(os.sched_getaffinity(0))
    with work_directory.opened(directory, _made_for(config)) as work:
        reading: collections.Counter[str] = collections.Counter()
        kept = small_text(config, reading)
        tokenizer, trained_on = tokenizer_training.make(config, kept, work)
        documents = documents_of(config, reading) if kept is None else kept
        runs = _write_runs(config, tokenizer, documents, work, num_workers)
        if is_small(config):
            num_workers = 1  # is done before processes have imported TensorFlow
        written = _write_shards(config, tokenizer, list(runs), work, num_workers)
        counts = sum(map(collections.Counter, runs.values()), reading)
        corpus_writer.finish(config, tokenizer, trained_on, counts, written)
    work_directory.remove(directory)
    made = corpus.read(config)
    train, validation = made.shards["train"], made.shards["validation"]
    print(
        f"corpus: {sum(s.num_documents for s in train):,} documents,"
        f" {sum(s.num_tokens for s in train):,} tokens to train on,"
        f" {sum(s.num_tokens for s in validation):,} held out,"
        f" {time.time() - start:.0f} s -> {directory}",
        flush=True,
    )
    shares = unknown_tokens.shares(counts, len(config.data.sources))
    for line in unknown_tokens.report(config, shares):
        print(line, flush=True)
    return made


def find_corpus(config: ExperimentConfig) -> corpus.Corpus:
    """Opens the corpus; prepares a small local one if it is not there yet."""
    if corpus.exists(config.data.corpus_dir):
        return corpus.read(config)
    if not is_small(config):
        raise ConfigError(
            f"config.data.corpus_dir={config.data.corpus_dir!r} holds no corpus, and"
            " the sources are too large to prepare unasked; run:"
            f" python -m bert_jax.prepare {command_line.config_arguments()}"
        )
    return prepare(config)


def is_small(config: ExperimentConfig) -> bool:
    """Returns whether the sources are local and few enough to prepare unasked."""
    return _is_local(config, SMALL_BYTES)


def _is_local(config: ExperimentConfig, max_bytes: int) -> bool:
    num_bytes = sources.size_bytes(config.data.sources)
    return num_bytes is not None and num_bytes <= max_bytes


def documents_of(
    config: ExperimentConfig, counts: collections.Counter[str]
) -> Iterator[tuple[int, sources.Document]]:
    """Yields all documents with the number of their source; see `sources.documents`."""
    for number, spec in enumerate(config.data.sources):
        for document in sources.documents(spec, config.data, counts):
            yield number, document


def small_text(
    config: ExperimentConfig, counts: collections.Counter[str]
) -> list[tuple[int, sources.Document]] | None:
    """Returns all documents if they must be gone through twice and can be kept."""
    if config.tokenizer.vocab_file or not _is_local(config, KEPT_BYTES):
        return None
    return list(documents_of(config, counts))


def _made_for(config: ExperimentConfig) -> dict[str, Any]:
    """Returns what everything in a work directory depends on."""
    given = config.tokenizer.vocab_file and tokenizers.load(config.tokenizer).digest
    return {
        "format_version": corpus.FORMAT_VERSION,
        "recipe": corpus.recipe(config),
        "vocabulary": given,
        "tokenizers": tokenizers_lib.__version__,
        "inputs": sources.fingerprint(config.data.sources),
        "batch_bytes": BATCH_BYTES,
    }


def _write_runs(
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    documents: Documents,
    work: str,
    num_workers: int,
) -> dict[str, dict[str, int]]:
    """Encodes all documents and returns the runs' paths, each with its counts."""
    finished = sorted_runs.finished(work)
    paths = []
    num_bytes = sources.size_bytes(config.data.sources)
    total = num_bytes / 2**20 if num_bytes else None

    def missing() -> Iterator[sorted_runs.Batch]:
        for batch in sorted_runs.batches(documents, BATCH_BYTES):
            paths.append(sorted_runs.run_path(work, batch.number))
            if paths[-1] in finished:
                progress.add(batch.num_bytes / 2**20, found_done=True)
            else:
                yield batch

    with Progress("tokenizing", total, "MB") as progress:
        for done in processes.run(
            sorted_runs.write,
            missing(),
            num_workers,
            sorted_runs.start,
            (work, config.data, tokenizer),
        ):
            progress.add(done / 2**20)
    finished = sorted_runs.finished(work)
    return {path: finished[path] for path in paths}


def _write_shards(
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    runs: list[str],
    work: str,
    num_workers: int,
) -> dict[int, corpus_writer.WrittenShard]:
    """Makes the shards of the runs, those that are not finished, and returns all."""
    numbers = range(encoding.validation_shard(config.data) + 1)
    files = [corpus_writer.file_name(config.data, number) for number in numbers]
    results = [os.path.join(work, file + ".json") for file in files]
    id_dtype = encoding.id_dtype(tokenizer, config.data)

    def missing() -> Iterator[corpus_writer.Merge]:
        for number, file, result in zip(numbers, files, results, strict=True):
            if os.path.exists(result):
                progress.add(1, found_done=True)
            else:
                path = os.path.join(config.data.corpus_dir, file)
                yield corpus_writer.Merge(path, number, tuple(runs), id_dtype, result)

    with Progress("writing", len(files), "shards") as progress:
        for _ in processes.run(corpus_writer.merge, missing(), num_workers):
            progress.add(1)
    return dict(enumerate(map(corpus_writer.read_written, results)))


def main() -> None:
    config = command_line.load_config(_CONFIG)
    try:
        prepare(config, _WORKERS.value)
    except BrokenProcessPool:
        raise ConfigError(
            "a process was killed, most likely for want of memory; what is finished is"
            " kept: call prepare again with fewer --workers"
        ) from None


if __name__ == "__main__":
    _CONFIG = command_line.define_config()
    _WORKERS = flags.DEFINE_integer(
        "workers",
        None,
        "processes that tokenise and write; one a core if not given",
        lower_bound=1,
    )
    command_line.run(main, __doc__)
