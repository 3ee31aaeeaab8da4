"""Trains tokenizers of every kind on the sentences of documents.

`choose_characters` selects the characters of a vocabulary; any other becomes [UNK]. The
`tokenizers` and `sentencepiece` libraries form the longer pieces. Training is
deterministic: the same text gives the same file.
"""

import collections
import functools
import io
import itertools
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from typing import TextIO

import sentencepiece as sentencepiece_lib
import tokenizers

from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import sentencepiece, wordpiece
from bert_jax.data.tokenizers.base import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    Tokenizer,
)
from bert_jax.errors import ConfigError

# The maximum size of the text to train on. With more, a WordPiece vocabulary of tens of
# thousands of pieces changes little. On one core, the unigram trainer takes 3 s per
# megabyte, the BPE trainer 0.3 s.
TRAINING_BYTES = {
    "wordpiece": 128 * 2**20,
    "sentencepiece_unigram": 32 * 2**20,
    "sentencepiece_bpe": 32 * 2**20,
}


def train(documents: Iterable[list[str]], config: TokenizerConfig) -> Tokenizer:
    """Trains a tokenizer of exactly config.vocab_size pieces, special tokens first.

    Each document is a list of sentences; together they have at most TRAINING_BYTES.
    """
    if config.kind == "wordpiece":
        return _train_wordpiece(documents, config)
    return _train_sentencepiece(list(documents), config)


# -------------------------------------------------------------------- the characters

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


def choose_characters(
    counts: collections.Counter[str], vocab_size: int, num_pieces: Callable[[str], int]
) -> list[str]:
    """Selects the characters of a vocabulary from those of a text, most common first.

    They cover COVERAGE of the text and of each script in it, except for the rarest
    characters if the vocabulary has no room for them. num_pieces returns the number of
    pieces of a character.
    """
    wanted = _wanted_characters(counts, vocab_size)
    needed = [
        *itertools.accumulate(map(num_pieces, wanted), initial=len(SPECIAL_TOKENS))
    ]
    least = needed[min(MIN_CHARACTERS, len(wanted))]
    if vocab_size < least:
        raise _no_room(vocab_size, least)
    room = max(least, int(vocab_size * MAX_CHARACTERS_SHARE))
    return [c for c, end in zip(wanted, needed[1:], strict=True) if end <= room]


def _no_room(vocab_size: int, least: int) -> ConfigError:
    return ConfigError(
        f"config.tokenizer.vocab_size={vocab_size} has no room for the {least} special"
        f" tokens and characters of the text; set it to {2 * least}, for example"
    )


def by_count(counts: collections.Counter[str]) -> list[str]:
    return sorted(counts, key=lambda c: (-counts[c], c))


def _wanted_characters(counts: collections.Counter[str], vocab_size: int) -> list[str]:
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


# ------------------------------------------------------------------------ WordPiece


