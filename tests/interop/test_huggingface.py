"""The exported tokenizer gives the ids that training used."""

import json

import jax
import pytest

from bert_jax import model
from bert_jax.data import tokenizers
from bert_jax.interop import huggingface
from tests.conftest import make_config

LINES = [
    "The river follows the old garden.",
    "naïve CAFÉ -- 12% of \u4e2d\u6587, isn't it?",
    "a" * 150 + " " + "b" * 250,
    "",
]


@pytest.fixture(scope="module")
def tokenizer():
    texts = [[line] for line in LINES[:3]] * 3
    return tokenizers.train(texts, make_config().tokenizer)


def write(directory, tokenizer, **changes):
    config = make_config(**changes)
    _, params = model.build(config.model, 97, jax.random.key(0))
    huggingface.write(directory, params, config, tokenizer)


def test_ids_are_ours_between_cls_and_sep(tokenizer):
    built = huggingface.build_tokenizer(tokenizer)
    encode = tokenizer.encoder()
    cls, sep = tokenizer.id("[CLS]"), tokenizer.id("[SEP]")
    for line in LINES:
        assert built.encode(line).ids == [cls, *encode([line])[0], sep]
    pair = built.encode(LINES[0], LINES[1])
    assert pair.type_ids.count(1) == len(encode([LINES[1]])[0]) + 1


def test_transformers_reads_the_same_ids(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    write(tmp_path, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = huggingface.build_tokenizer(tokenizer)
    for line in LINES:
        assert theirs(line)["input_ids"] == ours.encode(line).ids
    assert theirs.mask_token_id == tokenizer.id("[MASK]")
    assert theirs.model_max_length == 32


def test_config_names_the_activation_and_sizes(tokenizer, tmp_path):
    write(tmp_path, tokenizer, model__hidden_act="gelu")
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["hidden_act"] == "gelu"
    assert written["vocab_size"] == 97
    assert written["layer_norm_eps"] == 1e-12
    assert (tmp_path / "vocab.txt").read_text().split("\n")[:-1] == list(
        tokenizer.vocab
    )
