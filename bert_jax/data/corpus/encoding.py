"""Encodes a document: cleaning, sentence splitting, token ids and keys.

The encoding of a document does not depend on other documents, so documents can be
encoded in any order and in any process. This module runs in worker processes and must
not import TensorFlow.

Shapes: T token of a sentence.
"""

import collections
import hashlib
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.corpus import keyed, shard_file
from bert_jax.data.sources import lines
from bert_jax.data.sources import sentences as splitter
from bert_jax.data.sources.kind import Document
from bert_jax.data.tokenizers import base, tokenizers, wordpiece

# Control characters (Cc) except tab, and byte order marks, which remain where files
# were concatenated. google-research/bert tokenization.py drops them as well.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ufeff]")

# Names of document counts. "left_out" are those that a source weight below 1 drops.
COUNTS = ("read", "empty", "of_one_sentence", "left_out")
# The start of the names of token counts, which the number of a source follows.
TOKENS, UNKNOWN = "tokens of source ", "unknown tokens of source "


def id_dtype(tokenizer: tokenizers.Tokenizer, data: DataConfig) -> np.dtype:
    """Returns the narrowest dtype for the ids of a corpus, including their marks."""
    num_values = len(tokenizer.vocab) * (2 if data.word_segmented else 1)
    return np.dtype(np.uint16 if num_values <= 2**16 else np.uint32)


class DocumentEncoder:
    """Encodes one document per call, and counts documents and tokens."""

    def __init__(self, data: DataConfig, tokenizer: tokenizers.Tokenizer):
        self._data = data
        self.dtype = id_dtype(tokenizer, data)
        self._held_out_end = keyed.held_out_end(data)
        self._encode = tokenizer.encoder()
        self._unk = tokenizer.id(base.UNK)
        if data.word_segmented:
            self._is_ideograph = np.array(
                [len(p) == 1 and wordpiece.are_ideographs(p) for p in tokenizer.vocab]
            )

    def __call__(
        self, document: Document, source: int, counts: collections.Counter[str]
    ) -> Iterator[keyed.Entry]:
        """Yields the entries of a document and of its further copies.

        `source` is the index of the source in config.data.sources. Increments COUNTS,
        the counts of `clean_sentences`, and those of the tokens of the source.
        """
        counts["read"] += 1
        sentences = clean_sentences(document, self._data, counts)
        if self._data.word_segmented:
            encoded = [self._with_marks(sentence.split()) for sentence in sentences]
        else:
            encoded = self._encode(sentences)
        ids = [sentence for sentence in encoded if len(sentence)]
        if not ids:
            counts["empty"] += 1
            return
        if len(ids) == 1:
            counts["of_one_sentence"] += 1
        lengths = np.array([len(sentence) for sentence in ids], np.uint32).tobytes()
        document_ids = np.concatenate(ids).astype(self.dtype)
        pieces = document_ids
        if self._data.word_segmented:
            pieces, _ = shard_file.split_marks(document_ids)
        counts[f"{TOKENS}{source}"] += len(document_ids)
        counts[f"{UNKNOWN}{source}"] += int(np.count_nonzero(pieces == self._unk))
        token_ids = document_ids.tobytes()
        key = _digest("\n".join(sentences).encode())
        if keyed.number(key) < self._held_out_end:
            yield keyed.Entry(key, 0, lengths, token_ids)
            return
        num_copies = self._num_copies(key, source)
        if not num_copies:
            counts["left_out"] += 1
        for copy in range(num_copies):
            copy_key = key
            if copy:
                digest = _digest(key + copy.to_bytes(4, "little"))
                copy_key = keyed.training_key(digest, self._data)
            yield keyed.Entry(copy_key, copy, lengths, token_ids)

    def _with_marks(self, words: list[str]) -> np.ndarray:
        """Encodes the words of a sentence; marks ideographs that continue a word."""
        by_word = self._encode(words)
        ids_T = np.concatenate(by_word).astype(self.dtype)
        word_T = np.repeat(np.arange(len(words)), list(map(len, by_word)))
        # In a word of ideographs only, each ideograph is one token, possibly [UNK].
        of_ideographs = np.array(list(map(wordpiece.are_ideographs, words)))
        is_ideograph_T = self._is_ideograph[ids_T] | of_ideographs[word_T]
        continues_T = np.zeros(len(ids_T), bool)
        continues_T[1:] = is_ideograph_T[1:] & is_ideograph_T[:-1]
        continues_T[1:] &= word_T[1:] == word_T[:-1]
        return ids_T | continues_T * shard_file.mark(self.dtype)

    def _num_copies(self, digest: bytes, source: int) -> int:
        """Returns the source weight, with its fraction rounded up at random."""
        weight = self._data.source_weights[source] if self._data.source_weights else 1.0
        whole = math.floor(weight)
        # The first half of the digest determines split and shard.
        return whole + (keyed.number(digest[8:]) < (weight - whole) * 2**64)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def clean_sentences(
    document: Document, data_config: DataConfig, counts: collections.Counter[str]
) -> list[str]:
    """Returns the sentences of a document, stripped and non-empty.

    Control characters are dropped, characters are composed (Unicode NFC), lines over
    max_line_bytes are split, and paragraphs are split into sentences. Increments
    "control_characters_dropped", "lines_composed", "lines_cut" and "documents_empty".
    """
    sentences: list[str] = []
    for line in document.lines:
        for part in _clean(line, data_config.max_line_bytes, counts):
            sentences += [part.strip()] if document.is_split else splitter.split(part)
    sentences = list(filter(None, sentences))
    if not sentences:
        counts["documents_empty"] += 1
    return sentences


def _clean(line: str, max_bytes: int, counts: collections.Counter[str]) -> list[str]:
    # Printable text has no control character, and most lines are printable.
    if not line.isprintable() and _CONTROL.search(line):
        line = line.replace("\x1f", " ")  # the unit separator separates words
        line, num_dropped = _CONTROL.subn("", line)
        counts["control_characters_dropped"] += num_dropped
    if not line.isascii() and not unicodedata.is_normalized("NFC", line):
        line = unicodedata.normalize("NFC", line)
        counts["lines_composed"] += 1
    if len(line) * 4 <= max_bytes:  # a character has at most four bytes in UTF-8
        return [line]
    parts = lines.cut(line, max_bytes)
    if len(parts) > 1:
        counts["lines_cut"] += 1
    return parts


# ------------------------------------------------------------- counts of the tokens


def num_tokens(counts: Mapping[str, int]) -> int:
    """Returns the number of tokens of all documents, without further copies."""
    return sum(value for name, value in counts.items() if name.startswith(TOKENS))


def unknown_shares(counts: Mapping[str, int], num_sources: int) -> list[float]:
    return [
        round(counts.get(f"{UNKNOWN}{i}", 0) / max(1, counts.get(f"{TOKENS}{i}", 0)), 6)
        for i in range(num_sources)
    ]
