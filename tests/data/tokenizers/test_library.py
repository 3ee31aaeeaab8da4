"""Tests of the tokenizers of published models, which the tokenizers library runs."""

import json
import pickle

import numpy as np
import pytest
import tokenizers

from bert_jax.data.tokenizers import library, wordpiece
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS
from bert_jax.errors import ConfigError

WORDS = ("the", "cat", "##s", "caf\u00e9", "cafe", "a", "b", "##b", "(", ")", "[", "]")
VOCAB = (*SPECIAL_TOKENS, *WORDS, "mask", "\u4e2d", "##\u6587", "\u6587")
TEXTS = ["The cats (caf\u00e9) ab", "", "\u200b", "\u4e2d\u6587", "a [MASK] b [SEP]"]


def bert(vocab=VOCAB, **settings):
    return library.bert(vocab, settings)


def read(tokenizer, lines=()):
    return library.read(tokenizer.to_str(), "tokenizer.json", lines)


def split_at_spaces(tokenizer):
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return tokenizer


@pytest.mark.parametrize("lowercase", [True, False])
def test_bert_rules_are_those_of_our_wordpiece(lowercase):
    ours = wordpiece.WordPiece(VOCAB, lowercase)
    theirs = read(bert(do_lower_case=lowercase))
    assert theirs.for_corpora == ours and theirs.lowercase == lowercase
    for found, expected in zip(
        theirs.encoder()(TEXTS), ours.encoder()(TEXTS), strict=True
    ):
        assert found.dtype == np.int32 and found.tolist() == expected.tolist()
    # A long word is [UNK] for the one and has pieces for the other.
    assert not theirs.equals_for_corpora()


@pytest.mark.parametrize("lowercase", [True, False])
def test_exported_wordpiece_is_recognised(lowercase):
    exported = wordpiece.WordPiece(VOCAB, lowercase).huggingface()
    library.add_special_tokens(exported)
    assert read(exported).equals_for_corpora()
    exported.add_tokens(["xyz"])
    assert not read(exported).equals_for_corpora()


def with_prefix(tokenizer):
    tokenizer.model.continuing_subword_prefix = "@@"
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        bert(strip_accents=False),
        bert(tokenize_chinese_chars=False),
        split_at_spaces(bert()),
        with_prefix(bert()),
    ],
)
def test_other_rules_cannot_prepare_a_corpus(tokenizer):
    assert read(tokenizer).for_corpora is None


def test_literal_special_tokens_are_text():
    """Without a split at punctuation, "[MASK]" is a word of the vocabulary."""
    tokenizer = split_at_spaces(bert())
    mask, unk = VOCAB.index("[MASK]"), VOCAB.index("[UNK]")
    assert mask in tokenizer.encode("a [MASK] b").ids
    for ours in (read(tokenizer), read(bert())):
        found = [*ours.encoder()(["a [MASK] b"]), ours.locator()("[CLS][SEP]").ids]
        special = {VOCAB.index(token) for token in SPECIAL_TOKENS} - {unk}
        assert not special & set(np.concatenate(found).tolist())


def test_added_tokens_are_found_in_text_and_have_rows():
    tokenizer = bert()
    tokenizer.add_tokens(["ab-b"])
    tokenizer.add_special_tokens(["[E1]"])
    ours = read(tokenizer)
    assert ours.vocab == (*VOCAB, "ab-b", "[E1]")
    (ids,) = ours.encoder()(["[E1] the ab-b"])
    n = len(VOCAB)
    assert ids.tolist() == [n + 1, VOCAB.index("the"), n]


def test_repeated_and_blank_lines_keep_their_ids():
    lines = (*VOCAB, "", "cat", "")
    ours = read(bert(lines), lines)
    assert ours.vocab == lines
    assert ours.encoder()(["cat"])[0].tolist() == [len(VOCAB) + 1]
    assert read(bert(lines)).vocab[VOCAB.index("cat")] == ""  # no such line is known


def test_offsets_are_those_of_the_text():
    text = "The  caf\u00e9s (\u4e2d"
    found = read(bert()).locator()(text)
    np.testing.assert_array_equal(found.ids, read(bert()).encoder()([text])[0])
    spans = zip(found.starts, found.ends, strict=True)
    assert [text[i:j] for i, j in spans] == ["The", "caf\u00e9", "s", "(", "\u4e2d"]
    assert read(bert()).locator()("").ids.tolist() == []


def test_half_of_a_surrogate_pair_is_no_error():
    ours = read(bert())
    (ids,) = ours.encoder()(["a \ud800 b"])
    assert ids.tolist() == [VOCAB.index("a"), VOCAB.index("b")]
    assert ours.locator()("a \ud800 b").starts.tolist() == [0, 4]


def test_truncation_and_padding_of_the_file_are_ignored():
    tokenizer = bert()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    texts = ["a b a b a b", "a"]
    found = read(tokenizer).encoder()(texts)
    assert [len(ids) for ids in found] == [6, 1]


def test_value_is_comparable_picklable_and_saved(tmp_path):
    ours = read(split_at_spaces(bert()))
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert ours.digest != read(bert()).digest
    ours.save(tmp_path)
    content = (tmp_path / "tokenizer.json").read_text()
    assert library.read(content, "tokenizer.json") == ours
    assert ours.continues_word.sum() == 3


def changed(**values):
    return json.dumps(json.loads(bert().to_str()) | values)


TWICE = {token: i for i, token in enumerate(VOCAB)} | {"more": 7}


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is not a tokenizer that the tokenizers library reads"),
        (
            changed(model={"type": "WordPiece"}),
            "is not a tokenizer that the tokenizers",
        ),
        (bert(VOCAB[:1] + VOCAB[2:]).to_str(), r"has no \[UNK\]; use a vocabulary"),
        (bert(VOCAB[1:]).to_str(), r"has no \[PAD\]; use a vocabulary with \[PAD\], "),
        (changed(post_processor=None), "does not make the rows .* use another model"),
        (
            changed(
                post_processor={"type": "BertProcessing"}
                | {"sep": ["a", 10]}
                | {"cls": ["[CLS]", 2]}
            ),
            "does not make the rows",
        ),
        (bert((*VOCAB, *[""] * 99, "far")).to_str(), "has gaps in its ids"),
        (
            changed(model=json.loads(bert().to_str())["model"] | {"vocab": TWICE}),
            "gives two tokens the same id",
        ),
    ],
)
def test_unusable_file_is_an_error(content, message):
    with pytest.raises(ConfigError, match=message):
        library.read(content, "tokenizer.json")
