"""Tests that every key of transformers' BERT is in the table and has its effect."""

import dataclasses
import inspect
import re

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_keys as keys
from bert_jax.loading import model as model_lib
from tests.models import VOCAB, change_json, keep_only_vocab_txt

CONFIG = keys.CONFIG_READ | keys.CONFIG_FIXED | keys.CONFIG_IGNORED
TOKENIZER = keys.TOKENIZER_READ | keys.TOKENIZER_FIXED | keys.TOKENIZER_IGNORED


def test_a_key_has_one_effect():
    for tables in (
        (keys.CONFIG_READ, keys.CONFIG_FIXED, keys.CONFIG_IGNORED),
        (keys.TOKENIZER_READ, keys.TOKENIZER_FIXED, keys.TOKENIZER_IGNORED),
    ):
        assert len(set().union(*tables)) == sum(map(len, tables))


def test_every_key_of_a_bert_config_is_in_the_table():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig
    known = {field.name for field in dataclasses.fields(config)}
    known |= config().to_dict().keys() | {"output_attentions", "per_layer_config"}
    assert known <= CONFIG.keys()


def test_every_key_of_a_bert_tokenizer_is_in_the_table():
    pytest.importorskip("transformers")
    from transformers import tokenization_utils_base
    from transformers.models.bert import tokenization_bert, tokenization_bert_legacy

    known = {"backend"}
    for kind in (
        tokenization_bert.BertTokenizer,
        tokenization_bert_legacy.BertTokenizerLegacy,
    ):
        known |= inspect.signature(kind.__init__).parameters.keys()
    base = tokenization_utils_base.PreTrainedTokenizerBase
    known |= set(base.SPECIAL_TOKENS_ATTRIBUTES)
    # __init__ takes its other keys from a dictionary.
    source = inspect.getsource(base.__init__)
    known |= set(re.findall(r'kwargs\.pop\(\s*"(\w+)"', source))
    arguments = {"self", "kwargs", "vocab", "vocab_file", "files_loaded"}
    arguments |= {"model_specific_special_tokens"}  # built from other keys
    assert known - arguments - TOKENIZER.keys() == set()


def other_than(only):
    return {False: True, None: {"a": 1}, True: False}.get(only, "other")


@pytest.mark.parametrize("key", keys.CONFIG_FIXED)
def test_other_value_of_a_fixed_config_key_is_refused(source, key):
    directory, _ = source
    change_json(directory, "config.json", **{key: other_than(keys.CONFIG_FIXED[key])})
    with pytest.raises(ConfigError, match=f"config.json has {key}="):
        model_lib.read_encoder(str(directory))


@pytest.mark.parametrize("key", keys.TOKENIZER_FIXED)
def test_other_value_of_a_fixed_tokenizer_key_is_refused(source, key):
    directory, _ = source
    value = other_than(keys.TOKENIZER_FIXED[key])
    change_json(directory, "tokenizer_config.json", **{key: value})
    with pytest.raises(ConfigError, match=f"tokenizer_config.json has {key}="):
        model_lib.read_encoder(str(directory))


def test_ignored_keys_change_nothing(source):
    directory, _ = source
    keep_only_vocab_txt(directory, VOCAB)
    before = model_lib.read_encoder(str(directory))
    change_json(directory, "config.json", **dict.fromkeys(keys.CONFIG_IGNORED, 7))
    ignored = dict.fromkeys(keys.TOKENIZER_IGNORED, "7")
    change_json(directory, "tokenizer_config.json", **ignored)
    after = model_lib.read_encoder(str(directory))
    assert (after.config, after.tokenizer) == (before.config, before.tokenizer)
    np.testing.assert_equal(after.arrays, before.arrays)
