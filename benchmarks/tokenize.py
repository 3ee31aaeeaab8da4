"""Measures WordPiece tokenization in MB/s on one core, compared with `tokenizers`.

    python -m benchmarks.tokenize [--megabytes=10] [--repeats=5]

Prints two rows, for English from the embedded sources and for synthetic Chinese, with a
vocabulary trained on each. Both sides encode the same sentences; that their ids are
equal is checked first. Our encoder is created anew for every call, so its cache is
empty, and a smaller text has a larger share of strings that are not in the cache. The
lower bound of the work is to read the text and write the ids once.
"""

import argparse
import collections
import dataclasses
import itertools
import os
import random
import sys
import unicodedata
from collections.abc import Iterable, Iterator

import tokenizers

from benchmarks import rows
from bert_jax import config as config_lib
from bert_jax.configs import tiny
from bert_jax.data.corpus import encoding
from bert_jax.data.sources import sources
from bert_jax.data.tokenizers import training, wordpiece

# Unicode categories that the released code keeps and the library's clean_text drops.
KEPT_BY_ONE_SIDE = ("Co", "Cn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # inherited by the timed processes
    texts = {
        "embedded English": embedded_english(),
        "made-up Chinese": made_up_chinese(),
    }
    for name, text in texts.items():
        sentences = first_sentences(text, int(args.megabytes * 1e6))
        measure(name, sentences, args.repeats)


def measure(name: str, sentences: list[str], repeats: int) -> None:
    config = config_lib.from_config_dict(tiny.get_config()).tokenizer
    # The size of the released uncased vocabulary.
    config = dataclasses.replace(config, vocab_size=30522)
    tokenizer = training.train([sentences], config)
    check_same_ids(tokenizer, sentences)
    megabytes = sum(len(sentence.encode()) for sentence in sentences) / 1e6
    sides = {"ours": our_call, "theirs": their_call}
    seconds = rows.alternate(sides, (tokenizer, sentences), repeats)
    rates = {side: [megabytes / s for s in each] for side, each in seconds.items()}
    rows.print_row(
        "tokenize",
        f"{name}, {len(tokenizer.vocab):,} pieces",
        "MB/s",
        rates["ours"],
        f"tokenizers {tokenizers.__version__} encode_batch_fast",
        rates["theirs"],
        megabytes=round(megabytes, 2),
        lowercase=tokenizer.lowercase,
    )


def our_call(tokenizer: wordpiece.WordPiece, sentences: list[str]):
    return lambda: tokenizer.encoder()(sentences)


def their_call(tokenizer: wordpiece.WordPiece, sentences: list[str]):
    pipeline = their_pipeline(tokenizer)
    return lambda: pipeline.encode_batch_fast(sentences)


def their_pipeline(tokenizer: wordpiece.WordPiece) -> tokenizers.Tokenizer:
    """Returns the library's BERT pipeline, which is faster than our exported one."""
    pipeline = tokenizer.huggingface()
    pipeline.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=tokenizer.lowercase, strip_accents=tokenizer.lowercase
    )
    return pipeline


def check_same_ids(tokenizer: wordpiece.WordPiece, sentences: list[str]) -> None:
    """Exits with an error if the two sides encode any sentence differently."""
    theirs = their_pipeline(tokenizer).encode_batch_fast(sentences)
    for text, ids, other in zip(
        sentences, tokenizer.encoder()(sentences), theirs, strict=True
    ):
        if ids.tolist() != other.ids:
            sys.exit(f"different ids of {text!r}: {ids.tolist()} and {other.ids}")


def embedded_english() -> Iterator[list[str]]:
    """Yields the sentences of each document, cleaned as `prepare` does."""
    data = config_lib.from_config_dict(tiny.get_config()).data
    counts = collections.Counter()
    for document in sources.read("embedded:", data, counts):
        yield encoding.clean_sentences(document, data, counts)


def first_sentences(text: Iterable[list[str]], num_bytes: int) -> list[str]:
    sentences = []
    for sentence in itertools.chain.from_iterable(text):
        if any(unicodedata.category(c) in KEPT_BY_ONE_SIDE for c in sentence):
            continue
        sentences.append(sentence)
        num_bytes -= len(sentence.encode())
        if num_bytes <= 0:
            break
    return sentences


def made_up_chinese() -> Iterator[list[str]]:
    """Yields random ideographs whose frequencies follow Zipf's law."""
    source = random.Random(0)
    ideographs = [chr(0x4E00 + i) for i in source.sample(range(20_000), 5000)]
    weights = [1 / n for n in range(1, 5001)]
    while True:
        clauses = [
            "".join(source.choices(ideographs, weights, k=source.randint(3, 15)))
            for _ in range(source.randint(1, 5))
        ]
        if source.random() < 0.1:
            clauses.append(f"{source.randint(1, 2100)}\u5e74BERT")
        yield ["\uff0c".join(clauses) + "\u3002"]


if __name__ == "__main__":
    main()
