"""Decision settings are stored with the model and restored."""

import dataclasses

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import thresholds
from tests.finetuning.test_config import config_dict


def task(name):
    return tasks_config.from_config_dict(config_dict(name)).task


def test_settings_of_questions_are_restored(tmp_path):
    settings = dataclasses.replace(task("squad2"), stride=7, null_threshold=-1.5)
    thresholds.write(tmp_path, settings, has_impossible=True)
    assert thresholds.read(tmp_path, "question_answering") == {
        "stride": 7,
        "max_query_length": 64,
        "max_answer_length": 30,
        "null_threshold": -1.5,
        "has_impossible": True,
    }


def test_settings_of_multi_label_are_restored(tmp_path):
    settings = dataclasses.replace(task("goemotions"), threshold=0.3)
    thresholds.write(tmp_path, settings, has_impossible=False)
    assert thresholds.read(tmp_path, "multi_label") == {
        "num_texts": 1,
        "threshold": 0.3,
    }


@pytest.mark.parametrize(
    ("name", "kind", "num_texts"),
    [
        ("sst2", "classification", 1),
        ("mnli", "classification", 2),
        ("stsb", "regression", 2),
    ],
)
def test_the_number_of_texts_is_restored(name, kind, num_texts, tmp_path):
    assert thresholds.read(tmp_path, kind) == {"num_texts": 0}  # unknown
    thresholds.write(tmp_path, task(name), has_impossible=False)
    assert thresholds.read(tmp_path, kind) == {"num_texts": num_texts}


def test_other_kinds_have_no_settings(tmp_path):
    thresholds.write(tmp_path, task("wnut17"), has_impossible=False)
    assert not list(tmp_path.iterdir())
    assert thresholds.read(tmp_path, "tagging") == {}


def test_a_model_without_the_file_has_the_released_defaults(tmp_path):
    found = thresholds.read(tmp_path, "question_answering")
    assert (found["stride"], found["has_impossible"]) == (0, False)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[]", "is not a JSON object"),
        ('{"stride": -1}', "stride=-1; it must be at least 0$"),
        ('{"max_query_length": 0}', "length=0; it must be at least 1$"),
        ('{"stride": "far"}', "stride is 'far'"),
        ('{"has_impossible": 2}', "has_impossible is 2"),
    ],
)
def test_a_corrupt_file_is_an_error(text, message, tmp_path):
    (tmp_path / thresholds.FILE).write_text(text)
    with pytest.raises(ConfigError, match=message):
        thresholds.read(tmp_path, "question_answering")


def test_given_settings_replace_those_of_the_file(tmp_path):
    (tmp_path / thresholds.FILE).write_text('{"stride": 7, "null_threshold": 1.0}')
    found = thresholds.read(tmp_path, "question_answering", stride=9, threshold=None)
    assert (found["stride"], found["null_threshold"]) == (9, 1.0)
    with pytest.raises(ConfigError, match="^stride=-1; it must be at least 0$"):
        thresholds.read(tmp_path, "question_answering", stride=-1)
    with pytest.raises(ConfigError, match="threshold=0.5 does not apply to a model fi"):
        thresholds.read(tmp_path, "question_answering", threshold=0.5)


def test_num_texts_out_of_range_is_an_error(tmp_path):
    (tmp_path / thresholds.FILE).write_text('{"num_texts": 3}')
    with pytest.raises(ConfigError, match="num_texts=3; it must be .* at most 2"):
        thresholds.read(tmp_path, "classification")
