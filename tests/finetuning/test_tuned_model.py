"""The directory of a model has its settings and its card."""

import dataclasses
import json
import re

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import tuned_model
from bert_jax.finetuning.tasks import TASKS
from bert_jax.finetuning.tasks.squad import Questions
from bert_jax.finetuning.tuned_model import (
    SETTINGS_FILE,
    read_settings,
    write_settings,
)
from tests.finetuning import labelled
from tests.finetuning.test_config import config_dict

SQUAD2 = Questions([], [], True, 0, 0)


QUESTION = {"stride": 0, "max_query_length": 64, "max_answer_length": 30}
QUESTION |= {"null_threshold": 0.0, "has_impossible": False}
CHANGED = {"stride": 7, "null_threshold": -1.5}


@pytest.mark.parametrize(
    ("name", "changes", "before", "settings"),
    [
        ("squad2", CHANGED, QUESTION, QUESTION | CHANGED | {"has_impossible": True}),
        (
            "goemotions",
            {"threshold": 0.3},
            {"num_texts": 0, "threshold": 0.5},
            {"num_texts": 1, "threshold": 0.3},
        ),
        ("sst2", {}, {"num_texts": 0}, {"num_texts": 1}),  # 0: unknown
        ("mnli", {}, {"num_texts": 0}, {"num_texts": 2}),
        ("stsb", {}, {"num_texts": 0}, {"num_texts": 2}),
        ("wnut17", {}, {}, {}),
    ],
)
def test_settings_are_restored(name, changes, before, settings, tmp_path):
    """A model without the file has the defaults of run_squad.py."""
    task = dataclasses.replace(
        tasks_config.from_config_dict(config_dict(name)).task, **changes
    )
    assert read_settings(tmp_path, task.kind) == before
    write_settings(tmp_path, task, SQUAD2)
    assert read_settings(tmp_path, task.kind) == settings
    assert bool(settings) == (tmp_path / SETTINGS_FILE).exists()


@pytest.mark.parametrize(
    "kind, text, message",
    [
        ("question_answering", "[]", "is not a JSON object"),
        ("question_answering", '{"stride": -1}', "stride=-1 must be at least 0$"),
        ("question_answering", '{"max_query_length": 0}', "=0 must be at least 1$"),
        ("question_answering", '{"stride": "far"}', "stride is 'far'"),
        ("question_answering", '{"has_impossible": 2}', "has_impossible is 2"),
        ("classification", '{"num_texts": 3}', "num_texts=3 must be .* at most 2"),
    ],
)
def test_a_corrupt_file_is_an_error(kind, text, message, tmp_path):
    (tmp_path / SETTINGS_FILE).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(tmp_path, kind)


def test_given_settings_replace_those_of_the_file(tmp_path):
    (tmp_path / SETTINGS_FILE).write_text('{"stride": 7, "null_threshold": 1.0}')
    found = read_settings(tmp_path, "question_answering", stride=9, threshold=None)
    assert (found["stride"], found["null_threshold"]) == (9, 1.0)
    with pytest.raises(ConfigError, match="^stride=-1 must be at least 0$"):
        read_settings(tmp_path, "question_answering", stride=-1)
    with pytest.raises(ConfigError, match="threshold=0.5 does not apply to a model fi"):
        read_settings(tmp_path, "question_answering", threshold=0.5)


def write_card(tmp_path, kind, **more):
    setup = labelled.make_setup(tmp_path, kind=kind, **more)
    tuned_model.write_card(tmp_path, setup, {"tsv:dev.tsv": {"accuracy": 0.87654}})
    return (tmp_path / "README.md").read_text(), setup


def test_the_card_has_metrics_labels_and_config(tmp_path):
    card, setup = write_card(tmp_path, "classification")
    metadata = card.split("---\n")[1].splitlines()
    assert "library_name: transformers" in metadata
    assert "pipeline_tag: text-classification" in metadata
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "| `tsv:dev.tsv` | accuracy | 0.8765 |" in card
    assert "`against`, `for`" in card and "rows of up to 24 tokens" in card
    block = card.split("```json\n")[1].split("```")[0]
    assert json.loads(block) == json.loads(setup.config.to_json())


@pytest.mark.parametrize("kind", TASKS)
def test_the_card_names_a_transformers_class_and_how_pairs_are_truncated(
    kind, tmp_path
):
    card, _ = write_card(tmp_path, kind)
    assert ("longest_first" in card) == (kind in ("regression", "multiple_choice"))
    transformers = pytest.importorskip("transformers")
    (name,) = re.findall(r"import (AutoModel\w*), AutoTokenizer", card)
    assert hasattr(transformers, name)
