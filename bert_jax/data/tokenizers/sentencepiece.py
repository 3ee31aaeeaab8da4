"""SentencePiece tokenizers, unigram and BPE: reading, encoding, conversion.

BERT's special tokens are control pieces of the model, which text never becomes.

Source: Kudo and Richardson 2018; google/sentencepiece.
"""

import dataclasses
import math
import re
from typing import Any, ClassVar

import numpy as np
import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from bert_jax.config import TokenizerConfig, TokenizerKind
from bert_jax.data.tokenizers import base
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS, UNK
from bert_jax.errors import ConfigError

# The library allocates tables as large as the longest piece. Trained pieces have up to
# 16 characters.
MAX_PIECE_CHARS = 1000
WORD_MARK = "\u2581"  # the first character of a piece that starts a word

_pb2: Any = sentencepiece_model_pb2  # its classes are created at run time
ModelProto = _pb2.ModelProto
_Piece = ModelProto.SentencePiece
_KINDS: dict[int, TokenizerKind] = {
    _pb2.TrainerSpec.UNIGRAM: "sentencepiece_unigram",
    _pb2.TrainerSpec.BPE: "sentencepiece_bpe",
}


@dataclasses.dataclass(frozen=True)
class SentencePiece(base.Tokenizer):
    """A SentencePiece model; its file contains the pieces and the normalization."""

    FILE: ClassVar[str] = "sentencepiece.model"

    model: bytes = dataclasses.field(repr=False)

    @property
    def continues_word(self) -> np.ndarray:
        # WORD_MARK is always a known piece, so [UNK] comes after it in the same word.
        text = (_Piece.NORMAL, _Piece.USER_DEFINED, _Piece.BYTE, _Piece.UNKNOWN)
        pieces = ModelProto.FromString(self.model).pieces
        found = [p.type in text and not p.piece.startswith(WORD_MARK) for p in pieces]
        return np.array(found)

    def encoder(self) -> base.Encoder:
        processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)

        def encode(sentences: list[str]) -> list[np.ndarray]:
            encoded = processor.encode(sentences, out_type=int, num_threads=1)
            return [np.array(ids, np.int32) for ids in encoded]

        return encode

    def huggingface(self) -> tokenizers.Tokenizer:
        # For models of training.py the ids are identical. In other unigram models
        # scores are not multiples of its SCORE_UNIT, so ties between pieces (in runs of
        # dashes) may be resolved differently. User-defined symbols, also of BPE, are
        # found after normalization, which may have changed them.
        model = ModelProto.FromString(self.model)
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.Unigram(
                [(piece.piece, piece.score) for piece in model.pieces],
                [piece.type for piece in model.pieces].index(_Piece.UNKNOWN),
                model.trainer_spec.byte_fallback,
            )
            if model.trainer_spec.model_type == _pb2.TrainerSpec.UNIGRAM
            else _bpe(model)
        )
        tokenizer.normalizer = _normalizer(model.normalizer_spec)
        if isinstance(tokenizer.model, tokenizers.models.BPE) and _symbols(model):
            pattern = tokenizers.Regex("|".join(map(re.escape, _symbols(model))))
            split = tokenizers.pre_tokenizers.Split(pattern, "isolated")
            tokenizer.pre_tokenizer = split
        decoders = tokenizers.decoders
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace(WORD_MARK, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        return tokenizer

    def content(self) -> bytes:
        return self.model


def _normalizer(spec: Any) -> tokenizers.normalizers.Normalizer:
    # WORD_MARK is added here and not in a pre-tokenizer, which would split at it.
    normalizers = tokenizers.normalizers
    steps = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        spaces = tokenizers.Regex(r"\A +| +\z| +(?= )")
        steps.append(normalizers.Replace(spaces, ""))
    steps.append(normalizers.Replace(" ", WORD_MARK))
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_MARK))
    return normalizers.Sequence(steps)


def _bpe(model: Any) -> tokenizers.models.BPE:
    # Pieces are merged in the order of their scores, from every pair that forms them.
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    merges = []
    for piece in sorted(model.pieces, key=lambda piece: -piece.score):
        text = piece.piece
        halves = [(text[:i], text[i:]) for i in range(1, len(text))]
        if piece.type == _Piece.NORMAL:
            merges += [(a, b) for a, b in halves if a in ids and b in ids]
    return tokenizers.models.BPE(
        vocab=ids,
        merges=merges,
        unk_token=UNK,
        fuse_unk=True,
        byte_fallback=model.trainer_spec.byte_fallback,
        ignore_merges=bool(_symbols(model)),  # a symbol has none
    )


