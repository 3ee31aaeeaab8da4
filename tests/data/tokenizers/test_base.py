"""Tests of bert_jax.data.tokenizers.base: ids and character offsets."""

import itertools

import numpy as np
import pytest

from bert_jax import config as config_lib
from bert_jax.data.sources import embedded
from bert_jax.data.tokenizers import base, training, wordpiece
from tests.conftest import make_config

HARD = [
    "",
    " \t ",
    "Tab\tand  two spaces \n(brackets) isn't it?",
    "na\u00efve CAF\u00c9 cafe\u0301 -- 12% of \u4e2d\u6587\u5b57, \u4e2dx",
    "join\x0bed \x1c by\x85controls \u200bzero \u2028 line",
    "\U0001f600 smile\U0001f600\U0001f601! ok\U0001f600",
    "a" * 250 + " [MASK] \u0130stanbul \ufb01 \u2460",
]


@pytest.fixture(scope="module")
def documents():
    found = itertools.islice(embedded.documents(), 40)
    return [sentences for _, sentences in found]


@pytest.mark.parametrize("kind", config_lib.TOKENIZER_KINDS)
def test_ids_equal_the_encoders_and_offsets_match_the_pieces(kind, documents):
    config = make_config(tokenizer__kind=kind, tokenizer__vocab_size=1000).tokenizer
    tokenizer = training.train(documents, config)
    locate, encode = tokenizer.locator(), tokenizer.encoder()
    texts = HARD + [" ".join(sentences) for sentences in documents]
    exact = total = 0
    for text in texts:
        found = locate(text)
        np.testing.assert_array_equal(found.ids, encode([text])[0], err_msg=text)
        assert found.ids.dtype == np.int32
        assert (np.diff(found.starts) >= 0).all() and (np.diff(found.ends) >= 0).all()
        for id_, start, end in zip(found.ids, found.starts, found.ends, strict=True):
            piece = tokenizer.vocab[id_].removeprefix("##").lstrip("\u2581")
            exact += text[start:end].lower() == piece
            total += id_ != tokenizer.id("[UNK]")
            assert 0 <= start < end <= len(text) or piece == ""
    assert exact > 0.99 * total


def test_offsets_of_unknown_pieces_and_of_strings_with_accents():
    vocab = (*base.SPECIAL_TOKENS, "(", ")", "cafe", "##s", ",", "\u4e2d")
    locate = wordpiece.WordPiece(vocab, lowercase=True).locator()

    def spans(text):
        found = locate(text)
        ends = zip(found.starts, found.ends, strict=True)
        return [text[start:end] for start, end in ends]

    assert spans("Caf\u00e9s, cafe") == ["Caf\u00e9", "s", ",", "cafe"]
    assert spans("(robot) (a,b)") == ["(", "robot", ")", "(", "a", ",", "b", ")"]
    assert spans("cafe\u0301s") == ["cafe", "s"]  # a combining accent is in no piece
    assert spans("\u4e2d\u6587(\u4e2d") == ["\u4e2d", "\u6587", "(", "\u4e2d"]
