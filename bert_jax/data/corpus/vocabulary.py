"""Trains the tokenizer of a corpus on a sample of its text.

The bytes of a sample are shared equally between sources, and between the files of a
source; the share that a small source or file does not need goes to the others. A large
file of Parquet or uncompressed JSON Lines is read in parts at equal distances, any
other file or dataset from its start. The time depends on the size of the sample, not on
that of the sources.
"""

import collections
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax import storage
from bert_jax.config import DataConfig, ExperimentConfig
from bert_jax.data.corpus import encoding, input_groups
from bert_jax.data.sources import lines, sources
from bert_jax.data.sources.kind import DatasetSource, Document, InputFile, Source
from bert_jax.data.tokenizers import tokenizers, training
from bert_jax.monitoring import progress

# The size of the text from one part of a file: small enough that a small sample has
# hundreds of parts, large enough that opening files in a bucket does not dominate the
# time. A part of Parquet costs more: the footer of its file and a long read-ahead.
EXCERPT_BYTES = 2**17
PARQUET_EXCERPT_BYTES = 2**22


@dataclasses.dataclass
class Sampled:
    """The amount of text sampled from a source."""

    documents: int = 0
    bytes: int = 0  # in UTF-8
    is_everything: bool = True  # whether the whole source was taken


def train(
    config: ExperimentConfig, inputs: tuple[Source, ...], directory: str
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Trains a tokenizer and stores it in a directory, unless an earlier call has.

    Also returns the amount of text that it was trained on, for the manifest.
    """
    path = os.path.join(directory, "trained_on.json")
    if storage.exists(path):
        print(
            f"tokenizer: {directory} has the vocabulary of an interrupted call; remove"
            " it to train another one",
            flush=True,
        )
        trained_on = json.loads(storage.read(path))
        return tokenizers.read(directory, config.tokenizer), trained_on
    size, kind = config.tokenizer.vocab_size, config.tokenizer.kind
    sampled: list[Sampled] = []
    documents = sample(config.data, inputs, training.TRAINING_BYTES[kind], sampled)
    sentences = (
        encoding.clean_sentences(document, config.data, collections.Counter())
        for document in documents
    )
    with progress.task(f"tokenizer: training {size:,} pieces ({kind})"):
        tokenizer = training.train(sentences, config.tokenizer)
    trained_on = {
        "documents": sum(each.documents for each in sampled),
        "bytes": sum(each.bytes for each in sampled),
        "is_everything": all(each.is_everything for each in sampled),
        "sources": list(map(dataclasses.asdict, sampled)),
    }
    tokenizer.save(directory)
    storage.write(path, json.dumps(trained_on).encode())
    return tokenizer, trained_on


def sample(
    data: DataConfig, inputs: tuple[Source, ...], max_bytes: int, sampled: list[Sampled]
) -> Iterator[Document]:
    """Yields documents from all sources, at most max_bytes of text in total.

    Documents that do not fit are truncated. The sample is deterministic: it depends on
    the text and max_bytes only. A `Sampled` per source is appended to `sampled`.

    Raises ConfigError if a source contains no text, or for all text that cannot be
    read. Of a source that is not read completely, only the starts of files are checked.
    """
    counts = lines.ReadCounts()
    sizes = (source.text_bytes or math.inf for source in inputs)
    share = int(_equal_share(sizes, max_bytes))
    for source in inputs:
        of_source = Sampled(is_everything=(source.text_bytes or 0) <= share)
        sampled.append(of_source)
        for files, num_bytes in _parts(source, share):
            left = share - of_source.bytes
            # Inside a file lines have other numbers; preparing reports them rightly.
            is_start = not files or files[0].part[0] == 0
            errors = counts if is_start else lines.ReadCounts()
            parts = [(file.path, file.part) for file in files]
            documents = sources.read(source.kind.spec, data, errors, parts)
            yield from _truncated(documents, min(num_bytes, left), of_source)
            if num_bytes >= left and not of_source.is_everything:
                break  # the rest of the files need not be opened
        if not of_source.bytes and of_source.is_everything and not counts.num_bad:
            raise source.no_text()
    input_groups.raise_bad([counts])


def _parts(
    source: Source, max_bytes: int
) -> Iterator[tuple[tuple[InputFile, ...], int]]:
    """Yields parts of files, ordered by path, and the maximum size of their text."""
    kind = source.kind
    if isinstance(kind, DatasetSource):
        yield (), max_bytes
        return
    if (source.text_bytes or 0) <= max_bytes:
        for file in source.files:  # its size may be an estimate
            yield (file,), max_bytes
        return
    sizes = (file.text_bytes for file in source.files)
    excerpt = EXCERPT_BYTES if kind.is_line_based else PARQUET_EXCERPT_BYTES
    most = max(excerpt, int(_equal_share(sizes, max_bytes)))
    shares, left = {}, max_bytes
    golden = (math.sqrt(5) - 1) / 2
    # In an order in which every prefix of the files is evenly spaced.
    for i in sorted(range(len(source.files)), key=lambda i: i * golden % 1):
        file = source.files[i]
        shares[file] = min(file.text_bytes, most, left)
        left -= shares[file]
    for file in source.files:
        size, share = file.text_bytes, shares[file]
        if share == size:
            yield (file,), size + 1  # because a missing last line end is counted
        elif share:
            parts = input_groups.parts_of(file, kind, size * excerpt // share)
            for part in parts:
                yield (part,), share // len(parts)


def _truncated(
    documents: Iterable[Document], max_bytes: int, sampled: Sampled
) -> Iterator[Document]:
    """Yields the first documents, with the last one truncated to fit max_bytes."""
    left = max_bytes
    for document in documents:
        is_whole = document.num_bytes <= left
        if not is_whole:
            sampled.is_everything = False
            text = "\n".join(document.lines).encode(errors="replace")
            kept = text[: max(0, left - 1)].decode(errors="ignore").split("\n")
            document = dataclasses.replace(document, lines=tuple(filter(None, kept)))
        if document.lines or is_whole:
            sampled.documents += 1
            sampled.bytes += document.num_bytes
            yield document
        if not is_whole:
            return
        left -= document.num_bytes


def _equal_share(sizes: Iterable[float], total: float) -> float:
    """Returns the largest share with sum(min(size, share)) <= total, or total."""
    left, sizes = total, sorted(sizes)
    for i, size in enumerate(sizes):
        if size * (len(sizes) - i) > left:
            return left / (len(sizes) - i)
        left -= size
    return total
