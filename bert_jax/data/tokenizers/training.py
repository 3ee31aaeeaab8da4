"""The tokenizer of a corpus: read from a file, or trained on a sample of its text.

A work directory keeps what is finished, so that a killed process repeats nothing but
the training itself:

    tokenizer_sample.txt   sentences, one a line, a blank line after each document
    tokenizer_sample.json  how much text that is; written after it
    trained_on.json        the same once there is a tokenizer; written after that
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
from bert_jax.monitoring.progress import Progress, UnderWay

Documents = Iterable[
    tuple[int, document_lib.Document]
]  # with the number of their source


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """How much text a vocabulary was trained on, for the manifest."""

    documents: int
    bytes: int
    is_everything: bool
    sources: list[source_sample.Sampled]  # in the order of config.data.sources

    @classmethod
    def total(cls, found: list[source_sample.Sampled]) -> "TrainedOn":
        return cls(
            sum(sampled.documents for sampled in found),
            sum(sampled.bytes for sampled in found),
            all(sampled.is_everything for sampled in found),
            found,
        )


def make(
    config: ExperimentConfig,
    found: tuple[input_files.Source, ...],
    documents: Documents | None,
    work: str,
) -> tuple[tokenizers.Tokenizer, dict[str, Any] | None]:
    """Returns the vocabulary of config.tokenizer.vocab_file, or trains one.

    Args:
      config: its tokenizer, sources and data are used.
      found: the sources, which are sampled when there are no documents.
      documents: all documents with the numbers of their sources, if they are in
        memory; otherwise the sources are sampled, see source_sample.py.
      work: a local directory for this config and text. A tokenizer or a sample found
        there is used; what is made is kept there.

    Returns:
      The tokenizer, and the fields of `TrainedOn` or None if it was not trained.

    Raises:
      ConfigError: when the file, a source or config.tokenizer.vocab_size does not
        allow it.
    """
    path = os.path.join(work, "trained_on.json")
    if (trained_on := _read_json(path)) is not _MISSING:
        return tokenizers.read(work, config.tokenizer), trained_on
    if config.tokenizer.vocab_file:
        tokenizer, trained_on = tokenizers.load(config.tokenizer), None
    elif documents is not None:
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


_MISSING = object()


def _read_json(path: str) -> Any:
    if not os.path.exists(path):
        return _MISSING
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _train(
    config: ExperimentConfig, text: Iterable[list[str]], trained_on: dict[str, Any]
) -> tokenizers.Tokenizer:
    """Trains a tokenizer, with a line now and then."""
    training = UnderWay("tokenizer", "stdout")
    with training.doing(
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
    """Writes the sample, unless it is there, and returns how much text it is."""
    path = os.path.join(work, "tokenizer_sample.json")
    if (finished := _read_json(path)) is not _MISSING:
        print("tokenizer: text was sampled before the last interruption", flush=True)
        return finished
    max_bytes = tokenizers.training_bytes(config.tokenizer)
    text_bytes = input_files.total_bytes(found)
    total = max_bytes if text_bytes is None else min(max_bytes, text_bytes)
    sampled: list[source_sample.Sampled] = []

    def fill(tmp: str) -> None:
        sampled.clear()  # of an attempt that failed
        with (
            open(tmp, "w", encoding="utf-8", newline="\n") as file,
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
    with open(path, encoding="utf-8", newline="\n") as file:
        sentences = (line.removesuffix("\n") for line in file)
        for has_text, document in itertools.groupby(sentences, bool):
            if has_text:
                yield list(document)
