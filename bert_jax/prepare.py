"""Raw text -> tokenizer + token corpus.

    python -m bert_jax.prepare --config=configs/X.py [--config.KEY=VALUE ...]

Reads config.data.sources, trains a vocabulary (or takes config.tokenizer.vocab_file)
and writes the corpus to config.data.corpus_dir, with --workers processes. Rerun the
same command to resume after an interruption or an error: text that was tokenized is
kept, and a corrected input file is the only one that is tokenized again. A finished
corpus is left alone.

The vocabulary is trained again when input files changed, unless that was at most 5% of
over 16 MB of text; text that was tokenized is kept when the vocabulary is the same.
"""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator
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
    input_groups,
    lines,
    merging,
    processes,
    shard_plan,
    sorted_runs,
    source_files,
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
# Of the text: a vocabulary fits after so much of its input files has changed.
MAX_CHANGED_SHARE = 0.05

Sources = tuple[source_files.Source, ...]


def prepare(
    config: ExperimentConfig,
    num_workers: int | None = None,
    scratch_dir: str | None = None,
) -> corpus.Corpus:
    """Prepares the config's corpus, unless it exists already, and opens it.

    The files are the same for any number of workers, and any order of the documents
    under a given vocabulary.

    Args:
      config: of the corpus.
      num_workers: number of processes; None for one per core.
      scratch_dir: directory for temporary files, see `work_directory`.

    Raises:
      ConfigError: when a source, the vocabulary or the directory does not allow it.
    """
    directory = config.data.corpus_dir
    if corpus.exists(directory):
        existing = corpus.read(config)
        work_directory.remove(directory)
        print(f"corpus: {directory} is prepared already", flush=True)
        return existing
    found = source_files.find(config.data.sources)
    return _prepare(config, found, num_workers, scratch_dir)


def _prepare(
    config: ExperimentConfig,
    found: Sources,
    num_workers: int | None = None,
    scratch_dir: str | None = None,
) -> corpus.Corpus:
    directory = config.data.corpus_dir
    if config.init_from and not config.tokenizer.vocab_file:
        raise ConfigError(
            "config.tokenizer.vocab_file='', so the corpus would get a vocabulary of"
            f" its own; give that of config.init_from={config.init_from!r}"
        )
    start = time.time()
    num_workers = num_workers or len(os.sched_getaffinity(0))
    with work_directory.opened(directory, scratch_dir) as work, _kept(work):
        groups = input_groups.plan(found, config.data, work, BATCH_BYTES)
        reader = input_groups.Reader(groups, config.data)
        tokenizer, trained_on = _tokenizer(config, found, work, reader)
        runs = _write_runs(config, found, tokenizer, reader, work, num_workers)
        plan = _plan_shards(config, groups, tokenizer, runs, num_workers)
        if is_small(found):
            num_workers = 1  # done before worker processes could import TensorFlow
        written = _write_shards(config, tokenizer, plan, work, num_workers)
        corpus_writer.finish(config, tokenizer, trained_on, plan.counts, written)
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
    shares = unknown_tokens.shares(plan.counts, len(config.data.sources))
    for line in unknown_tokens.report(config, shares):
        print(line, flush=True)
    return made


@contextlib.contextmanager
def _kept(work: str) -> Iterator[None]:
    """Adds to an error that finished work is kept, if there is any."""
    try:
        yield
    except ConfigError as error:
        if not work_directory.has_work(work):
            raise
        raise type(error)(
            f"{error} (finished work is kept in {work}: rerun the same command with"
            " this corrected to resume)"
        ) from None


def find_corpus(config: ExperimentConfig) -> corpus.Corpus:
    """Opens the corpus; prepares a small local one if it is not there yet."""
    if corpus.exists(config.data.corpus_dir):
        return corpus.read(config)
    found = source_files.find(config.data.sources)
    if not is_small(found):
        raise ConfigError(
            f"config.data.corpus_dir={config.data.corpus_dir!r} holds no corpus, and"
            " the sources are too large to prepare unasked; run:"
            f" python -m bert_jax.prepare {command_line.config_arguments()}"
        )
    return _prepare(config, found)


def is_small(found: Sources) -> bool:
    """Returns whether the sources are local and few enough to prepare unasked."""
    return _is_local(found, SMALL_BYTES)


