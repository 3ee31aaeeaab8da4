"""Chooses the characters that get pieces in a trained vocabulary.

Text with any other character has an [UNK] in its place.
"""

import collections
import unicodedata
from collections.abc import Callable

from bert_jax.data.tokenizers.base import SPECIAL_TOKENS
from bert_jax.errors import ConfigError

# The share of the characters of the text, and of each script, that become pieces:
# SentencePiece's default character_coverage.
COVERAGE = 0.9995
# A script below this share of the text is not covered by itself: thousands of
# ideographs are not worth a place for the few names in an English text.
MIN_SCRIPT_SHARE = 0.001
# Rarer characters get a place too, up to this many and this share of the vocabulary.
MAX_COMMON_CHARACTERS = 1000
COMMON_CHARACTERS_SHARE = 1 / 8
# A vocabulary with fewer characters is refused.
MIN_CHARACTERS = 64
# Longer pieces get the rest. At 4,000 pieces for Chinese and English, a quarter of the
# vocabulary halves the tokens of the English text, and 0.6% more of the Chinese
# characters are [UNK].
MAX_CHARACTERS_SHARE = 3 / 4


def choose(
    counts: collections.Counter[str], vocab_size: int, num_pieces: Callable[[str], int]
) -> list[str]:
    """Returns the characters that get pieces, commonest first.

    They cover COVERAGE of the text and of each script in it; if the vocabulary has no
    room for so many, the rarest get none.

    Args:
      counts: of the characters of the text, without white space.
      vocab_size: number of pieces, special tokens included.
      num_pieces: how many pieces a character needs.

    Raises:
      ConfigError: when there is no room even for the MIN_CHARACTERS commonest ones.
    """
    wanted = _wanted(counts, vocab_size)
    ends, needed = [], len(SPECIAL_TOKENS)
    for character in wanted:
        needed += num_pieces(character)
        ends.append(needed)
    least = ends[:MIN_CHARACTERS][-1] if ends else needed
    if vocab_size < least:
        raise ConfigError(
            f"config.tokenizer.vocab_size={vocab_size} has no room for the {least}"
            f" special tokens and characters of the text; try {2 * least}"
        )
    room = max(least, int(vocab_size * MAX_CHARACTERS_SHARE))
    return [c for c, end in zip(wanted, ends, strict=True) if end <= room]


def by_count(counts: collections.Counter[str]) -> list[str]:
    """Returns all characters, commonest first."""
    return sorted(counts, key=lambda c: (-counts[c], c))


def _wanted(counts: collections.Counter[str], vocab_size: int) -> list[str]:
    """Returns the characters that should have pieces, commonest first."""
    characters = by_count(counts)
    num_common = min(MAX_COMMON_CHARACTERS, int(vocab_size * COMMON_CHARACTERS_SHARE))
    wanted = set(characters[: max(MIN_CHARACTERS, num_common)])
    scripts = collections.defaultdict(list)
    for character in characters:
        scripts[_script(character)].append(character)
    min_count = MIN_SCRIPT_SHARE * counts.total()
    for group in (characters, *scripts.values()):
        left = COVERAGE * sum(counts[c] for c in group)
        if left < min_count:
            continue
        for character in group:
            if left <= 0:
                break
            wanted.add(character)
            left -= counts[character]
    return [character for character in characters if character in wanted]


def _script(character: str) -> str:
    """Returns "LATIN", "CJK", "HANGUL", ... of a letter, "" of anything else."""
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "").partition(" ")[0]
