"""SentencePiece, unigram and BPE: train a model or read one; text -> ids.

BERT's special tokens are control pieces of the model, which no text ever becomes.

Source: Kudo and Richardson 2018; google/sentencepiece.
"""

import collections
import dataclasses
import io
import math
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import alphabet, base
from bert_jax.data.tokenizers.base import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from bert_jax.errors import ConfigError

# A megabyte takes the unigram trainer 3 s on one core, BPE's a tenth of that.
TRAINING_BYTES = 32 * 2**20
# The trainer chooses characters by itself up to this share of the text, and takes no
# smaller one; beyond it they are those that `alphabet` chooses.
MIN_COVERAGE = 0.98
# Text becomes pieces by tables as large as the longest; trained ones have up to 16.
MAX_PIECE_CHARS = 1000
WORD_MARK = "\u2581"  # begins the pieces that begin a word
# Sums of such scores are exact in single precision up to 65,536, so pieces that tie
# are told apart by their order, here and in `tokenizers`, and not by rounding.
SCORE_UNIT = 1 / 256
# A model drops or keeps these controls, which Python takes for white space.
_STRING = re.compile("(?:\\S|[\x0b\x1c-\x1f\x85])+")

_pb2: Any = sentencepiece_model_pb2  # whose classes are made at run time
_Model = _pb2.ModelProto
_Piece = _Model.SentencePiece
_KINDS = {
    _pb2.TrainerSpec.UNIGRAM: "sentencepiece_unigram",
    _pb2.TrainerSpec.BPE: "sentencepiece_bpe",
}


@dataclasses.dataclass(frozen=True)
class SentencePiece(base.Tokenizer):
    """A model file, which also holds the pieces and how text is normalised."""

    FILE: ClassVar[str] = "sentencepiece.model"

    model: bytes = dataclasses.field(repr=False)

    @property
    def continues_word(self) -> np.ndarray:
        # The mark of a word's beginning is known, so an unknown piece comes after one.
        text = (_Piece.NORMAL, _Piece.USER_DEFINED, _Piece.BYTE, _Piece.UNKNOWN)
        return np.array(
            [
                piece.type in text and not piece.piece.startswith(WORD_MARK)
                for piece in _Model.FromString(self.model).pieces
            ]
        )

    @property
    def num_characters(self) -> np.ndarray:
        return np.array([len(p.removeprefix(WORD_MARK)) for p in self.vocab], np.int32)

    def string_spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in _STRING.finditer(text)]

    def encoder(self) -> base.Encoder:
        processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)

        def encode(sentences: list[str]) -> list[np.ndarray]:
            encoded = processor.encode(sentences, out_type=int, num_threads=1)
            return [np.array(ids, np.int32) for ids in encoded]

        return encode

    def huggingface(self) -> tokenizers.Tokenizer:
        """Returns the `tokenizers` pipeline of the same ids, without special tokens.

        The same for models trained here. In a unigram model from elsewhere, whose
        scores are not multiples of SCORE_UNIT, pieces that tie (runs of dashes) may
        be told apart otherwise.
        """
        model = _Model.FromString(self.model)
        tokenizer = tokenizers.Tokenizer(
            _unigram(model)
            if model.trainer_spec.model_type == _pb2.TrainerSpec.UNIGRAM
            else _bpe(model)
        )
        tokenizer.normalizer = _normalizer(model.normalizer_spec)
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
    """Words get their marks here and not in a pre-tokeniser, which would split them."""
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


def _unigram(model: Any) -> tokenizers.models.Unigram:
    types = [piece.type for piece in model.pieces]
    return tokenizers.models.Unigram(
        [(piece.piece, piece.score) for piece in model.pieces],
        types.index(_Piece.UNKNOWN),
        model.trainer_spec.byte_fallback,
    )


def _bpe(model: Any) -> tokenizers.models.BPE:
    """A piece of a high score is merged first, from whichever two pieces make it."""
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
    )


def read(content: bytes, config: TokenizerConfig, path: str) -> SentencePiece:
    """Returns the tokenizer of a .model file.

    The piece for what is unknown is named [UNK]; special tokens that the model lacks
    get ids of their own after its last one.

    Raises:
      ConfigError: when the file is not a model, or of another kind or case than the
        config says; `path` names it in the message.
    """
    try:
        model = _Model.FromString(content)
        if not model.pieces:
            raise DecodeError
        if problem := _problem(model):
            raise ConfigError(f"{path}: {problem}; fetch or train the model again")
        _add_special_tokens(model)
        if model != _Model.FromString(content):
            content = model.SerializeToString(deterministic=True)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    except (DecodeError, RuntimeError):
        raise ConfigError(f"{path} is not a SentencePiece model") from None
    if model.trainer_spec.treat_whitespace_as_suffix:
        raise ConfigError(
            f"{path} marks words at their end; train it with"
            " treat_whitespace_as_suffix=false"
        )
    kind = _KINDS.get(model.trainer_spec.model_type)
    if kind != config.kind:
        remedy = f"set config.tokenizer.kind={kind}" if kind else "use one that is"
        raise ConfigError(
            f"config.tokenizer.kind={config.kind!r}, but {path} is not such a model;"
            f" {remedy}"
        )
    lowercase = processor.normalize("A").endswith("a")
    if lowercase != config.lowercase:
        raise ConfigError(
            f"config.tokenizer.lowercase={config.lowercase}, but the model {path} was"
            f" trained otherwise; set config.tokenizer.lowercase={lowercase}"
        )
    vocab = tuple(piece.piece for piece in model.pieces)
    return SentencePiece(vocab, lowercase, content)