def _is_local(found: Sources, max_bytes: int) -> bool:
    num_bytes = source_files.total_bytes(found)
    is_remote = any(source.is_remote for source in found)
    return not is_remote and num_bytes is not None and num_bytes <= max_bytes


def keeps_text(config: ExperimentConfig, found: Sources) -> bool:
    """Returns whether the text has to be read twice and fits in memory."""
    return not config.tokenizer.vocab_file and _is_local(found, KEPT_BYTES)


# Settings that neither the vocabulary nor the tokenized text depends on. Weights and
# the held-out share are in the names of `input_groups`.
_OF_SHARDS = ("data.num_shards", "data.validation_fraction")
_OF_GROUPS = ("data.sources", "data.source_weights")
_OF_VOCABULARY = ("tokenizer.vocab_size", "tokenizer.trained")


def _recipe(config: ExperimentConfig, *without: str) -> dict[str, Any]:
    """Returns versions, and the settings of the corpus but for some."""
    recipe = corpus.recipe(config)
    return {
        "format_version": corpus.FORMAT_VERSION,
        "tokenizers": tokenizers_lib.__version__,
        "recipe": {key: recipe[key] for key in recipe.keys() - set(without)},
    }


def _tokenizer(
    config: ExperimentConfig, found: Sources, work: str, reader: input_groups.Reader
) -> tuple[tokenizers.Tokenizer, dict[str, Any] | None]:
    """Loads the tokenizer, or trains one unless an interrupted call has done that."""
    if config.tokenizer.vocab_file:
        return tokenizers.load(config.tokenizer), None
    inputs = {"inputs": [dataclasses.asdict(source) for source in found]}
    made_for = _recipe(config, *_OF_SHARDS) | inputs
    is_kept = keeps_text(config, found)

    def fits(before: dict[str, Any]) -> bool:
        # Training again would change a few pieces, and with them all tokenized text.
        changed = source_files.changed_share(before.pop("inputs"), found)
        same_recipe = before == {key: made_for[key] for key in before}
        return same_recipe and not is_kept and changed <= MAX_CHANGED_SHARE

    directory = work_directory.stage(work, "tokenizer", made_for, fits=fits)
    documents = reader.keep() if is_kept else None
    return tokenizer_training.make(config, found, documents, directory)


def _write_runs(
    config: ExperimentConfig,
    found: Sources,
    tokenizer: tokenizers.Tokenizer,
    reader: input_groups.Reader,
    work: str,
    num_workers: int,
) -> str:
    """Encodes all documents that are not encoded yet.

    Returns:
      The directory of the runs.

    Raises:
      ConfigError: when something cannot be read; names all of it.
    """
    id_dtype = encoding.id_dtype(tokenizer, config.data)
    directory = _runs_directory(config, tokenizer, work)
    runs = merging.Finished(directory, id_dtype)
    runs.remove_all_but({group.name for group in reader.groups})
    num_bytes = source_files.total_bytes(found)
    total = num_bytes / 2**20 if num_bytes else None
    all_counts: list[lines.ReadCounts] = []

    def missing() -> Iterator[sorted_runs.Batch]:
        for group in reader.groups:
            if runs.has_group(group.name):
                progress.add(group.text_bytes / 2**20, found_done=True)
                continue
            documents, counts = reader.read(group)
            all_counts.append(counts)
            for batch in sorted_runs.batches(
                group.name, group.source, documents, counts, BATCH_BYTES
            ):
                if counts.num_bad:
                    continue
                if batch.name in runs.batches:
                    progress.add(batch.num_bytes / 2**20, found_done=True)
                else:
                    yield batch

    with Progress("tokenizing", total, "MB") as progress:
        for done in processes.run(
            sorted_runs.write,
            missing(),
            num_workers,
            sorted_runs.start,
            (directory, config.data, tokenizer),
        ):
            progress.add(done / 2**20)
    input_groups.raise_bad(all_counts)
    return directory


def _runs_directory(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer, work: str
) -> str:
    key = "data.invalid_utf8"
    without = (*_OF_SHARDS, *_OF_GROUPS, *_OF_VOCABULARY, key)
    made_for = _recipe(config, *without) | {
        "vocabulary": tokenizer.digest,
        "batch_bytes": BATCH_BYTES,
    }

    def fits(before: dict[str, Any]) -> bool:
        # Under "error" a group with other text than UTF-8 has no complete run.
        setting = before.pop(key)
        return before == made_for and setting == "error"

    setting = {key: config.data.invalid_utf8}
    return work_directory.stage(work, "runs", made_for | setting, fits=fits)


