"""Selects the characters of a trained vocabulary.

Any other character becomes [UNK].
"""

import collections
import unicodedata
from collections.abc import Callable

from bert_jax.data.tokenizers.base import SPECIAL_TOKENS
from bert_jax.errors import ConfigError

# The share of the characters of the text, and of each script, that the vocabulary
# covers: SentencePiece's default character_coverage.
COVERAGE = 0.9995
# Scripts below this share of the text are not covered separately. A few names in an
# English text do not justify thousands of ideographs.
MIN_SCRIPT_SHARE = 0.001
# The most common characters are always selected, up to this number and this share of
# the vocabulary.
MAX_COMMON_CHARACTERS = 1000
COMMON_CHARACTERS_SHARE = 1 / 8
# A vocabulary without room for this many characters is an error.
MIN_CHARACTERS = 64
# The rest is left to longer pieces. With 4,000 pieces for Chinese and English, leaving
# a quarter of the vocabulary halves the number of tokens of the English text, while
# 0.6% more of the Chinese characters become [UNK].
MAX_CHARACTERS_SHARE = 3 / 4


def choose(
    counts: collections.Counter[str], vocab_size: int, num_pieces: Callable[[str], int]
) -> list[str]:
    """Selects the characters of a vocabulary from those of a text, most common first.

    They cover COVERAGE of the text and of each script in it, except for the rarest
    characters if the vocabulary has no room for them.
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
            f" special tokens and characters of the text; set it to {2 * least}, for"
            " example"
        )
    room = max(least, int(vocab_size * MAX_CHARACTERS_SHARE))
    return [c for c, end in zip(wanted, ends, strict=True) if end <= room]


def by_count(counts: collections.Counter[str]) -> list[str]:
    return sorted(counts, key=lambda c: (-counts[c], c))


def _wanted(counts: collections.Counter[str], vocab_size: int) -> list[str]:
    """Returns the characters to select if there is room, most common first."""
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
    """Returns the script of a letter ("LATIN", "CJK", "HANGUL", ...), or ""."""
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "").partition(" ")[0]
