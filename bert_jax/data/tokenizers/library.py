"""Tokenizers of published models, run by the `tokenizers` library.

A published BERT may split text in another way than BERT's released code: with other
normalization, another pre-tokenizer, or tokens added later. Its tokenizer.json defines
the ids that its weights were trained with.
"""

import contextlib
import dataclasses
import functools
import json
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import tokenizers

from bert_jax.data.tokenizers import base
from bert_jax.data.tokenizers.base import CLS, SEP, SPECIAL_TOKENS, UNK
from bert_jax.data.tokenizers.wordpiece import MAX_CHARS_PER_WORD, WordPiece
from bert_jax.errors import ConfigError, CorruptError

# Texts whose ids differ if the rules differ, with a piece for every character.
SAMPLE = (
    "The quick (brown) fox isn't 12% of 3.14$ + a_b <c> `d` ^e~|",
    "Caf\u00e9 CAFE\u0301 \u0130stanbul \u00c5ngstr\u00f6m stra\u00dfe \u1e9e \ufb01n",
    "\u6771\u4eac\u5927\u5b66\u306e\u65e5\u672c\u8a9e \uac00\ub098 \u1112\u1161\u11ab",
    "  tabs\tand\u00a0 \u3000 spaces\u2028 lines\r\nends \u200b\u00ad\x00\x1f\ufffd ",
    "[MASK] [CLS]x[SEP] [unused1] ##ing @@x <s> \u2581y",
    "\U0001f600\U0001f601ok \u2764\ufe0f \U0001f468\u200d\U0001f469 \u20ac5 \u00bfq?",
    "\u0627\u064e\u0644\u0639 \u0939\u093f\u0902 \u0e01\u0e33\u0e44 \u03b1\u0301",
    "a" * 99,
)
# Texts for which the library's BERT rules differ from BERT's released code. The files
# that this package writes have the ids of the released code.
CORNERS = (
    "\u039f\u0394\u039f\u03a3 \ue000 x\ue001y",
    "a" * 101,
    "a" * MAX_CHARS_PER_WORD,
    "a" * (MAX_CHARS_PER_WORD + 1),
)


@dataclasses.dataclass(frozen=True)
class LibraryTokenizer(base.Tokenizer):
    """A tokenizer.json. Text never becomes [PAD], [CLS], [SEP] or [MASK]."""

    FILE: ClassVar[str] = "tokenizer.json"

    serialized: str = dataclasses.field(repr=False)

    @functools.cached_property
    def for_corpora(self) -> WordPiece | None:
        """The tokenizer that prepares corpora for the model, with the same pieces.

        Its ids differ only in texts like CORNERS and at added tokens. None if the model
        has other rules than BERT.
        """
        has_rules = self._has_rules_of_bert(SAMPLE)
        return WordPiece(self.vocab, self.lowercase) if has_rules else None

    def equals_for_corpora(self) -> bool:
        """Returns whether `for_corpora` gives the same ids for every text."""
        added = json.loads(self.serialized)["added_tokens"]
        has_others = any(token["content"] not in SPECIAL_TOKENS for token in added)
        return not has_others and self._has_rules_of_bert(SAMPLE + CORNERS)

    def _has_rules_of_bert(self, texts: Sequence[str]) -> bool:
        encode = WordPiece(_character_pieces(), self.lowercase).encoder()
        expected = [ids.tolist() for ids in encode(list(texts))]
        return sample_ids(self.serialized, texts) == expected

    def encoder(self) -> base.Encoder:
        tokenizer, ids = self._of_text()

        def encode(sentences: list[str]) -> list[np.ndarray]:
            valid = [base.SURROGATE.sub("\ufffd", sentence) for sentence in sentences]
            encoded = tokenizer.encode_batch_fast(valid, add_special_tokens=False)
            return [ids[encoding.ids] for encoding in encoded]

        return encode

    def huggingface(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.serialized)

    def content(self) -> bytes:
        return self.serialized.encode()

    def _of_text(self) -> tuple[tokenizers.Tokenizer, np.ndarray]:
        """Returns the tokenizer without special tokens, truncation and padding.

        Without a split at punctuation, "[MASK]" is a word of the vocabulary, so the id
        of [UNK] replaces those of special tokens.
        """
        state = json.loads(self.serialized)
        for token in state["added_tokens"]:
            token["special"] = token["content"] in SPECIAL_TOKENS
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
        tokenizer.encode_special_tokens = True  # as text
        tokenizer.no_truncation()
        tokenizer.no_padding()
        ids = np.arange(len(self.vocab), dtype=np.int32)
        special = [self.id(token) for token in SPECIAL_TOKENS if token in self.vocab]
        ids[special] = self.id(UNK)
        return tokenizer, ids


