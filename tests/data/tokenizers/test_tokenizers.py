"""Tests of bert_jax.data.tokenizers.tokenizers, for every kind of tokenizer."""

import dataclasses
import functools
import json
import os
import random

import pytest

from bert_jax import config as config_lib
from bert_jax.data.tokenizers import tokenizers, training
from bert_jax.errors import ConfigError
from tests.data.tokenizers import test_wordpiece

KINDS = config_lib.TOKENIZER_KINDS
make_config = functools.partial(test_wordpiece.make_config, vocab_size=60)


def documents():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcd", k=rng.randint(2, 6))) for _ in range(99)]
    return [[" ".join(rng.choices(words, k=9)) for _ in range(4)] for _ in range(40)]


@pytest.fixture(scope="module", params=KINDS)
def trained(request):
    config = make_config(request.param)
    return config, training.train(documents(), config)


def test_saved_tokenizer_is_read_back(trained, tmp_path):
    config, tokenizer = trained
    tokenizer.save(tmp_path)
    assert os.listdir(tmp_path) == [tokenizer.FILE]
    assert tokenizers.path_in(str(tmp_path), config) == str(tmp_path / tokenizer.FILE)
    found = tokenizers.read(str(tmp_path), config)
    assert found == tokenizer and found.digest == tokenizer.digest


def test_load_a_file_of_another_size(trained, tmp_path):
    config, tokenizer = trained
    tokenizer.save(tmp_path)
    path = str(tmp_path / tokenizer.FILE)
    other = make_config(config.kind, vocab_file=path, vocab_size=300)
    with pytest.raises(ConfigError, match="vocab_size=300, .* set .*vocab_size=60$"):
        tokenizers.load(other)


@pytest.mark.parametrize("kind", KINDS)
def test_load_a_missing_file(tmp_path, kind):
    config = make_config(kind, vocab_file=str(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match=r"vocab_file='.*none.txt' is not a file"):
        tokenizers.load(config)


UNCASED = [*tokenizers.SPECIAL_TOKENS, *"abcdefghij", *(f"##{x}" for x in "abcdefghij")]
CASED = [*UNCASED, "The", "##B"]
ACCENTED = [*UNCASED, "sch\u00f6n"]
ODD = [*UNCASED, *(f"w{i}" for i in range(400)), "COVID", "[E1]", "<S>"]


def vocab_file(directory, vocab, lowercase, recorded=None):
    path = directory / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in vocab))
    if recorded is not None:
        text = json.dumps({"do_lower_case": recorded})
        (directory / "tokenizer_config.json").write_text(text)
    size = {"vocab_size": len(vocab), "lowercase": lowercase}
    return make_config("wordpiece", vocab_file=str(path), **size)


@pytest.mark.parametrize(
    "vocab, lowercase, recorded",
    [
        (UNCASED, True, None),
        (UNCASED, False, None),
        (CASED, False, None),
        (ODD, True, None),
        (CASED, True, True),
        (UNCASED, False, False),
    ],
)
def test_load_for_corpus_of_the_right_case(tmp_path, vocab, lowercase, recorded):
    config = vocab_file(tmp_path, vocab, lowercase, recorded)
    assert tokenizers.load_for_corpus(config) == tokenizers.load(config)


def test_a_sentencepiece_model_has_its_own_case(trained, tmp_path):
    config, tokenizer = trained
    tokenizer.save(str(tmp_path))
    path = str(tmp_path / tokenizer.FILE)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    config = dataclasses.replace(config, vocab_file=path)
    if config.kind == "wordpiece":
        with pytest.raises(ConfigError, match="set config.tokenizer.lowercase=False"):
            tokenizers.load_for_corpus(config)
    else:
        assert tokenizers.load_for_corpus(config) == tokenizer


@pytest.mark.parametrize(
    "vocab, lowercase, recorded, message",
    [
        (
            CASED,
            True,
            None,
            "lowercase=True, but .*vocab.txt has 2 pieces with capital letters, for"
            " example 'The', .*; set config.tokenizer.lowercase=False",
        ),
        (
            ACCENTED,
            True,
            None,
            "1 pieces with accents, .* lower-case the text yourself",
        ),
        (
            CASED,
            True,
            False,
            "do_lower_case=False; set config.tokenizer.lowercase=False",
        ),
        (
            UNCASED,
            False,
            True,
            "do_lower_case=True; set config.tokenizer.lowercase=True",
        ),
    ],
)
def test_load_for_corpus_of_another_case(tmp_path, vocab, lowercase, recorded, message):
    config = vocab_file(tmp_path, vocab, lowercase, recorded)
    with pytest.raises(ConfigError, match=message):
        tokenizers.load_for_corpus(config)
    # The advice is right.
    if "yourself" not in message:
        config = dataclasses.replace(config, lowercase=not lowercase)
        assert tokenizers.load_for_corpus(config)
