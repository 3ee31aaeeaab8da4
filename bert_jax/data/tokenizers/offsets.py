"""Which characters of a text each of its tokens stands for."""

import dataclasses
import functools

import numpy as np

from bert_jax.data.tokenizers.tokenizers import UNK, Tokenizer

# Strings whose tokens are kept, the most recently used ones: some 700 bytes each.
MAX_REMEMBERED = 2**16
MAX_REMEMBERED_CHARS = 64


@dataclasses.dataclass(frozen=True)
class Located:
    """Tokens and where they stand.

    Attributes:
      ids: int32[n].
      starts, ends: int32[n], characters of the text.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


class LocatingEncoder:
    """Text -> the ids that `Tokenizer.encoder` gives it, and their places.

    Pieces follow one another in a string without white space, so their lengths tell
    where each stands, and what one unknown piece stands for is what the others leave.
    Where that does not come out even (a letter was decomposed, several pieces are not
    known) each piece stands for the whole string.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._spans_of = tokenizer.string_spans
        self._encode = tokenizer.encoder()
        self._num_characters = tokenizer.num_characters
        self._unk = tokenizer.id(UNK)
        self._remembered = functools.lru_cache(MAX_REMEMBERED)(self._locate)

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
        is_short = len(string) <= MAX_REMEMBERED_CHARS
        return self._remembered(string) if is_short else self._locate(string)

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