def _plan_shards(
    config: ExperimentConfig,
    groups: list[input_groups.Group],
    tokenizer: tokenizers.Tokenizer,
    runs: str,
    num_workers: int,
) -> shard_plan.ShardPlan:
    """Decides which documents each shard gets.

    Raises:
      ConfigError: when there are too few documents, or too many for a shard.
    """
    id_dtype = encoding.id_dtype(tokenizer, config.data)
    num_shards = config.data.num_shards
    paths = merging.reduce(runs, num_shards, id_dtype, num_workers)
    plan = shard_plan.make(paths, config.data, id_dtype)
    with_text: dict[str, int] = {}
    for batch, count in plan.batches.items():
        group = sorted_runs.group_of(batch)
        with_text[group] = with_text.get(group, 0) + count
    input_groups.check_text(groups, with_text)
    totals = dict(zip(plan.files, plan.totals().tolist(), strict=True))
    sizes = {
        file: corpus_writer.ShardSize(num_documents, num_copies)
        for file, (num_documents, _, _, num_copies) in totals.items()
    }
    corpus_writer.check_enough(config, plan.counts, sizes)
    largest = max(totals, key=lambda file: totals[file][2])
    num_bytes = totals[largest][2] * id_dtype.itemsize
    path = os.path.join(config.data.corpus_dir, largest)
    corpus_writer.check_size(path, num_bytes)
    return plan


def _write_shards(
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer,
    plan: shard_plan.ShardPlan,
    work: str,
    num_workers: int,
) -> dict[str, corpus_writer.WrittenShard]:
    """Writes the shards that are not finished, and returns all by file name."""
    corpus_dir = config.data.corpus_dir
    made_for = {
        "files": [len(plan.files), plan.files[0]],
        "validation_fraction": config.data.validation_fraction,
        "vocabulary": tokenizer.digest,
        "documents": plan.digest(),
    }
    clear = functools.partial(work_directory.remove_shards, corpus_dir)
    directory = work_directory.stage(work, "shards", made_for, clear=clear)
    results = {file: os.path.join(directory, file + ".json") for file in plan.files}
    existing = set(corpus.shard_files(corpus_dir))

    def is_finished(file: str, result: str) -> bool:
        if not os.path.exists(result):
            return False
        return file in existing or corpus_writer.read_written(result).shard is None

    def missing() -> Iterator[corpus_writer.ShardTask]:
        for number, (file, result) in enumerate(results.items()):
            if is_finished(file, result):
                progress.add(1, found_done=True)
            else:
                path = os.path.join(corpus_dir, file)
                yield corpus_writer.ShardTask(path, plan.pieces(number), result)

    with Progress("writing", len(results), "shards") as progress:
        for _ in processes.run(
            corpus_writer.write,
            missing(),
            num_workers,
            corpus_writer.start,
            (plan.runs, encoding.id_dtype(tokenizer, config.data)),
        ):
            progress.add(1)
    return {
        file: corpus_writer.read_written(result) for file, result in results.items()
    }


def main() -> None:
    config = command_line.load_config(_CONFIG)
    try:
        prepare(config, _WORKERS.value, _SCRATCH_DIR.value)
    except BrokenProcessPool:
        raise ConfigError(
            "a process was killed, most likely because memory ran out; finished work is"
            " kept: rerun prepare with fewer --workers"
        ) from None


if __name__ == "__main__":
    _CONFIG = command_line.define_config()
    _WORKERS = flags.DEFINE_integer(
        "workers",
        None,
        "processes that tokenize and write; one per core if not given",
        lower_bound=1,
    )
    _SCRATCH_DIR = flags.DEFINE_string(
        "scratch_dir",
        None,
        "directory on a local disk for temporary files, about as large as the corpus"
        " and 1 GB more a worker while runs are merged;"
        " if not given, corpus_dir, or the system's temporary directory when corpus_dir"
        " is a bucket or on a network or FUSE file system",
    )
    command_line.run(main, __doc__)
