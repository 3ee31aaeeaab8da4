"""The tokenizer of a corpus: given, or trained on a bounded part of its text."""

import dataclasses
from collections.abc import Iterable, Iterator

from bert_jax.config import ExperimentConfig
from bert_jax.data import sorted_runs, sources, tokenizers


@dataclasses.dataclass
class TrainedOn:
    """How much text a vocabulary was trained on, for the manifest."""

    documents: int = 0
    bytes: int = 0
    is_everything: bool = True


def make(
    config: ExperimentConfig, documents: Iterable[tuple[int, sources.Document]] | None
) -> tuple[tokenizers.WordPiece, TrainedOn | None]:
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
        f" {', '.join(config.data.sources)}",
        flush=True,
    )
    trained_on = TrainedOn()
    sample = (
        _beginnings(config.data.sources, trained_on)
        if documents is None
        else _all(documents, trained_on)
    )
    lowercase = config.tokenizer.lowercase
    vocab = tokenizers.train(sample, config.tokenizer.vocab_size, lowercase)
    return tokenizers.WordPiece(vocab, lowercase), trained_on


def _all(
    documents: Iterable[tuple[int, sources.Document]], trained_on: TrainedOn
) -> Iterator[sources.Document]:
    for _, document in documents:
        trained_on.documents += 1
        trained_on.bytes += sorted_runs.num_text_bytes(document)
        yield document


def _beginnings(
    specs: tuple[str, ...], trained_on: TrainedOn
) -> Iterator[sources.Document]:
    share = tokenizers.TRAINING_BYTES // len(specs)
    for spec in specs:
        end = trained_on.bytes + share
        for document in sources.documents(spec):
            num_bytes = sorted_runs.num_text_bytes(document)
            if trained_on.bytes + num_bytes > end:
                trained_on.is_everything = False
                break
            trained_on.documents += 1
            trained_on.bytes += num_bytes
            yield document