def _train_wordpiece(
    documents: Iterable[list[str]], config: TokenizerConfig
) -> wordpiece.WordPiece:
    """Fills the vocabulary with [unused0], [unused1], ... if the text is too small.

    The released vocabularies have them, too: spare rows for tokens added later.
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
    most = wordpiece.MAX_CHARS_PER_WORD
    if max(map(len, wordpiece.strings(sentence)), default=0) <= most:
        return sentence
    return "".join(" " if len(s) > most else s for s in _separator().split(sentence))


@functools.cache
def _separator() -> re.Pattern[str]:
    """Matches white space and the characters that the pre-tokenizer makes words."""
    punctuation = wordpiece.character_classes()["punctuation"]
    return re.compile(rf"([\s{punctuation}{wordpiece.IDEOGRAPH}])")


def _pieces(
    tokenizer: tokenizers.Tokenizer, text: TextIO, vocab_size: int
) -> list[str]:
    counts = _normalized_characters(tokenizer, text)
    chosen = choose_characters(counts, vocab_size, lambda c: len(_pieces_of(c)))
    chosen.sort()
    # Otherwise the library numbers the pieces ##a, ##b, ... in the order of a hash
    # table, which differs between runs (tokenizers 0.23).
    inner = [piece for c in chosen for piece in _pieces_of(c)[1:]]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *inner],
        initial_alphabet=chosen,
        limit_alphabet=len(chosen),
        show_progress=False,
    )
    text.seek(0)
    tokenizer.train_from_iterator(text, trainer)
    ids = tokenizer.get_vocab()
    # A small text may not have enough longer pieces to fill the vocabulary.
    rest = [piece for c in by_count(counts) for piece in _pieces_of(c)]
    return list(dict.fromkeys([*sorted(ids, key=ids.__getitem__), *rest]))[:vocab_size]


def _normalized_characters(
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
    is_word = _separator().match(character)
    return [character] if is_word else [character, f"##{character}"]


# -------------------------------------------------------------------- SentencePiece

# The trainer itself selects characters up to this share of the text, the smallest that
# it accepts. `choose_characters` selects the others.
MIN_COVERAGE = 0.98
# Sums of multiples of this unit are exact in float32 up to 65,536. Ties between pieces
# are therefore resolved by their order, here and in `tokenizers`, and not by rounding.
SCORE_UNIT = 1 / 256


def _train_sentencepiece(
    documents: list[list[str]], config: TokenizerConfig
) -> sentencepiece.SentencePiece:
    # NFKC normalization with normalized white space; "cf" also folds case.
    rule = "nmt_nfkc_cf" if config.lowercase else "nmt_nfkc"
    counts = _normalized_by_rule(documents, rule)
    required = choose_characters(counts, config.vocab_size, lambda _: 1)
    written = io.BytesIO()
    try:
        sentencepiece_lib.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain.from_iterable(documents),
            model_writer=written,
            model_type=config.kind.removeprefix("sentencepiece_"),
            vocab_size=config.vocab_size,
            normalization_rule_name=rule,
            required_chars="".join(required),
            character_coverage=MIN_COVERAGE,
            # The default skips sentences over 4 kB.
            max_sentence_length=TRAINING_BYTES[config.kind],
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=PAD,
            unk_piece=UNK,
            control_symbols=[CLS, SEP, MASK],
            num_threads=1,  # the order of summation depends on the number of threads
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), config.vocab_size) from None
    model = sentencepiece.ModelProto.FromString(written.getvalue())
    for piece in model.pieces:
        piece.score = round(piece.score / SCORE_UNIT) * SCORE_UNIT
    content = model.SerializeToString(deterministic=True)
    return sentencepiece.read(content, config, "the trained model")


def _normalized_by_rule(
    documents: list[list[str]], rule: str
) -> collections.Counter[str]:
    raw: collections.Counter[str] = collections.Counter()
    for sentence in itertools.chain.from_iterable(documents):
        raw.update(sentence)
    normalizer = sentencepiece_lib.SentencePieceNormalizer(rule_name=rule)
    counts: collections.Counter[str] = collections.Counter()
    for character, count in raw.items():
        for normalized in normalizer.normalize(character):
            # sentencepiece 0.2.2 normalizes to spaces, 0.2.3 to word marks.
            if not normalized.isspace() and normalized != sentencepiece.WORD_MARK:
                counts[normalized] += count
    return counts


def _training_error(message: str, vocab_size: int) -> Exception:
    if most := re.search(r"too high .* value <= (\d+)", message):
        return ConfigError(
            f"config.tokenizer.vocab_size={vocab_size} exceeds the number of pieces in"
            f" the text; set it to {most[1]} or less"
        )
    if least := re.search(r"required_chars. \d+ vs (\d+)", message):
        return _no_room(vocab_size, int(least[1]))
    # From sentencepiece 0.2.2, from 0.2.3 and from both.
    signs = ("required_chars_.empty()", "all_chars_count", "sentences_.empty()")
    if any(sign in message for sign in signs):
        return ConfigError(
            "config.data.sources: no text to train a SentencePiece model on; check that"
            " the sources contain text"
        )
    return RuntimeError(message)
