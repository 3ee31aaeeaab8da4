r"""Prepares a corpus on many machines, with an Apache Beam pipeline.

    python -m bert_jax.prepare_beam --config=configs/X.py [--config.KEY=VALUE ...] \
        --runner=DirectRunner [--OPTION_OF_THE_RUNNER=VALUE ...]

Writes the same corpus as bert_jax.prepare, byte for byte. The pipeline reads files,
encodes their documents in parallel and groups them by shard. Each shard is written by
one worker; this process writes the manifest last. Sources and corpus must be accessible
to all workers, for example in a bucket. Requires requirements-beam.txt.
"""

import contextlib
import os
import re
import sys
import threading
import uuid
from collections.abc import Iterator

from bert_jax import cli, storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import build, corpus, input_groups, work_directory, writer
from bert_jax.data.sources import input_files
from bert_jax.data.tokenizers import training, unknown_tokens
from bert_jax.distributed.stopping import exit_now
from bert_jax.errors import EXIT_LOST, ConfigError, CorruptError, StorageError

try:
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import (  # pyright: ignore
        PipelineOptions,
    )

    from bert_jax.data.corpus import beam_pipeline
except ImportError:
    if __name__ != "__main__":
        raise
    cli.fail("Apache Beam is not installed; pip install -r requirements-beam.txt")

# Workers write the results of their shards to a directory with this prefix.
RESULTS = "unfinished-beam-"
# In apache_beam/runners/portability/fn_api_runner/worker_handlers.py.
WORKER_THREADS = ("beam_control_read", "run_worker")
# Errors of workers that are one line, by name.
_WORKER_ERRORS = {
    error.__name__: error for error in (ConfigError, CorruptError, StorageError)
}
LOST_WORKER = (
    "a worker process of Beam died, for example for lack of memory; rerun the same"
    " command, which starts from the beginning"
)


def run(config: ExperimentConfig, options: list[str]) -> None:
    """Prepares the corpus of a config, unless it is complete already.

    Args:
      config: config.data names the sources and the corpus.
      options: options of Beam and its runner, as on a command line.

    Raises:
      ConfigError: when a source, the vocabulary, the directory or an option is invalid.
      StorageError: when storage fails in this process or in a worker.
    """
    directory = config.data.corpus_dir
    pipeline = _pipeline(options)
    if config.data.stream:
        raise ConfigError(
            "config.data.stream=True needs an index, which python -m bert_jax.prepare"
            " makes; prepare_beam prepares corpora only"
        )
    if corpus.exists(directory):
        corpus.read(config)
        print(f"corpus: {directory} is already prepared", flush=True)
        return
    found = input_files.find(config.data.sources)
    # Runners cannot resume, so no later call can use the files of this one.
    call = uuid.uuid4().hex
    results = os.path.join(directory, RESULTS + call)
    with work_directory.opened(directory) as work:
        _remove_outputs(directory)
        work_directory.stage(work, "shards", {"beam": call})
        vocabulary = work_directory.stage(work, "tokenizer", {"beam": call})
        try:
            storage.make_directory(results)
            groups = input_groups.plan(found, config.data, work, build.BATCH_BYTES)
            reader = input_groups.Reader(groups, config.data)
            kept = reader.keep() if build.keeps_text(config, found) else None
            tokenizer, trained_on = training.load_or_train(
                config, found, kept, vocabulary
            )
            beam_pipeline.build(pipeline, config.data, tokenizer, groups, results)
            with _raising_worker_errors(), _exiting_without_a_worker():
                pipeline.run().wait_until_finish()
            counts, written = beam_pipeline.read_results(results)
            for number, source in enumerate(config.data.sources):
                if not counts.pop(beam_pipeline.with_text(number), 0):
                    raise input_files.no_text(source)
            writer.finish(config, tokenizer, trained_on, counts, written, found)
        finally:
            storage.remove_directory(results)
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


def _remove_outputs(directory: str) -> None:
    """Removes the shards and results of an earlier call that was killed."""
    work_directory.remove_shards(directory)
    for name in storage.names(directory):
        if name.startswith(RESULTS):
            storage.remove_directory(os.path.join(directory, name))


def _pipeline(options: list[str]) -> beam.Pipeline:
    """Returns an empty pipeline for the runner that the options name."""
    parsed = PipelineOptions(options)
    known = parsed.get_all_options()
    unknown = parsed.get_all_options(retain_unknown_options=True).keys() - known.keys()
    if unknown:
        raise ConfigError(
            f"--{min(unknown)} is neither a flag of bert_jax nor an option of Beam; see"
            " https://beam.apache.org/documentation/runners/capability-matrix"
        )
    try:
        return beam.Pipeline(options=parsed)
    except ValueError as error:  # an unknown runner, or one that needs more options
        raise ConfigError(str(error)) from None


@contextlib.contextmanager
def _raising_worker_errors() -> Iterator[None]:
    """Raises a ConfigError, CorruptError or StorageError of a worker as the same here.

    Most runners keep only the text of an error, and append its location in brackets.
    """
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        found = re.search(rf"\b({'|'.join(_WORKER_ERRORS)}): (.+)", text)
        if not found:
            raise
        message = re.sub(r" \[while running .*", "", found[2])
        raise _WORKER_ERRORS[found[1]](message) from None


@contextlib.contextmanager
def _exiting_without_a_worker() -> Iterator[None]:
    """Exits the process when a worker process dies, if the runner does not notice.

    Beam's runner for one machine, which is part of this process, reads from each worker
    in a thread. If the thread fails, the runner waits for the worker forever.
    """

    def hook(failed: threading.ExceptHookArgs) -> None:
        if failed.thread and failed.thread.name in WORKER_THREADS:
            print(f"error: {LOST_WORKER}", file=sys.stderr, flush=True)
            exit_now(EXIT_LOST)
        before(failed)

    before, threading.excepthook = threading.excepthook, hook
    try:
        yield
    finally:
        threading.excepthook = before


def main(options: list[str]) -> None:
    run(cli.load_config(_CONFIG), options)


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    cli.run_with_rest(main, __doc__)
