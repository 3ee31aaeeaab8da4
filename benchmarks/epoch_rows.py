"""Repeated pairs of a visit to a shard, and how evenly its rows weigh the documents.

    python -m benchmarks.epoch_rows [--shards=4] [--epochs=20] [--cases=base 128,...]

Shards are made of random documents: "base" has 14 books of some 90,000 tokens and 3,200
articles of some 400, "books" has 3 books, "mixed" has 3 books and 100 articles. Each
shard is a corpus of its own and each step takes one visit to it.

The value of a row is the share of a visit's pairs that are not an earlier pair of the
same visit (A and B at the same tokens). The weight of some documents is the number of
their pairs in all visits over the expected number, divided by the same ratio of all
documents. The expected number follows from the released procedure, which draws a target
length for each document and pass: a walk for every target length that may be drawn,
weighted with its probability. `shard_weights` is the same for whole shards: their least
and greatest. `noise` is the standard error of the books' weight.
"""

import argparse
import dataclasses
import os
import tempfile

import numpy as np

from benchmarks import rows
from bert_jax import config as config_lib
from bert_jax.data import corpus as corpus_lib
from bert_jax.data import (
    corpus_writer,
    pairs,
    pipeline,
    row_counts,
    segments,
    tokenizers,
)
from configs import tiny

MIXES = {"base": (14, 3200), "books": (3, 0), "mixed": (3, 100)}  # books, articles
BOOK_TOKENS, ARTICLE_TOKENS = 90_000, 400
FULL_WALKS = 20  # their mean stands for nine tenths of the expected number
SHORT_WALKS = 128
# Sequence length and pairs in a row.
ROWS = {"128": (128, 1), "512": (512, 1), "2048": (2048, 1)}
ROWS |= {"128 packed": (128, 4), "512 packed": (512, 8)}


@dataclasses.dataclass(frozen=True)
class Counts:
    """Pairs of the documents of one shard.

    Attributes:
      distinct: float[num_epochs], share of a visit's pairs.
      taken: int64[num_epochs, num_documents], pairs that begin in each document.
      expected: float[num_documents], pairs of a pass.
      is_book: bool[num_documents].
    """

    distinct: np.ndarray
    taken: np.ndarray
    expected: np.ndarray
    is_book: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20, help="visits to each shard")
    cases = [f"{mix} {shape}" for mix in MIXES for shape in ROWS]
    parser.add_argument("--cases", default=",".join(cases), help="comma-separated")
    args = parser.parse_args()
    for case in args.cases.split(","):
        mix, _, shape = case.partition(" ")
        measure(case, MIXES[mix], *ROWS[shape], args.shards, args.epochs)


def measure(
    case: str,
    mix: tuple[int, int],
    sequence_length: int,
    max_sequences_per_row: int,
    num_shards: int,
    num_epochs: int,
) -> None:
    """Prints the row of a case."""
    with tempfile.TemporaryDirectory() as directory:
        config = make_config(directory, sequence_length, max_sequences_per_row)
        found = [
            count(config, make_corpus(directory, mix, seed), num_epochs)
            for seed in range(num_shards)
        ]
    shards = np.array([shard.taken.sum() / shard.expected.sum() for shard in found])
    shards /= num_epochs
    books, noise = class_weight(found, books=True)
    articles, _ = class_weight(found, books=False)
    rows.print_row(
        "epoch_rows",
        case,
        "distinct share of a visit's pairs",
        [float(shard.distinct.mean()) for shard in found],
        worst_visit=round(min(float(s.distinct.min()) for s in found), 4),
        books_weight=books,
        articles_weight=articles,
        noise=noise,
        shard_weights=[
            round(float(end / shards.mean()), 4) for end in (shards.min(), shards.max())
        ],
        pairs_over_expected=round(float(shards.mean()), 4),
        shards=num_shards,
        epochs=num_epochs,
    )


def class_weight(
    shards: list[Counts], *, books: bool
) -> tuple[float | None, float | None]:
    """Returns the weight of books or articles, and its standard error."""
    weights = []
    for shard in shards:
        chosen = shard.is_book if books else ~shard.is_book
        if not chosen.any():
            return None, None
        share = shard.taken[:, chosen].sum(axis=1) / shard.taken.sum(axis=1)
        weights.append(share * shard.expected.sum() / shard.expected[chosen].sum())
    every = np.concatenate(weights)
    error = every.std() / np.sqrt(len(every))
    return round(float(every.mean()), 4), round(float(error), 4)