def _symbols(model: Any) -> list[str]:
    """Returns the user-defined symbols, which split the text, the longest first."""
    symbols = [p.piece for p in model.pieces if p.type == _Piece.USER_DEFINED]
    return sorted(symbols, key=len, reverse=True)


def read(content: bytes, config: TokenizerConfig, path: str) -> SentencePiece:
    """Parses a .model file.

    The unknown piece is renamed [UNK]; special tokens that the model lacks are appended
    after its last id. The config must have the kind and lowercase of the model.
    """
    try:
        model = ModelProto.FromString(content)
        if not model.pieces:
            raise DecodeError
        if problem := _problem(model):
            raise ConfigError(f"{path}: {problem}; download or train the model again")
        _add_special_tokens(model)
        if model != ModelProto.FromString(content):
            content = model.SerializeToString(deterministic=True)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    except (DecodeError, RuntimeError):
        raise ConfigError(
            f"{path} is not a SentencePiece model; set config.tokenizer.vocab_file to a"
            " .model file"
        ) from None
    if model.trainer_spec.treat_whitespace_as_suffix:
        raise ConfigError(
            f"{path} marks the ends of words, which is not supported; train it with"
            " treat_whitespace_as_suffix=false"
        )
    kind = _KINDS.get(model.trainer_spec.model_type)
    if kind != config.kind:
        remedy = f"set config.tokenizer.kind={kind}" if kind else "use another model"
        raise ConfigError(
            f"config.tokenizer.kind={config.kind!r}, but {path} is a model of another"
            f" kind; {remedy}"
        )
    lowercase = processor.normalize("A").endswith("a")
    if lowercase != config.lowercase:
        raise ConfigError(
            f"config.tokenizer.lowercase={config.lowercase}, but the model {path} was"
            f" trained with {lowercase}; set config.tokenizer.lowercase={lowercase}"
        )
    vocab = tuple(piece.piece for piece in model.pieces)
    return SentencePiece(vocab, lowercase, content)


def _problem(model: Any) -> str | None:
    """Describes why a model is invalid, or returns None if it is valid.

    Trainers never write such models, and the library must not load them: it may crash.
    """
    for number, piece in enumerate(model.pieces):
        text = piece.piece
        if not isinstance(text, str):
            return f"piece {number} is not UTF-8"
        if not text or len(text) > MAX_PIECE_CHARS or "\0" in text:
            return (
                f"piece {number} is empty, contains NUL or has over {MAX_PIECE_CHARS}"
                " characters"
            )
        if not math.isfinite(piece.score):
            return f"piece {number} has the score {piece.score}"
    unknown = [piece for piece in model.pieces if piece.type == _Piece.UNKNOWN]
    if len(unknown) != 1:
        return f"it has {len(unknown)} unknown pieces instead of 1"
    try:
        if model.normalizer_spec.precompiled_charsmap:
            _normalizer(model.normalizer_spec)
    except Exception as error:  # the tokenizers library has no exception type
        return f"its normalization table is corrupt ({error})"
    return None


def kind(content: bytes, path: str) -> TokenizerKind:
    """Returns the config.tokenizer.kind of a .model file."""
    try:
        return _KINDS[ModelProto.FromString(content).trainer_spec.model_type]
    except (DecodeError, KeyError):
        raise ConfigError(
            f"{path} is not a SentencePiece unigram or BPE model; use another model"
        ) from None


def _add_special_tokens(model: Any) -> None:
    for piece in model.pieces:
        if piece.type == _Piece.UNKNOWN:
            model.trainer_spec.unk_piece = piece.piece = UNK
        elif piece.piece == UNK:  # as a user-defined symbol; the name is taken
            piece.piece, piece.type = f"{UNK}\uffff", _Piece.UNUSED
        elif piece.piece in SPECIAL_TOKENS:
            piece.type = _Piece.CONTROL
    present = {piece.piece for piece in model.pieces}
    for token in SPECIAL_TOKENS:
        if token not in present:
            model.pieces.add(piece=token, score=0.0, type=_Piece.CONTROL)
