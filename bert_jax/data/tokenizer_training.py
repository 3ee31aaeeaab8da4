"""The tokenizer of a corpus: given, or trained on a bounded part of its text."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from bert_jax.config import DataConfig, ExperimentConfig
from bert_jax.data import cleaning, sources, tokenizers


@dataclasses.dataclass
class TrainedOn:
    """How much text a vocabulary was trained on, for the manifest."""

    documents: int = 0
    bytes: int = 0
    is_everything: bool = True


def make(
    config: ExperimentConfig, documents: Iterable[tuple[int, sources.Document]] | None
) -> tuple[tokenizers.Tokenizer, TrainedOn | None]:
    """Returns the vocabulary of config.tokenizer.vocab_file, or else trains one.

    Args:
      config: of tokenizer and sources.
      documents: all of them with their sources' numbers if they are at hand; otherwise
        the beginning of each source is read, each as long as the others.

    Returns:
      The tokenizer, and what it was trained on: None if it was given.
    """
    if config.tokenizer.vocab_file:
        return tokenizers.load(config.tokenizer), None
    print(
        f"tokenizer: training {config.tokenizer.vocab_size:,} pieces on"
        f" {', '.join(map(repr, config.data.sources))}",
        flush=True,
    )
    trained_on = TrainedOn()
    sample = (
        _beginnings(config, trained_on)
        if documents is None
        else _all(config.data, documents, trained_on)
    )
    return tokenizers.train(sample, config.tokenizer), trained_on


def _all(
    data: DataConfig,
    documents: Iterable[tuple[int, sources.Document]],
    trained_on: TrainedOn,
) -> Iterator[list[str]]:
    for _, document in documents:
        trained_on.documents += 1
        trained_on.bytes += document.num_bytes
        yield cleaning.sentences(document, data, collections.Counter())


def _beginnings(config: ExperimentConfig, trained_on: TrainedOn) -> Iterator[list[str]]:
    data = config.data
    share = tokenizers.training_bytes(config.tokenizer) // len(data.sources)
    for spec in data.sources:
        end = trained_on.bytes + share
        for document in sources.documents(spec, data, collections.Counter()):
            num_bytes = document.num_bytes
            if trained_on.bytes + num_bytes > end:
                trained_on.is_everything = False
                break
            trained_on.documents += 1
            trained_on.bytes += num_bytes
            yield cleaning.sentences(document, data, collections.Counter())
