"""Trains a WordPiece vocabulary."""

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

# A vocabulary of tens of thousands of pieces is settled well before this much text.
TRAINING_BYTES = 128 * 2**20
# Characters that become pieces of their own; rarer ones make a word [UNK], as in the
# released vocabularies. Unbounded, a text in many scripts leaves no room for words.
MAX_ALPHABET = 1000


def train(
    documents: Iterable[list[str]], config: TokenizerConfig
) -> wordpiece.WordPiece:
    """Returns a vocabulary of exactly config.vocab_size tokens, special tokens first.

    A text too small for that many pieces leaves [unused0], [unused1], ... at the end,
    as the released vocabularies have them: spare rows for tokens added later.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNK))
    wordpiece.set_text_rules(tokenizer, config.lowercase)
    # The text is gone through twice; in memory it takes 460 MB beside TensorFlow's 690.
    # In $TMPDIR it takes up to TRAINING_BYTES.
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as text:
        for document in vocabulary.text_sample(documents, TRAINING_BYTES):
            text.writelines(_without_long(sentence) + "\n" for sentence in document)
        vocab = _pieces(tokenizer, text, config.vocab_size)
    unused = [f"[unused{i}]" for i in range(config.vocab_size - len(vocab))]
    return wordpiece.WordPiece((*vocab, *unused), config.lowercase)


def _without_long(sentence: str) -> str:
    """Drops what is too long for a word; the trainer takes the square of its length."""
    if (
        max(map(len, wordpiece.strings(sentence)), default=0)
        <= wordpiece.MAX_CHARS_PER_WORD
    ):
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
    size = min(MAX_ALPHABET, max(64, vocab_size // 8))
    alphabet = _alphabet(tokenizer, text, size)
    # Left to itself the library numbers the pieces ##a, ##b, ... in the order of a hash
    # table, which differs from run to run (tokenizers 0.23).
    first = [
        *SPECIAL_TOKENS,
        *(f"##{c}" for c in alphabet if not _is_punctuation(c)),
    ]
    needed = len(first) + len(alphabet)
    if vocab_size < needed:
        raise ConfigError(
            f"config.tokenizer.vocab_size={vocab_size} has no room for the {needed}"
            f" special tokens and characters of the text; try {2 * needed}"
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    text.seek(0)
    tokenizer.train_from_iterator(text, trainer)
    by_id = {i: token for token, i in tokenizer.get_vocab().items()}
    return [by_id[i] for i in range(len(by_id))][:vocab_size]


def _is_punctuation(character: str) -> bool:
    """Returns whether the pre-tokeniser makes the character a word of its own."""
    return character in string.punctuation or unicodedata.category(
        character
    ).startswith("P")


def _alphabet(tokenizer: tokenizers.Tokenizer, text: TextIO, size: int) -> list[str]:
    """Returns the commonest characters of the normalised text, sorted."""
    counts: collections.Counter[str] = collections.Counter()
    text.seek(0)
    for line in text:
        counts.update(tokenizer.normalizer.normalize_str(line))
    characters = [c for c in counts if not c.isspace()]
    characters.sort(key=lambda c: (-counts[c], c))
    return sorted(characters[:size])
