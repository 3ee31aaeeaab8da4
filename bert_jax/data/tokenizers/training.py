"""Makes the tokenizer of a corpus: loads it from a file, or trains it on sampled text.

Finished stages are stored in a work directory, so that after an interruption only the
training itself is repeated:

    tokenizer_sample.txt   one sentence per line, a blank line after each document
    tokenizer_sample.json  the size of the sample; written after the sample
    trained_on.json        the size of the training text; written after the tokenizer
"""

import collections
import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import encoding
from bert_jax.data.sources import document as document_lib
from bert_jax.data.sources import input_files
from bert_jax.data.tokenizers import source_sample, tokenizers
from bert_jax.monitoring.progress import Progress, TaskLog

# Pairs of (index of the source, document).
Documents = Iterable[tuple[int, document_lib.Document]]


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """The amount of text that a vocabulary was trained on, for the manifest.

    Attributes:
      documents: number of documents.
      bytes: size of the text in UTF-8.
      is_everything: True if the vocabulary was trained on the whole text.
      sources: the same per source, in the order of config.data.sources.
    """

    documents: int
    bytes: int
    is_everything: bool
    sources: list[source_sample.Sampled]

    @classmethod
    def total(cls, found: list[source_sample.Sampled]) -> "TrainedOn":
        """Sums the amounts of text of all sources."""
        return cls(
            sum(sampled.documents for sampled in found),
            sum(sampled.bytes for sampled in found),
            all(sampled.is_everything for sampled in found),
            found,
        )


def load_or_train(
    config: ExperimentConfig,
    found: tuple[input_files.Source, ...],
    documents: Documents | None,
    work: str,
) -> tuple[tokenizers.Tokenizer, dict[str, Any] | None]:
    """Loads config.tokenizer.vocab_file, or trains a tokenizer if it is "".

    Args:
      config: its tokenizer and data sections are used.
      found: the sources, which are sampled if `documents` is None.
      documents: all documents, if they are in memory; None to sample the sources, see
        source_sample.py.
      work: a work directory for this config and text. A tokenizer or a sample in
        it is reused; new ones are stored in it.

    Returns:
      The tokenizer, and the fields of `TrainedOn`, or None if it was not trained.

    Raises:
      ConfigError: when the vocabulary file or a source is invalid, or when
        config.tokenizer.vocab_size does not fit the text.
    """
    if config.tokenizer.vocab_file:
        return tokenizers.load_for_corpus(config.tokenizer), None
    path = os.path.join(work, "trained_on.json")
    if (trained_on := _read_json(path)) is not None:
        return tokenizers.read(work, config.tokenizer), trained_on
    if documents is not None:
        counted = [source_sample.Sampled(places=1) for _ in found]
        text = list(_cleaned(config, _counted(documents, counted)))
        trained_on = dataclasses.asdict(TrainedOn.total(counted))
        tokenizer = _train(config, text, trained_on)
    else:
        trained_on = _gather(config, found, work)
        tokenizer = _train(config, _sample_in(work), trained_on)
    tokenizer.save(work)
    storage.write(path, json.dumps(trained_on).encode())
    return tokenizer, trained_on


def _read_json(path: str) -> dict[str, Any] | None:
    return json.loads(storage.read(path)) if storage.exists(path) else None


def _train(
    config: ExperimentConfig, text: Iterable[list[str]], trained_on: dict[str, Any]
) -> tokenizers.Tokenizer:
    """Trains a tokenizer, logging progress."""
    training = TaskLog("tokenizer", "stdout")
    with training.task(
        f"training {config.tokenizer.vocab_size:,} pieces ({config.tokenizer.kind}) on"
        f" {trained_on['bytes'] / 2**20:,.1f} MB of text"
    ):
        return tokenizers.train(text, config.tokenizer)


def _counted(
    documents: Documents, found: list[source_sample.Sampled]
) -> Iterator[document_lib.Document]:
    for number, document in documents:
        found[number].documents += 1
        found[number].bytes += document.num_bytes
        yield document


def _cleaned(
    config: ExperimentConfig, documents: Iterable[document_lib.Document]
) -> Iterator[list[str]]:
    for document in documents:
        yield encoding.clean_sentences(document, config.data, collections.Counter())


def _gather(
    config: ExperimentConfig, found: tuple[input_files.Source, ...], work: str
) -> dict[str, Any]:
    """Writes the sample unless it exists; returns the fields of its `TrainedOn`."""
    path = os.path.join(work, "tokenizer_sample.json")
    if (finished := _read_json(path)) is not None:
        print("tokenizer: reusing the sampled text of an interrupted call", flush=True)
        return finished
    max_bytes = tokenizers.training_bytes(config.tokenizer)
    text_bytes = input_files.total_bytes(found)
    total = max_bytes if text_bytes is None else min(max_bytes, text_bytes)
    sampled: list[source_sample.Sampled] = []

    def fill(tmp: str) -> None:
        sampled.clear()  # a failed attempt may have filled it
        with (
            storage.open_own(tmp, "x", encoding="utf-8", newline="\n") as file,
            Progress(
                "sampling text for the tokenizer", total / 2**20, "MB"
            ) as progress,
        ):
            documents = source_sample.documents(config.data, found, max_bytes, sampled)
            for document in documents:
                for sentences in _cleaned(config, [document]):
                    file.writelines(f"{sentence}\n" for sentence in [*sentences, ""])
                progress.add(document.num_bytes / 2**20)

    storage.write_with(os.path.join(work, "tokenizer_sample.txt"), fill)
    trained_on = dataclasses.asdict(TrainedOn.total(sampled))
    storage.write(path, json.dumps(trained_on).encode())
    return trained_on


def _sample_in(work: str) -> Iterator[list[str]]:
    """Yields the sentences of each document of the sample."""
    path = os.path.join(work, "tokenizer_sample.txt")
    with (
        storage.local_copy(path) as copy,
        open(copy, encoding="utf-8", newline="\n") as file,
    ):
        sentences = (line.removesuffix("\n") for line in file)
        for has_text, document in itertools.groupby(sentences, bool):
            if has_text:
                yield list(document)
