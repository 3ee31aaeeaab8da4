"""Tests of the keys of config.json and tokenizer_config.json, and of task heads."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import HEADS, TASKS
from bert_jax.interop import (
    huggingface_read,
    huggingface_tokenizer,
    huggingface_write,
    sentence_transformers,
)
from bert_jax.loading import model as model_lib
from tests.commands import ROOT
from tests.finetuning import tuned
from tests.models import VOCAB, change_json, keep_only_vocab_txt

PATH = Path("there/config.json")


@pytest.mark.parametrize("kind", TASKS)
def test_head_round_trips_through_config_json(kind, tmp_path):
    head = tuned.HEADS[kind]
    sentence_transformers.write(tmp_path, 32, 32)  # marks a dual encoder
    path = tmp_path / "config.json"
    assert (
        huggingface_read.parse_head(huggingface_write.head_keys(head), path, HEADS)
        == head
    )


@pytest.mark.parametrize(
    "labels, kind", [({"0": "score"}, "regression"), (None, "classification")]
)
def test_problem_type_is_inferred_from_the_number_of_labels(labels, kind):
    config = {"architectures": ["BertForSequenceClassification"]}
    config |= {"id2label": labels} if labels else {}
    head = huggingface_read.parse_head(
        config | {"hidden_dropout_prob": 0.2}, PATH, HEADS
    )
    assert head.kind == kind and head.dropout_prob == 0.2
    # A missing key has the default of transformers' BertConfig.
    config.pop("hidden_dropout_prob", None)
    assert huggingface_read.parse_head(config, PATH, HEADS).dropout_prob == 0.1
    assert head.labels == (("score",) if labels else ("LABEL_0", "LABEL_1"))
    config = {"architectures": ["BertForTokenClassification"], "num_labels": 3}
    assert len(huggingface_read.parse_head(config, PATH, HEADS).labels) == 3


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"architectures": ["BertForPreTraining"]}, "has no task head"),
        ({"architectures": ["BertModel"]}, "has no task head"),
        ({"architectures": None}, "not a supported fine-tuned BERT"),
        ({"problem_type": "guessing"}, "not a supported fine-tuned BERT"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label"),
        ({"id2label": 3}, "id2label"),
        ({"id2label": None, "num_labels": "many"}, "num_labels='many'"),
        ({"classifier_dropout": 1.5}, "dropout of 1.5"),
        ({"classifier_dropout": "much"}, "dropout of 'much'"),
    ],
)
def test_unsupported_head_is_an_error(changes, words):
    config = huggingface_write.head_keys(tuned.HEADS["classification"]) | changes
    with pytest.raises(ConfigError, match=words):
        huggingface_read.parse_head(config, PATH, HEADS)


# transformers 5 removed this key and supports one value of it.
REMOVED = {"position_embedding_type"}


def test_defaults_equal_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig()
    found = {
        key: getattr(config, key) for key in huggingface_read.DEFAULTS.keys() - REMOVED
    }
    assert found == {key: huggingface_read.DEFAULTS[key] for key in found}


PAGE = (ROOT / "docs" / "export.md").read_text()


def effects(file):
    """Returns {effect: keys} of the table in docs/export.md."""
    text = PAGE.partition(f"\n### {file}\n")[2].partition("\n#")[0]
    found = {"read": set(), "refused": set(), "no effect": set()}
    for key, effect in re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", text, re.M):
        found[effect].add(key)
    return found


CONFIG, SETTINGS = effects("config.json"), effects("tokenizer_config.json")
FIXED = [
    (name, key, only)
    for name, fixed in (
        ("config.json", huggingface_read.FIXED),
        ("tokenizer_config.json", huggingface_tokenizer.FIXED),
    )
    for key, only in fixed.items()
]


def test_every_key_of_a_bert_config_is_in_the_page():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig
    known = {field.name for field in dataclasses.fields(config)}
    known |= config().to_dict().keys() | {"output_attentions", "per_layer_config"}
    assert known <= set().union(*CONFIG.values())
    assert CONFIG["refused"] == huggingface_read.FIXED.keys()


def test_every_key_of_a_bert_tokenizer_is_in_the_page():
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
    assert known - arguments - set().union(*SETTINGS.values()) == set()
    assert SETTINGS["refused"] == huggingface_tokenizer.FIXED.keys()


@pytest.mark.parametrize(("name", "key", "only"), FIXED)
def test_another_value_of_a_fixed_key_is_refused(source, name, key, only):
    assert f"| `{key}` | refused | unless `{only!r}` |" in PAGE
    directory, _ = source
    value = {False: True, None: {"a": 1}, True: False}.get(only, "other")
    change_json(directory, name, **{key: value})
    with pytest.raises(ConfigError, match=f"{name} has {key}="):
        model_lib.read_encoder(str(directory))


def test_ignored_keys_change_nothing(source):
    directory, _ = source
    keep_only_vocab_txt(directory, VOCAB)
    before = model_lib.read_encoder(str(directory))
    change_json(directory, "config.json", **dict.fromkeys(CONFIG["no effect"], 7))
    ignored = dict.fromkeys(SETTINGS["no effect"], "7")
    change_json(directory, "tokenizer_config.json", **ignored)
    after = model_lib.read_encoder(str(directory))
    assert (after.config, after.tokenizer) == (before.config, before.tokenizer)
    np.testing.assert_equal(after.arrays, before.arrays)