def _problem(model: Any) -> str | None:
    """Returns what no trainer writes: the library is not to load it."""
    for number, piece in enumerate(model.pieces):
        text = piece.piece
        if not isinstance(text, str):
            return f"piece {number} is not UTF-8"
        if not text or len(text) > MAX_PIECE_CHARS or "\0" in text:
            return f"piece {number} is empty, over {MAX_PIECE_CHARS} characters or NUL"
        if not math.isfinite(piece.score):
            return f"piece {number} has the score {piece.score}"
    unknown = [piece for piece in model.pieces if piece.type == _Piece.UNKNOWN]
    if len(unknown) != 1:
        return f"{len(unknown)} pieces are for what is unknown, it must be one"
    try:
        if model.normalizer_spec.precompiled_charsmap:
            _normalizer(model.normalizer_spec)
    except Exception as error:  # of the tokenizers library, of no type of its own
        return f"its table of characters is damaged ({error})"
    return None


def kind(content: bytes, path: str) -> str:
    """Returns what config.tokenizer.kind of a .model file is.

    Raises:
      ConfigError: when the file is not a model, or of no such kind.
    """
    try:
        found = _KINDS.get(_Model.FromString(content).trainer_spec.model_type)
    except DecodeError:
        found = None
    if found is None:
        raise ConfigError(f"{path} is no unigram or BPE model of SentencePiece")
    return found


def _add_special_tokens(model: Any) -> None:
    """Gives the model BERT's special tokens, as pieces that no text becomes."""
    for piece in model.pieces:
        if piece.type == _Piece.UNKNOWN:
            model.trainer_spec.unk_piece = piece.piece = UNK
        elif piece.piece in SPECIAL_TOKENS:
            piece.type = _Piece.CONTROL
    present = {piece.piece for piece in model.pieces}
    for token in SPECIAL_TOKENS:
        if token not in present:
            model.pieces.add(piece=token, score=0.0, type=_Piece.CONTROL)


def train(documents: Iterable[list[str]], config: TokenizerConfig) -> SentencePiece:
    """Trains a model of exactly config.vocab_size pieces, special tokens first.

    The same text gives the same model, byte for byte.

    Raises:
      ConfigError: when the text has too few different words, or too many different
        characters, for a vocabulary of this size, or there is no text.
    """
    sample = list(base.text_sample(documents, TRAINING_BYTES))
    # Unicode's compatibility forms, and white space made equal; cf folds case.
    rule = "nmt_nfkc_cf" if config.lowercase else "nmt_nfkc"
    counts = _count_characters(sample, rule)
    required = alphabet.choose(counts, config.vocab_size, lambda _: 1)
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                sentence for document in sample for sentence in document
            ),
            model_writer=written,
            model_type=config.kind.removeprefix("sentencepiece_"),
            vocab_size=config.vocab_size,
            normalization_rule_name=rule,
            required_chars="".join(required),
            character_coverage=MIN_COVERAGE,
            max_sentence_length=TRAINING_BYTES,  # longer ones are left out, else 4 kB
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=PAD,
            unk_piece=UNK,
            control_symbols=[CLS, SEP, MASK],
            num_threads=1,  # the sums of several differ with their number
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _training_error(str(error), config.vocab_size) from None
    model = _Model.FromString(written.getvalue())
    for piece in model.pieces:
        piece.score = round(piece.score / SCORE_UNIT) * SCORE_UNIT
    content = model.SerializeToString(deterministic=True)
    return read(content, config, "the trained model")


def _count_characters(sample: list[list[str]], rule: str) -> collections.Counter[str]:
    """Counts the characters of the normalized text, without white space."""
    raw: collections.Counter[str] = collections.Counter()
    for document in sample:
        for sentence in document:
            raw.update(sentence)
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=rule)
    counts: collections.Counter[str] = collections.Counter()
    for character, count in raw.items():
        for normalized in normalizer.normalize(character):
            # sentencepiece 0.2.2 makes spaces where 0.2.3 makes marks.
            if not normalized.isspace() and normalized != WORD_MARK:
                counts[normalized] += count
    return counts


def _training_error(message: str, vocab_size: int) -> Exception:
    """Returns what to raise for what the trainer says."""
    key = f"config.tokenizer.vocab_size={vocab_size}"
    if most := re.search(r"too high .* value <= (\d+)", message):
        return ConfigError(
            f"{key} is more pieces than the text has; set it to {most[1]} or fewer"
        )
    if least := re.search(r"required_chars. \d+ vs (\d+)", message):
        return ConfigError(
            f"{key} has no room for the {least[1]} special tokens and characters of"
            f" the text; try {2 * int(least[1])}"
        )
    # sentencepiece 0.2.2, 0.2.3 and both of them.
    signs = ("required_chars_.empty()", "all_chars_count", "sentences_.empty()")
    if any(sign in message for sign in signs):
        return ConfigError(
            "config.data.sources gave no text to train a SentencePiece model on"
        )
    return RuntimeError(message)
