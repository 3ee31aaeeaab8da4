"""Tests of the conversion between task heads and config.json."""

from pathlib import Path

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import HEADS, TASKS
from bert_jax.interop import huggingface_config, sentence_transformers
from tests.finetuning import tuned

PATH = Path("there/config.json")


@pytest.mark.parametrize("kind", TASKS)
def test_head_round_trips_through_config_json(kind, tmp_path):
    head = tuned.HEADS[kind]
    sentence_transformers.write(tmp_path, 32, 32)  # marks a dual encoder
    path = tmp_path / "config.json"
    assert huggingface_config.parse(huggingface_config.keys(head), path, HEADS) == head


@pytest.mark.parametrize(
    "labels, kind", [({"0": "score"}, "regression"), (None, "classification")]
)
def test_problem_type_is_inferred_from_the_number_of_labels(labels, kind):
    config = {"architectures": ["BertForSequenceClassification"]}
    config |= {"id2label": labels} if labels else {}
    head = huggingface_config.parse(config | {"hidden_dropout_prob": 0.2}, PATH, HEADS)
    assert head.kind == kind and head.dropout_prob == 0.2
    # A missing key has the default of transformers' BertConfig.
    config.pop("hidden_dropout_prob", None)
    assert huggingface_config.parse(config, PATH, HEADS).dropout_prob == 0.1
    assert head.labels == (("score",) if labels else ("LABEL_0", "LABEL_1"))


def test_number_of_labels_without_their_names():
    config = {"architectures": ["BertForTokenClassification"], "num_labels": 3}
    head = huggingface_config.parse(config, PATH, HEADS)
    assert head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


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
    config = huggingface_config.keys(tuned.HEADS["classification"]) | changes
    with pytest.raises(ConfigError, match=words):
        huggingface_config.parse(config, PATH, HEADS)


# transformers 5 removed this key and supports one value of it.
REMOVED = {"position_embedding_type"}


def test_defaults_equal_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig()
    found = {
        key: getattr(config, key)
        for key in huggingface_config.DEFAULTS.keys() - REMOVED
    }
    assert found == {key: huggingface_config.DEFAULTS[key] for key in found}
