"""Builds a corpus: encodes documents into sorted runs and writes shards from them."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import time
import unicodedata
from collections import Counter
from typing import Any

import numpy as np
import tokenizers as tokenizers_lib

from bert_jax import cli, storage
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import (
    corpus,
    encoding,
    index,
    input_groups,
    sorted_runs,
    vocabulary,
    work_directory,
    workers,
    writer,
)
from bert_jax.data.sources import json_lines, lines, sources
from bert_jax.data.sources.kind import DatasetSource, InputFile, Source
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.monitoring.progress import Progress

# The size of local text up to which `train` prepares the corpus itself. Preparing more
# takes minutes and needs an explicit command.
SMALL_BYTES = 64 * 2**20

# The size of the text of a run, which one process encodes at a time: seconds of work.
# This process holds that of two more runs than there are processes: with 64 of them
# 0.5 GB, but 9 GB for 1 TB of text, of which a run has 128 MB.
RUN_BYTES = 8 * 2**20
# The maximum number of runs if they were full: as each group of files ends one, there
# are up to 13,000. Each shard reads a piece of each run: for 1 TB of text there are
# 4,000 shards, and the positions of all pieces take 1 to 2 GB.
MAX_RUNS = 2**13

# The commits of datasets on the Hugging Face Hub, which a resumed call reads again.
HUB_COMMITS = "hub_commits.json"

# Above this share of [UNK] among the tokens of a source, a warning is printed. The
# released vocabularies have 0.3% on Wikipedia in their languages.
WARN_SHARE = 0.01

# Settings on which neither the vocabulary nor the encoded text depends. If there are
# source weights, the validation fraction is part of the names of groups.
_SHARD_KEYS = ("data.num_shards", "data.validation_fraction")
# Settings on which runs depend only through the names of groups, see `input_groups`, or
# the digest of the vocabulary.
_DIGESTED_KEYS = (
    "data.sources",
    "data.source_weights",
    "tokenizer.vocab_size",
    "tokenizer.trained",
)


def prepare(
    config: ExperimentConfig,
    num_workers: int | None = None,
    scratch_dir: str | None = None,
    tokenizer: tokenizers.Tokenizer | None = None,
    ray_address: str | None = None,
) -> corpus.Corpus:
    """Prepares the corpus of a config, unless it exists, and opens it.

    The files do not depend on the machines and processes that write them or, for a
    given vocabulary file, on the order of the documents.

    Args:
      num_workers: number of processes; None for one per core of the machine or cluster.
      tokenizer: that of config.init_from; None to load or train the config's.
      ray_address: address of the Ray cluster that does the work; None for this machine.
    """
    directory = config.data.corpus_dir
    if corpus.exists(directory):
        existing = corpus.read(config)
        work_directory.remove(directory, scratch_dir)
        print(f"corpus: {directory} is already prepared", flush=True)
        return existing
    _check_config(config, tokenizer)
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        cores = len(os.sched_getaffinity(0))
        run = functools.partial(workers.run, num_workers=num_workers or cores)
        if ray_address:
            from bert_jax.data.corpus import ray_workers

            mark = os.path.join(work_directory.shared(directory), work_directory.MARK)
            cluster = ray_workers.connected(ray_address, num_workers, mark)
            run = stack.enter_context(cluster)
        is_shared = ray_address is not None
        work = stack.enter_context(
            work_directory.opened(directory, scratch_dir, is_shared)
        )
        counts = _write(config, tokenizer, work, run, is_shared)
    work_directory.remove(directory, scratch_dir)
    made = corpus.read(config)
    _report(config, made, counts, time.monotonic() - start)
    return made


def _write(
    config: ExperimentConfig,
    tokenizer: tokenizers.Tokenizer | None,
    work: str,
    run: workers.Executor,
    is_shared: bool,
) -> Counter[str]:
    """Writes all files of the corpus; returns the counts of its documents."""
    data = config.data
    inputs = _find_text(config, work)
    for source in inputs:  # before hours of work on the text of other sources
        if isinstance(source.kind, DatasetSource):
            source.kind.prepare()
    trained_on = None
    if tokenizer is None:
        tokenizer, trained_on = _tokenizer(config, inputs, work)
    total = sources.total_bytes(inputs)
    # It grows in powers of two, so that an added file seldom changes it. The size of a
    # dataset to download is unknown; all processes share a small one.
    full = MAX_RUNS * RUN_BYTES
    run_bytes = RUN_BYTES << (1 if total is None else (total // full).bit_length())
    settings, runs = _runs_directory(config, tokenizer, run_bytes, work)
    streamed, text_index = {}, None
    if data.stream:
        plan, streamed, text_index = index.make(inputs, data, tokenizer, runs, run)
    else:
        groups = input_groups.plan(inputs, data, run_bytes)
        input_groups.write_runs(
            groups, data, tokenizer, runs, run_bytes, total, run, is_shared
        )
        id_dtype = encoding.id_dtype(tokenizer, data)
        plan = sorted_runs.plan_shards(runs, data, id_dtype)
    if dropped := plan.counts["json_lines_too_long"]:
        print(
            f"warning: {dropped:,} lines of JSON were dropped, which are over"
            f" {json_lines.JSON_OVERHEAD} times as long as config.data"
            f".max_document_bytes={data.max_document_bytes}; raise it to keep them",
            flush=True,
        )
    for number, source in enumerate(inputs):
        if not plan.counts[f"{encoding.TOKENS}{number}"]:
            raise source.no_text()
    if not data.stream:
        _check_plan(config, plan, id_dtype)
    if is_small(inputs) and not is_shared:
        # Faster than importing TensorFlow in worker processes.
        run = functools.partial(workers.run, num_workers=1)
    written = _write_shards(config, settings, plan, run) | streamed
    writer.finish(
        config, tokenizer, trained_on, plan.counts, written, inputs, text_index
    )
    return plan.counts


def _check_config(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer | None
) -> None:
    directory = config.data.corpus_dir
    is_file = not storage.is_remote(directory) and os.path.isfile(directory)
    if is_file or not lines.is_utf8(directory):  # TensorFlow takes UTF-8 only
        problem = "is a file; give a" if is_file else "is not UTF-8; give another"
        raise ConfigError(f"config.data.corpus_dir={directory!r} {problem} directory")
    workdir_lib.check_not_other(
        directory, f"config.data.corpus_dir={directory!r}", corpus.MANIFEST
    )
    if config.data.stream:
        index.check(config.data.sources)
    if config.init_from and not (tokenizer or config.tokenizer.vocab_file):
        raise ConfigError(
            f"config.data.corpus_dir={directory!r} contains no corpus; restore the one"
            " of this run, or prepare it again with: python -m bert_jax.prepare"
            f" {cli.config_arguments()}"
        )
    if config.tokenizer.vocab_file:
        tokenizers.load_for_corpus(config.tokenizer)  # before anything is written


def _report(
    config: ExperimentConfig, made: corpus.Corpus, counts: Any, seconds: float
) -> None:
    train, validation = made.shards["train"], made.shards["validation"]
    print(
        f"{'index' if config.data.stream else 'corpus'}:"
        f" {sum(s.num_documents for s in train):,} documents,"
        f" {sum(s.num_tokens for s in train):,} tokens to train on,"
        f" {sum(s.num_tokens for s in validation):,} held out,"
        f" {seconds:.0f} s -> {config.data.corpus_dir}",
        flush=True,
    )
    shares = encoding.unknown_shares(counts, len(config.data.sources))
    by_source = list(zip(config.data.sources, shares, strict=True))
    of_all = ", ".join(f"{share:.2%} of {spec!r}" for spec, share in by_source)
    print(f"[UNK] tokens: {of_all}", flush=True)
    for spec, share in by_source:
        if share > WARN_SHARE:
            print(
                f"warning: {share:.1%} of the tokens of {spec!r} are [UNK], because the"
                " vocabulary lacks characters of its text; use a vocabulary of its"
                " language (config.tokenizer.vocab_file, or a model in"
                " config.init_from), or train one with a larger"
                " config.tokenizer.vocab_size or with"
                " config.tokenizer.kind='sentencepiece_unigram'",
                flush=True,
            )


def _find_text(config: ExperimentConfig, work: str = "") -> tuple[Source, ...]:
    """Finds the sources, without files of the corpus itself, which ** may match.

    Raises ConfigError if the corpus would become a part of its own text.
    """
    directory, found = config.data.corpus_dir, []
    root = storage.absolute(directory)
    record = os.path.join(work, HUB_COMMITS) if work else None
    # Before any work, a file in the directory is the user's, whatever its name.
    is_begun = work_directory.has_work(directory, work)

    def is_beside(file: InputFile) -> bool:
        return storage.absolute(os.path.dirname(file.path)) == root

    def is_own(file: InputFile) -> bool:
        if work and storage.absolute(file.path).startswith(os.path.join(work, "")):
            return True
        is_named = work_directory.is_written_for(file.path, directory)
        return is_named and (is_begun or not is_beside(file))

    for source in sources.find(config.data.sources, record):
        files = tuple(file for file in source.files if not is_own(file))
        if inside := [*filter(is_beside, files)] if files else source.files:
            raise ConfigError(
                f"config.data.corpus_dir={directory!r} contains {inside[0].path}, a"
                " file of config.data.sources; give another directory, for the corpus"
                " alone"
            )
        found.append(dataclasses.replace(source, files=files))
    return tuple(found)


def find_corpus(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer | None = None
) -> corpus.Corpus:
    """Opens the corpus; `prepare` makes it first if it does not exist and is small."""
    if corpus.exists(config.data.corpus_dir):
        return corpus.open_existing(config)
    if config.data.stream:
        index.check(config.data.sources)
    if not is_small(_find_text(config)):
        raise ConfigError(
            f"config.data.corpus_dir={config.data.corpus_dir!r} contains no corpus, and"
            f" the sources are too large to be"
            f" {'indexed' if config.data.stream else 'prepared'} automatically; run:"
            f" python -m bert_jax.prepare {cli.config_arguments()}"
        )
    return prepare(config, tokenizer=tokenizer)


def is_small(inputs: tuple[Source, ...]) -> bool:
    """Returns whether the sources are local and small enough to prepare in `train`."""
    num_bytes = sources.total_bytes(inputs)  # None if a dataset is downloaded
    if any(storage.is_remote(file.path) for x in inputs for file in x.files[:1]):
        return False
    return num_bytes is not None and num_bytes <= SMALL_BYTES


def _recipe(config: ExperimentConfig, *without: str) -> dict[str, Any]:
    """Returns the versions and settings that determine a corpus, without some keys."""
    recipe = corpus.recipe(config)
    return {
        "format_version": corpus.FORMAT_VERSION,
        "tokenizers": tokenizers_lib.__version__,
        "unicode": unicodedata.unidata_version,  # of this Python
        "recipe": {key: recipe[key] for key in recipe.keys() - set(without)},
    }


def _tokenizer(
    config: ExperimentConfig, inputs: tuple[Source, ...], work: str
) -> tuple[tokenizers.Tokenizer, dict[str, Any] | None]:
    """Loads the tokenizer, trains one, or reuses the one of an interrupted call."""
    if config.tokenizer.vocab_file:
        return tokenizers.load(config.tokenizer), None
    settings = _recipe(config, *_SHARD_KEYS)
    # The vocabulary of a large text is kept if files change, because a new vocabulary
    # would require encoding all text again.
    if is_small(inputs):
        settings["inputs"] = [
            {"spec": x.kind.spec}
            | {"files": x.files, "version": x.version, "commit": x.commit}
            for x in inputs
        ]
    else:
        settings["versions"] = [source.version for source in inputs]
    directory = work_directory.stage(work, "tokenizer", settings)
    return vocabulary.train(config, inputs, directory)


def _runs_directory(
    config: ExperimentConfig, tokenizer: tokenizers.Tokenizer, run_bytes: int, work: str
) -> tuple[dict[str, Any], str]:
    """Returns the settings on which runs depend, and their directory."""
    without = *_SHARD_KEYS, *_DIGESTED_KEYS, "data.invalid_utf8"
    settings = _recipe(config, *without) | {
        "vocabulary": tokenizer.digest,
        "run_bytes": run_bytes,
        "invalid_utf8": config.data.invalid_utf8,
    }

    # With "error", a group with text that is not UTF-8 has no complete run.
    compatible = settings | {"invalid_utf8": "error"}
    directory = work_directory.stage(work, "runs", settings, compatible=compatible)
    return settings, directory


def _check_plan(
    config: ExperimentConfig, plan: sorted_runs.ShardPlan, id_dtype: np.dtype
) -> None:
    """Raises ConfigError if there are too few documents, or too many for a shard."""
    of_shards = np.diff(plan.positions.sum(axis=0), axis=0).tolist()
    totals = dict(zip(plan.files, of_shards, strict=True))
    sizes = {file: (total[0], total[3]) for file, total in totals.items()}
    writer.check_enough(config, plan.counts, sizes)
    largest = max(totals, key=lambda file: totals[file][2])
    path = os.path.join(config.data.corpus_dir, largest)
    writer.check_size(path, totals[largest][2] * id_dtype.itemsize)


def _write_shards(
    config: ExperimentConfig,
    settings: dict[str, Any],
    plan: sorted_runs.ShardPlan,
    run: workers.Executor,
) -> dict[str, writer.WrittenShard]:
    """Writes the shards that are not finished; returns all shards by file name."""
    corpus_dir = config.data.corpus_dir
    batches = "\n".join(sorted(plan.batches)).encode()
    settings = settings | {
        "files": [len(plan.files), plan.files[0]],
        "validation_fraction": config.data.validation_fraction,
        "batches": hashlib.sha256(batches).hexdigest(),
    }
    # The results are beside the shards: scratch directories may have those of others.
    directory = work_directory.stage(
        work_directory.shared(corpus_dir),
        "shards",
        settings,
        on_reset=functools.partial(work_directory.remove_shards, corpus_dir),
    )
    text = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    results = {file: os.path.join(directory, file + ".json") for file in plan.files}
    names = set(storage.names(directory))
    existing = set(corpus.shard_files(corpus_dir))

    def is_finished(file: str) -> bool:
        if os.path.basename(results[file]) not in names:
            return False
        try:
            written = writer.read_written(results[file])
        except CorruptError:
            return False
        # A process that has lost its lock may have written it with other settings.
        if written.settings != digest:
            return False
        if written.shard is None:
            return True
        # After a power failure, a file may have lost bytes.
        path, size = os.path.join(corpus_dir, file), written.shard.num_bytes
        return file in existing and storage.stat(path).num_bytes == size

    are_finished = storage.in_threads(is_finished, plan.files)
    finished = set(itertools.compress(plan.files, are_finished))
    missing = [
        (os.path.join(corpus_dir, file), plan.positions[:, i : i + 2], results[file])
        for i, file in enumerate(plan.files)
        if file not in finished
    ]
    args = writer.write_planned, plan.runs, digest
    with Progress("writing", len(results), "shards") as progress:
        progress.add(len(finished), found_done=True)
        for _ in run(functools.partial, args, missing):
            progress.add(1)
    written = storage.in_threads(writer.read_written, results.values())
    return dict(zip(results, written, strict=True))