def count(
    config: config_lib.ExperimentConfig, corpus: corpus_lib.Corpus, num_epochs: int
) -> Counts:
    """Counts the pairs of some visits to the corpus's only shard."""
    (shard,) = corpus.shards["train"]
    _, documents = corpus.load(shard)
    (stream,) = pipeline.make_streams(corpus, config, "train", 0, 0)
    # Steps of a visit each.
    phase = dataclasses.replace(config.phases[0], global_batch_size=stream.rows[0])
    config = dataclasses.replace(config, phases=(phase,))
    distinct, taken = [], []
    for epoch in range(num_epochs):
        origins = pipeline.origins(
            corpus, config, split="train", seed=0, phase_index=0, step=epoch
        )
        found = [segments for origin in origins for segments in origin.segments]
        keys = {
            (a.document, a.first, a.length, b and (b.document, b.first, b.length))
            for a, b in found
        }
        distinct.append(len(keys) / len(found))
        own = np.array([a.document for a, _ in found])
        taken.append(np.bincount(own, minlength=shard.num_documents))
    expected = expected_pairs(
        documents, phase.sequence_length, config.data.short_seq_prob
    )
    sizes = np.diff(documents.token_offsets[documents.sentence_offsets])
    return Counts(np.array(distinct), np.stack(taken), expected, sizes > 10_000)


def expected_pairs(
    documents: pairs.Documents, sequence_length: int, short_seq_prob: float
) -> np.ndarray:
    """Returns float[num_documents], pairs of a pass with a target for each document."""
    first_tokens = documents.token_offsets[documents.sentence_offsets]
    max_num_tokens = sequence_length - 3

    def walk(target: int, number: int) -> np.ndarray:
        # A row of target + 3 tokens has the same walk and truncates more.
        random = pairs.CounterRandom(target, number)
        drawn = pairs.draw_pairs(documents, target + 3, 0.0, random)
        own = np.searchsorted(first_tokens, drawn.a_start, side="right") - 1
        return np.bincount(own, minlength=len(first_tokens) - 1)

    full = np.mean([walk(max_num_tokens, i) for i in range(FULL_WALKS)], axis=0)
    # Evenly spread over the targets: the number of pairs changes smoothly with them.
    number = min(SHORT_WALKS, max_num_tokens - 1)
    targets = 2 + ((np.arange(number) + 0.5) / number * (max_num_tokens - 1)).astype(
        int
    )
    short = sum(walk(int(target), FULL_WALKS) for target in targets) / number
    return (1 - short_seq_prob) * full + short_seq_prob * short


def make_config(
    directory: str, sequence_length: int, max_sequences_per_row: int
) -> config_lib.ExperimentConfig:
    config = tiny.get_config()
    config.data.corpus_dir = directory
    config.data.num_shards = config.data.num_streams = 1
    config.data.short_seq_prob = 0.1
    config.data.masked_lm_prob = 0.15
    config.model.max_position_embeddings = sequence_length
    config.phases[0].update(
        sequence_length=sequence_length,
        max_predictions=sequence_length // 6,
        max_sequences_per_row=max_sequences_per_row,
    )
    return config_lib.from_config_dict(config)


def make_corpus(directory: str, mix: tuple[int, int], seed: int) -> corpus_lib.Corpus:
    """Writes a shard of random sentences and returns the corpus of it alone."""
    rng = np.random.default_rng(seed)
    num_books, num_articles = mix
    sizes = np.concatenate(
        [
            BOOK_TOKENS * rng.uniform(0.5, 1.5, num_books),
            20 + (ARTICLE_TOKENS - 20) * rng.exponential(1, num_articles),
        ]
    )
    documents = [_sentences(rng, size) for size in rng.permutation(sizes)]
    num_tokens = sum(int(lengths.sum()) for lengths in documents)
    records = np.zeros(len(documents), segments.RECORD)
    records["key"] = np.arange(len(documents))[:, np.newaxis]
    records["num_sentences"] = [len(lengths) for lengths in documents]
    records["num_tokens"] = [lengths.sum() for lengths in documents]
    vocab = [*tokenizers.SPECIAL_TOKENS, *(f"w{i}" for i in range(1000))]
    segment = segments.Segment(
        records,
        np.concatenate(documents).astype(np.uint32),
        rng.integers(5, len(vocab), num_tokens).astype(np.uint16),
    )
    path = os.path.join(directory, f"shard-{seed}")
    written = corpus_writer.write_shard(path, [segment])
    assert written.shard is not None
    columns = row_counts.to_columns([written.counts])
    return corpus_lib.Corpus(
        directory,
        tokenizers.WordPiece(tuple(vocab), lowercase=True),
        {"train": (written.shard,), "validation": ()},
        sha256="",
        word_segmented=False,
        rows={"train": row_counts.from_columns(columns, "next_sentence", 1)},
    )


def _sentences(rng: np.random.Generator, num_tokens: float) -> np.ndarray:
    """Returns tokens per sentence (mean 24) of a document of num_tokens or more."""
    lengths = np.maximum(1, rng.gamma(3, 8, 2 + int(num_tokens / 12))).astype(int)
    return lengths[: 1 + np.searchsorted(np.cumsum(lengths), num_tokens)]


if __name__ == "__main__":
    main()
