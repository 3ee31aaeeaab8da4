"""Fuzzes vocab.txt and SentencePiece models."""

import functools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.config import TokenizerConfig
from bert_jax.data.tokenizers import base, sentencepiece, tokenizers, training
from bert_jax.interop import huggingface_write
from tests.data.tokenizers.test_wordpiece import make_config
from tests.faults.fuzzed import config_error, edited, edits, new_directory

TEXT = [
    "abc def gh, i? \u00c4\ufb01 \u4e2d\u6587 [MASK] \x00\u200b",
    "",
    "\u2460\u24d0 x" * 50,
    "\U0001f600" * 9,
    "a" * 3000,
]
VOCAB = "\n".join(
    [*tokenizers.SPECIAL_TOKENS, *"abcdefghi", "##a", "##bc", "\u4e2d", "[unused1]", ""]
).encode()


def check(content: bytes, config: TokenizerConfig, name: str) -> None:
    """Loads the file as a run does, and uses the tokenizer in all ways."""
    path = new_directory() / name
    path.write_bytes(content)

    def use():
        tokenizer = tokenizers.parse(content, config, str(path))
        ids = tokenizer.encoder()(TEXT)
        assert all(i.dtype == np.int32 for i in ids)
        assert all(((0 <= i) & (i < len(tokenizer.vocab))).all() for i in ids)
        special = {tokenizer.id(t) for t in tokenizers.SPECIAL_TOKENS} - {
            tokenizer.id(base.UNK)
        }
        assert not special & set(np.concatenate(ids).tolist())
        assert len(tokenizer.continues_word) == len(tokenizer.vocab)
        assert tokenizers.parse(tokenizer.content(), config, name) == tokenizer
        huggingface_write.build_tokenizer(tokenizer)

    config_error(use, name, "config.")


lines = st.lists(
    st.sampled_from(
        [*VOCAB.split(b"\n"), b"", b" ", b"\r", b"##", b"\xef\xbb\xbf[PAD]"]
    )
    | st.binary(max_size=6)
    | st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")),
    max_size=30,
).map(b"\n".join)


@given(
    edits.map(lambda edits: edited(VOCAB, edits)) | lines | st.binary(), st.booleans()
)
def test_vocab_txt(content, lowercase):
    config = make_config(vocab_size=10, lowercase=lowercase)
    check(content, config, "vocab.txt")


@functools.cache
def trained(kind: str) -> tuple[TokenizerConfig, bytes]:
    config = make_config(kind, 100)
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(200)]
    documents = [[" ".join(rng.choices(words, k=9)) for _ in range(60)]]
    return config, training.train(documents, config).content()


kinds = st.sampled_from(["sentencepiece_unigram", "sentencepiece_bpe"])


@given(edits, kinds)
def test_edited_bytes_of_a_model(edits, kind):
    config, content = trained(kind)
    check(edited(content, edits), config, "p.model")


scores = st.sampled_from([float("nan"), float("inf"), -1e38, 0.0, -3.5])


@given(st.data(), kinds)
def test_fields_of_a_model(data, kind):
    """Changes pieces and settings, which random bytes rarely do."""
    config, content = trained(kind)
    model = sentencepiece.ModelProto.FromString(content)
    for _ in range(data.draw(st.integers(1, 3))):
        piece = model.pieces[data.draw(st.integers(0, len(model.pieces) - 1))]
        match data.draw(st.integers(0, 7)):
            case 0:
                piece.piece = data.draw(st.text(max_size=4) | st.just("a" * 5000))
            case 1:
                piece.score = data.draw(scores)
            case 2:
                piece.type = data.draw(st.integers(1, 6))
            case 3:
                del model.pieces[data.draw(st.integers(0, len(model.pieces))) :]
            case 4:
                charsmap = model.normalizer_spec.precompiled_charsmap
                charsmap = edited(charsmap, data.draw(edits))
                model.normalizer_spec.precompiled_charsmap = charsmap
            case 5:
                model.trainer_spec.model_type = data.draw(st.integers(1, 4))
            case 6:
                spec = model.normalizer_spec
                spec.add_dummy_prefix = not spec.add_dummy_prefix
                spec.escape_whitespaces = not spec.escape_whitespaces
            case 7:
                model.trainer_spec.byte_fallback = True
        if not model.pieces:
            break
    check(model.SerializeToString(), config, "p.model")


@pytest.mark.parametrize("lowercase", [True, False])
def test_unedited_files_work(lowercase):
    """Without this, the edits above might prove nothing."""
    config = make_config(vocab_size=10, lowercase=lowercase)
    assert len(tokenizers.parse(VOCAB, config, "v").vocab) == 18
    for kind in ("sentencepiece_unigram", "sentencepiece_bpe"):
        config, content = trained(kind)
        assert len(tokenizers.parse(content, config, "p.model").vocab) == 100
