"""Trains a WordPiece vocabulary.

alphabet.py selects the characters of the vocabulary; the `tokenizers` library forms
the longer pieces.
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

from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import alphabet, wordpiece
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS, UNK

# With more text than this, a vocabulary of tens of thousands of pieces changes little.
TRAINING_BYTES = 128 * 2**20


def train(
    documents: Iterable[list[str]], config: TokenizerConfig
) -> wordpiece.WordPiece:
    """Trains a vocabulary of exactly config.vocab_size tokens, special tokens first.

    If the text is too small for that many pieces, the vocabulary is filled with
    [unused0], [unused1], ..., which the released vocabularies also have: spare rows for
    tokens added later. Each document is a list of sentences.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNK))
    wordpiece.set_text_rules(tokenizer, config.lowercase)
    # The text is read twice. In memory it would take 460 MB besides the 690 MB of
    # TensorFlow.
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as text:
        for document in documents:
            text.writelines(_without_long(sentence) + "\n" for sentence in document)
        vocab = _pieces(tokenizer, text, config.vocab_size)
    unused = [f"[unused{i}]" for i in range(config.vocab_size - len(vocab))]
    return wordpiece.WordPiece((*vocab, *unused), config.lowercase)


def _without_long(sentence: str) -> str:
    """Drops strings longer than a word; training time is quadratic in their length."""
    longest = max(map(len, wordpiece.strings(sentence)), default=0)
    if longest <= wordpiece.MAX_CHARS_PER_WORD:
        return sentence
    return _long_word().sub(" ", sentence)


@functools.cache
def _long_word() -> re.Pattern[str]:
    separators = rf"\s{wordpiece.character_classes().punctuation}{wordpiece.IDEOGRAPH}"
    return re.compile(f"[^{separators}]{{{wordpiece.MAX_CHARS_PER_WORD + 1},}}")


def _pieces(
    tokenizer: tokenizers.Tokenizer, text: TextIO, vocab_size: int
) -> list[str]:
    counts = _count_characters(tokenizer, text)
    chosen = sorted(alphabet.choose(counts, vocab_size, lambda c: len(_pieces_of(c))))
    # Otherwise the library numbers the pieces ##a, ##b, ... in the order of a hash
    # table, which differs between runs (tokenizers 0.23).
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
    # A small text may not have enough longer pieces to fill the vocabulary.
    rest = [piece for c in alphabet.by_count(counts) for piece in _pieces_of(c)]
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


def _pieces_of(character: str) -> list[str]:
    return [character] if _is_word(character) else [character, f"##{character}"]


def _is_word(character: str) -> bool:
    """Returns whether the pre-tokenizer makes the character a word of its own."""
    return (
        character in string.punctuation
        or unicodedata.category(character).startswith("P")
        or wordpiece.are_ideographs(character)
    )
