"""Raw text -> tokenizer + token corpus.

    python -m bert_jax.prepare --config=configs/X.py [--config.KEY=VALUE ...]

Reads config.data.sources, trains a tokenizer (or takes config.tokenizer.vocab_file)
and writes the corpus to config.data.corpus_dir. A finished corpus is left alone.
"""

import collections
import sys
import time
from collections.abc import Iterator

from bert_jax import command_line
from bert_jax.config import ExperimentConfig
from bert_jax.data import cleaning, corpus, corpus_writer, sources, tokenizers

# Above this much local text `train` does not prepare by itself: minutes of work
# should be asked for.
SMALL_BYTES = 64 * 2**20
REPORT_SECS = 2.0


def prepare(config: ExperimentConfig) -> corpus.Corpus:
    """Makes the config's corpus, unless it is there already, and opens it.

    Raises:
      ConfigError: when a source, the vocabulary or the directory does not allow it.
    """
    if corpus.exists(config.data.corpus_dir):
        found = corpus.read(config)
        print(f"corpus: {config.data.corpus_dir} is prepared already", flush=True)
        return found
    sources.check(config.data.sources)
    start = time.time()
    counts: collections.Counter[str] = collections.Counter()
    if config.tokenizer.vocab_file:
        tokenizer = tokenizers.load(config.tokenizer)
        documents = _documents(config, counts)
    else:
        print(
            f"tokenizer: training {config.tokenizer.vocab_size:,} pieces on"
            f" {', '.join(config.data.sources)}",
            flush=True,
        )
        # A small corpus is read once; a large one twice, within bounded memory.
        sample = _Remembered(_documents(config, counts), SMALL_BYTES)
        tokenizer = tokenizers.train(sample, config.tokenizer)
        documents = sample.again() or _documents(config, counts)
    progress = _Progress(start)
    corpus_writer.write(config, tokenizer, documents, counts, progress)
    made = corpus.read(config)
    train, validation = made.shards["train"], made.shards["validation"]
    print(
        f"corpus: {sum(s.num_documents for s in train):,} documents,"
        f" {sum(s.num_tokens for s in train):,} tokens to train on,"
        f" {sum(s.num_tokens for s in validation):,} held out,"
        f" {time.time() - start:.0f} s -> {config.data.corpus_dir}",
        flush=True,
    )
    return made


def is_small(config: ExperimentConfig) -> bool:
    """Returns whether the sources are local and few enough to prepare unasked."""
    num_bytes = sources.size_bytes(config.data.sources)
    return num_bytes is not None and num_bytes <= SMALL_BYTES


def _documents(
    config: ExperimentConfig, counts: collections.Counter[str]
) -> Iterator[list[str]]:
    """Yields the sentences of every document; counts what cleaning does, from 0."""
    counts.clear()
    for source in config.data.sources:
        for document in sources.documents(source, config.data, counts):
            yield cleaning.sentences(document, config.data, counts)


class _Remembered:
    """An iterator that keeps what it gave, as long as that is small."""

    def __init__(self, documents: Iterator[list[str]], max_bytes: int):
        self._documents = documents
        self._kept: list[list[str]] | None = []
        self._left = max_bytes

    def __iter__(self) -> Iterator[list[str]]:
        for document in self._documents:
            self._left -= sum(len(sentence.encode()) for sentence in document)
            if self._left < 0:
                self._kept = None
            if self._kept is not None:
                self._kept.append(document)
            yield document

    def again(self) -> list[list[str]] | None:
        """Returns all documents if they were all given and kept, else None."""
        if self._kept is not None and next(self._documents, None) is None:
            return self._kept
        return None


class _Progress:
    """Prints a line now and then: a status line on a terminal, else plain lines."""

    def __init__(self, start: float):
        self._start = start
        self._last = start

    def __call__(self, num_documents: int, num_bytes: int) -> None:
        now = time.time()
        if now - self._last < REPORT_SECS:
            return
        self._last = now
        rate = num_bytes / 2**20 / (now - self._start)
        print(
            f"tokenizing: {num_documents:,} documents, {num_bytes / 2**20:,.0f} MB,"
            f" {rate:.1f} MB/s",
            end="\r" if sys.stdout.isatty() else "\n",
            flush=True,
        )


def main() -> None:
    config = command_line.load_config(_CONFIG)
    prepare(config)


if __name__ == "__main__":
    _CONFIG = command_line.define_config()
    command_line.run(main, __doc__)
