"""Maps each token of a text to its character offsets."""

import dataclasses
import functools

import numpy as np

from bert_jax.data.tokenizers.tokenizers import UNK, Tokenizer

# The number of strings in the LRU cache; an entry takes about 700 bytes.
MAX_CACHED = 2**16
MAX_CACHED_CHARS = 64


@dataclasses.dataclass(frozen=True)
class Located:
    """Token ids and their character offsets.

    Attributes:
      ids: int32[n].
      starts: int32[n], the offset of the first character of each token.
      ends: int32[n], the offset after the last character of each token.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class LocatingEncoder:
    """Encodes a text to the ids of `Tokenizer.encoder` and their character offsets.

    The pieces of a string without white space are adjacent, so their lengths determine
    their offsets; a single [UNK] gets the remaining length. If the lengths do not add
    up (a letter was decomposed, or several pieces are [UNK]), each piece has the
    offsets of the whole string.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._spans_of = tokenizer.string_spans
        self._encode = tokenizer.encoder()
        self._num_characters = tokenizer.num_characters
        self._unk = tokenizer.id(UNK)
        self._cached = functools.lru_cache(MAX_CACHED)(self._locate)

    def __call__(self, text: str) -> Located:
        spans = self._spans_of(text)
        strings = [self._locate_cached(text[start:end]) for start, end in spans]
        if not strings:
            nothing = np.empty(0, np.int32)
            return Located(nothing, nothing, nothing)
        sizes = [len(string.ids) for string in strings]
        first = np.repeat(np.array([start for start, _ in spans], np.int32), sizes)
        return Located(
            np.concatenate([string.ids for string in strings]),
            np.concatenate([string.starts for string in strings]) + first,
            np.concatenate([string.ends for string in strings]) + first,
        )

    def _locate_cached(self, string: str) -> Located:
        is_short = len(string) <= MAX_CACHED_CHARS
        return self._cached(string) if is_short else self._locate(string)

    def _locate(self, string: str) -> Located:
        (ids,) = self._encode([string])
        lengths = self._num_characters[ids]
        is_unknown = ids == self._unk
        if is_unknown.sum() == 1:
            lengths = np.where(is_unknown, 0, lengths)
            lengths[is_unknown] = len(string) - lengths.sum()
        if lengths.sum() == len(string) and (lengths[is_unknown] > 0).all():
            ends = np.cumsum(lengths, dtype=np.int32)
            return Located(ids, ends - lengths, ends)
        return Located(ids, np.zeros_like(ids), np.full_like(ids, len(string)))
