"""Tests of bert_jax.data.tokenizers.unknown_tokens."""

import collections

import pytest

from bert_jax.data.tokenizers import unknown_tokens
from tests.corpora import changed, make_config


def test_shares_by_source():
    counts = collections.Counter({"read": 3})
    unknown_tokens.count(counts, 0, 100, 1)
    unknown_tokens.count(counts, 0, 200, 2)
    unknown_tokens.count(counts, 11, 50, 50)
    assert unknown_tokens.shares(counts, 12) == [0.01, *[0.0] * 10, 1.0]
    assert {name for name in counts if not unknown_tokens.is_name(name)} == {"read"}


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path, sources=("text:a.txt", "text:b.txt"))


def test_every_source_is_reported(config):
    assert list(unknown_tokens.report(config, [0.0, 0.01])) == [
        "[UNK] tokens: 0.00% of 'text:a.txt', 1.00% of 'text:b.txt'"
    ]


@pytest.mark.parametrize(
    "values, remedy",
    [
        (
            {"vocab_file": "zh.txt", "lowercase": False},
            "set config.tokenizer.vocab_file='zh.txt' to a vocabulary of its language,"
            " or to '' to use that of config.init_from or train one,"
            " and check config.tokenizer.lowercase=False",
        ),
        (
            {"vocab_file": "", "vocab_size": 4000},
            "raise config.tokenizer.vocab_size=4000, set"
            " config.tokenizer.kind='sentencepiece_unigram', or set"
            " config.tokenizer.vocab_file to a released vocabulary of its language",
        ),
        (
            {"vocab_file": "", "vocab_size": 4000, "kind": "sentencepiece_bpe"},
            "raise config.tokenizer.vocab_size=4000, or set"
            " config.tokenizer.vocab_file to a released vocabulary of its language",
        ),
    ],
)
def test_a_source_with_many_unknown_tokens_gives_a_warning(config, values, remedy):
    config = changed(config, "tokenizer", **values)
    _, warning = unknown_tokens.report(config, [0.0, 0.28])
    assert warning == (
        "warning: 28.0% of the tokens of 'text:b.txt' are [UNK], because the vocabulary"
        f" lacks characters of its text; {remedy}"
    )