def read(serialized: str, path: str, lines: Sequence[str] = ()) -> LibraryTokenizer:
    """Parses a tokenizer.json; `path` names its vocabulary in error messages.

    `lines` has the tokens in id order, which may repeat, if a vocab.txt has them.
    """
    tokenizer = parse(serialized, path)
    ids = tokenizer.get_vocab()
    if max(ids.values(), default=0) > 2 * len(ids):
        raise CorruptError(f"{path} has gaps in its ids; download it again")
    size = max(ids.values(), default=-1) + 1
    vocab = [*lines, *[""] * (size - len(lines))]
    for token, id_ in ids.items():
        vocab[id_] = token
    base.check_special_tokens(vocab, path, base.TEXT_TOKENS)
    opened = LibraryTokenizer(tuple(vocab), lowercases(tokenizer), tokenizer.to_str())
    with _raise_errors(path):
        opened.encoder()(list(SAMPLE))  # some errors only appear here
        has_rows = _has_rows(tokenizer)
    if not has_rows:
        raise ConfigError(
            f"{path}: its tokenizer does not make the rows {CLS} A {SEP} and {CLS} A"
            f" {SEP} B {SEP} of a BERT; use another model"
        )
    return opened


def lowercases(tokenizer: tokenizers.Tokenizer) -> bool:
    normalizer = tokenizer.normalizer
    return normalizer is not None and "a" in normalizer.normalize_str("A")


def parse(serialized: str, path: str) -> tokenizers.Tokenizer:
    with _raise_errors(path):
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
    ids = tokenizer.get_vocab().values()
    if len(set(ids)) < len(ids):  # the library would write only one of the tokens
        raise CorruptError(f"{path} gives two tokens the same id; download it again")
    return tokenizer


@contextlib.contextmanager
def _raise_errors(path: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # Its errors have no type, and its panics are no Exception.
        if not isinstance(error, Exception) and "Panic" not in type(error).__name__:
            raise
        raise CorruptError(
            f"{path} is not a tokenizer that the tokenizers library reads ({error});"
            " download it again"
        ) from None


def _has_rows(tokenizer: tokenizers.Tokenizer) -> bool:
    """Returns whether a tokenizer adds [CLS] and [SEP] as BERT does."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cls, sep = tokenizer.token_to_id(CLS), tokenizer.token_to_id(SEP)
    text = tokenizer.encode("a", add_special_tokens=False).ids
    first, second = [cls, *text, sep], [*text, sep]
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")
    types = [0] * len(first) + [1] * len(second)
    return single.ids == first and (pair.ids, pair.type_ids) == (first + second, types)


def bert(vocab: Sequence[str], settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer that transformers builds for a BERT's vocab.txt.

    The last of a repeated token counts. The settings are those of
    tokenizer_config.json; without strip_accents, accents go if text is lower-cased.
    """
    ids = {token: i for i, token in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=100)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case") is not False,
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##")
    add_special_tokens(tokenizer)
    return tokenizer


def add_special_tokens(tokenizer: tokenizers.Tokenizer) -> None:
    """Registers BERT's special tokens, and adds [CLS] and [SEP] to rows."""
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    # The library would add a token that the vocabulary lacks, with a new id.
    tokenizer.add_special_tokens([t for t in ids if ids[t] is not None])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )


def sample_ids(serialized: str, texts: Sequence[str]) -> list[list[int]] | None:
    """Returns the ids of texts if every character were a piece, in any vocabulary.

    Two WordPiece tokenizers with equal results have the same rules. The result is None
    for another kind of model.
    """
    state = json.loads(serialized)
    if state["model"].get("type") != "WordPiece":
        return None
    ids = {piece: i for i, piece in enumerate(_character_pieces())}
    state["model"]["vocab"], state["added_tokens"] = ids, []
    state |= dict.fromkeys(("post_processor", "truncation", "padding"))
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(state))
        return [tokenizer.encode(text).ids for text in texts]
    except Exception:  # for example, its unknown token is not [UNK]
        return None


@functools.cache
def _character_pieces() -> tuple[str, ...]:
    text = "".join((*SAMPLE, *CORNERS))
    text += text.lower() + text.upper()
    text += unicodedata.normalize("NFD", text)
    characters = sorted(set(text))
    return (*SPECIAL_TOKENS, *characters, *(f"##{c}" for c in characters))
