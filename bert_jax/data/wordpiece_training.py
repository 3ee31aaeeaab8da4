"""Trains a WordPiece vocabulary.

The characters of the vocabulary are chosen here; the `tokenizers` library makes the
longer pieces of them.
"""

import collections
import functools
import re
import string
import tempfile
import unicodedata
from collections.abc import Iterable
from typing import TextIO

import tokenizers

from bert_jax.config import ConfigError, TokenizerConfig
from bert_jax.data import vocabulary, wordpiece
from bert_jax.data.vocabulary import SPECIAL_TOKENS, UNK

# A vocabulary of tens of thousands of pieces changes little with more text than this.
TRAINING_BYTES = 128 * 2**20
# The share of a script's characters that become pieces, as in SentencePiece's default
# character_coverage. A word with any other character is [UNK].
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


def train(
    documents: Iterable[list[str]], config: TokenizerConfig
) -> wordpiece.WordPiece:
    """Returns a vocabulary of exactly config.vocab_size tokens, special tokens first.

    A text too small for that many pieces leaves [unused0], [unused1], ... at the end,
    as the released vocabularies have them: spare rows for tokens added later.

    Args:
      documents: each a list of sentences; at most TRAINING_BYTES are read.
      config: vocab_size and lowercase.

    Raises:
      ConfigError: when vocab_size has no room for the MIN_CHARACTERS commonest
        characters.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNK))
    wordpiece.set_text_rules(tokenizer, config.lowercase)
    # The text is read twice; in memory it takes 460 MB beside TensorFlow's 690. In
    # $TMPDIR it takes up to TRAINING_BYTES.
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as text:
        for document in vocabulary.text_sample(documents, TRAINING_BYTES):
            text.writelines(_without_long(sentence) + "\n" for sentence in document)
        vocab = _pieces(tokenizer, text, config.vocab_size)
    unused = [f"[unused{i}]" for i in range(config.vocab_size - len(vocab))]
    return wordpiece.WordPiece((*vocab, *unused), config.lowercase)


def _without_long(sentence: str) -> str:
    """Drops strings too long for a word; training time grows with their square."""
    longest = max(map(len, wordpiece.strings(sentence)), default=0)
    if longest <= wordpiece.MAX_CHARS_PER_WORD:
        return sentence
    return _long_word().sub(" ", sentence)


@functools.cache
def _long_word() -> re.Pattern[str]:
    parting = rf"\s{wordpiece.character_classes().punctuation}{wordpiece.IDEOGRAPH}"
    return re.compile(f"[^{parting}]{{{wordpiece.MAX_CHARS_PER_WORD + 1},}}")


def _pieces(
    tokenizer: tokenizers.Tokenizer, text: TextIO, vocab_size: int
) -> list[str]:
    """Returns up to vocab_size pieces in id order."""
    counts = _count_characters(tokenizer, text)
    by_count = sorted(counts, key=lambda c: (-counts[c], c))
    chosen = _within_room(_wanted(counts, by_count, vocab_size), vocab_size)
    # Left to itself the library numbers the pieces ##a, ##b, ... in the order of a hash
    # table, which differs from run to run (tokenizers 0.23).
    inner = [f"##{c}" for c in chosen if not _is_word(c)]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *inner],
        initial_alphabet=chosen,
        limit_alphabet=len(chosen),
        show_progress=False,
    )
    text.seek(0)
    tokenizer.train_from_iterator(text, trainer)
    by_id = {i: token for token, i in tokenizer.get_vocab().items()}
    pieces = [by_id[i] for i in range(len(by_id))]
    # A small text may have fewer longer pieces than there is room for.
    rest = [piece for c in by_count for piece in _pieces_of(c)]
    return list(dict.fromkeys([*pieces, *rest]))[:vocab_size]


def _count_characters(
    tokenizer: tokenizers.Tokenizer, text: TextIO
) -> collections.Counter[str]:
    """Counts the characters of the normalized text, without white space."""
    counts: collections.Counter[str] = collections.Counter()
    text.seek(0)
    for line in text:
        counts.update(tokenizer.normalizer.normalize_str(line))
    for character in list(filter(str.isspace, counts)):
        del counts[character]
    return counts


def _wanted(
    counts: collections.Counter[str], by_count: list[str], vocab_size: int
) -> list[str]:
    """Returns the characters that should have pieces, commonest first.

    They cover COVERAGE of each script; the commonest of all are among them.
    """
    num_common = min(MAX_COMMON_CHARACTERS, int(vocab_size * COMMON_CHARACTERS_SHARE))
    wanted = set(by_count[: max(MIN_CHARACTERS, num_common)])
    scripts = collections.defaultdict(list)
    for character in by_count:
        scripts[_script(character)].append(character)
    min_count = MIN_SCRIPT_SHARE * counts.total()
    for characters in scripts.values():
        left = COVERAGE * sum(counts[c] for c in characters)
        if left < min_count:
            continue
        for character in characters:
            if left <= 0:
                break
            wanted.add(character)
            left -= counts[character]
    return [character for character in by_count if character in wanted]


def _script(character: str) -> str:
    """Returns "LATIN", "CJK", "HANGUL", ... of a letter, "" of anything else."""
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "").partition(" ")[0]


def _within_room(characters: list[str], vocab_size: int) -> list[str]:
    """Returns the first characters for which the vocabulary has room, sorted.

    Raises:
      ConfigError: when that is not even the first MIN_CHARACTERS.
    """
    ends = []
    needed = len(SPECIAL_TOKENS)
    for character in characters:
        needed += len(_pieces_of(character))
        ends.append(needed)
    least = ends[:MIN_CHARACTERS][-1] if ends else needed
    if vocab_size < least:
        raise ConfigError(
            f"config.tokenizer.vocab_size={vocab_size} has no room for the {least}"
            f" special tokens and characters of the text; try {2 * least}"
        )
    room = max(least, int(vocab_size * MAX_CHARACTERS_SHARE))
    return sorted(c for c, end in zip(characters, ends, strict=True) if end <= room)


def _pieces_of(character: str) -> list[str]:
    """Returns the pieces by which a character is known wherever it stands in a word."""
    return [character] if _is_word(character) else [character, f"##{character}"]


def _is_word(character: str) -> bool:
    """Returns whether the pre-tokenizer makes the character a word of its own."""
    return (
        character in string.punctuation
        or unicodedata.category(character).startswith("P")
        or wordpiece.are_ideographs(character)
    )
