"""WordPiece: train a vocabulary or load a released one; text -> token ids.

The normaliser, the pre-tokeniser and the greedy matching are the `tokenizers`
library's, set to the released code's rules: words of up to 200 characters, and no
text ever becomes a special token, not even a literal "[MASK]".

Source: google-research/bert tokenization.py.
"""

import collections
import dataclasses
import functools
import hashlib
import string
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tokenizers

from bert_jax.config import ConfigError, TokenizerConfig

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
# google-research/bert tokenization.py:303; the library's default is 100.
MAX_CHARS_PER_WORD = 200
# A vocabulary of tens of thousands of pieces is settled well before this much text.
TRAINING_BYTES = 128 * 2**20
# Characters that become pieces of their own; rarer ones make a word [UNK], as in the
# released vocabularies. Unbounded, a text in many scripts leaves no room for words.
MAX_ALPHABET = 1000


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """A vocabulary in id order and how text is normalised before it is matched."""

    vocab: tuple[str, ...]
    lowercase: bool

    @property
    def digest(self) -> str:
        """A sha256 of everything that decides which ids a text gets."""
        text = "\n".join(("wordpiece", str(self.lowercase), *self.vocab))
        return hashlib.sha256(text.encode()).hexdigest()

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """bool[V], True for the pieces that go on with the word before them."""
        return np.array([piece.startswith("##") for piece in self.vocab])

    def id(self, token: str) -> int:
        return self.vocab.index(token)

    def build(self) -> tokenizers.Tokenizer:
        """Returns the `tokenizers` pipeline without special tokens."""
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                {token: i for i, token in enumerate(self.vocab)},
                unk_token=UNK,
                max_input_chars_per_word=MAX_CHARS_PER_WORD,
            )
        )
        _set_text_rules(tokenizer, self.lowercase)
        return tokenizer


def load(config: TokenizerConfig) -> WordPiece:
    """Reads config.vocab_file, a token a line in id order.

    Raises:
      ConfigError: when the file is missing, lacks a special token, repeats a token,
        or has not vocab_size lines.
    """
    path = Path(config.vocab_file).expanduser()
    if not path.is_file():
        raise ConfigError(f"config.tokenizer.vocab_file={str(path)!r} is not a file")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ConfigError(
            f"config.tokenizer.vocab_file={str(path)!r} is not UTF-8"
        ) from None
    vocab = tuple(line.rstrip("\r") for line in lines)
    if vocab[-1] == "":
        vocab = vocab[:-1]
    validate(vocab, str(path))
    if len(vocab) != config.vocab_size:
        raise ConfigError(
            f"config.tokenizer.vocab_size={config.vocab_size}, but {path} has"
            f" {len(vocab)} tokens; set config.tokenizer.vocab_size={len(vocab)}"
        )
    return WordPiece(vocab, config.lowercase)


def validate(vocab: tuple[str, ...], path: str) -> None:
    """Raises ConfigError when the vocabulary cannot be used for pretraining."""
    for token in SPECIAL_TOKENS:
        if token not in vocab:
            raise ConfigError(
                f"{path} has no {token}; add a line {token} (BERT needs"
                f" {', '.join(SPECIAL_TOKENS)})"
            )
    if "" in vocab:
        raise ConfigError(f"{path}:{vocab.index('') + 1} is blank; remove the line")
    token, count = collections.Counter(vocab).most_common(1)[0]
    if count > 1:
        last = len(vocab) - vocab[::-1].index(token)
        raise ConfigError(f"{path}:{last} repeats {token!r}; remove the line")


def train(
    documents: Iterable[list[str]], vocab_size: int, lowercase: bool
) -> tuple[str, ...]:
    """Returns a vocabulary of exactly `vocab_size` tokens, special tokens first.

    A text too small for that many pieces leaves [unused0], [unused1], ... at the end,
    as the released vocabularies have them: spare rows for tokens added later.
    """
    texts = _text_sample(documents)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNK))
    _set_text_rules(tokenizer, lowercase)
    alphabet = _alphabet(tokenizer, texts, min(MAX_ALPHABET, max(64, vocab_size // 8)))
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
    tokenizer.train_from_iterator(texts, trainer)
    by_id = {i: token for token, i in tokenizer.get_vocab().items()}
    vocab = [by_id[i] for i in range(len(by_id))][:vocab_size]
    unused = [f"[unused{i}]" for i in range(vocab_size - len(vocab))]
    return (*vocab, *unused)


def _text_sample(documents: Iterable[list[str]]) -> list[str]:
    texts, num_bytes = [], 0
    for document in documents:
        texts.append("\n".join(document))
        num_bytes += len(texts[-1].encode())
        if num_bytes > TRAINING_BYTES:
            break
    return texts


def _is_punctuation(character: str) -> bool:
    """Returns whether the pre-tokeniser makes the character a word of its own."""
    return character in string.punctuation or unicodedata.category(
        character
    ).startswith("P")


def _alphabet(
    tokenizer: tokenizers.Tokenizer, texts: list[str], size: int
) -> list[str]:
    """Returns the commonest characters of the normalised texts, sorted."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    characters = [c for c in counts if not c.isspace()]
    characters.sort(key=lambda c: (-counts[c], c))
    return sorted(characters[:size])


def _set_text_rules(tokenizer: tokenizers.Tokenizer, lowercase: bool) -> None:
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=lowercase,
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
