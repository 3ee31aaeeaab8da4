"""Every fine-tuning config loads, and invalid values raise one-line errors."""

import importlib
import pathlib

import ml_collections
import pytest

from bert_jax import config as config_lib
from bert_jax.configs import finetune, tiny
from bert_jax.configs.finetune import glue
from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config

DIRECTORY = pathlib.Path(next(iter(finetune.__path__)))
FILES = {path.stem for path in DIRECTORY.glob("[a-z]*.py")} - {"recipe"}
NAMES = sorted(FILES - {"glue"} | glue.TASKS.keys())
KINDS = {
    "stsb": "regression",
    "goemotions": "multi_label",
    "conll": "tagging",
    "wnut17": "tagging",
    "squad1": "question_answering",
    "squad2": "question_answering",
    "swag": "multiple_choice",
    "codah": "multiple_choice",
    "similarity": "similarity",
}


def config_dict(name) -> ml_collections.ConfigDict:
    """Returns the config of a file of configs/finetune, or of a GLUE task."""
    if name in glue.TASKS:
        return glue.get_config(name)
    return importlib.import_module(f"bert_jax.configs.finetune.{name}").get_config()


@pytest.mark.parametrize("name", NAMES)
def test_every_file_loads(name):
    config = tasks_config.from_config_dict(config_dict(name))
    assert config.task.kind == KINDS.get(name, "classification")
    assert config.recipe.learning_rate in (5e-5, 4e-5, 3e-5, 2e-5)
    is_question = config.task.kind == "question_answering"
    assert config.dropout.head_prob == (0.0 if is_question else 0.1)
    assert config.sequence_length == (384 if is_question else 128)


@pytest.mark.parametrize("name", ["", "imdb"])
def test_unknown_glue_task_is_an_error(name):
    with pytest.raises(ConfigError, match=f"'{name}' is not a GLUE task.*cola, mnli"):
        glue.get_config(name)


def change(name, **changes):
    config = config_dict(name)
    flat = {key.replace("__", "."): value for key, value in changes.items()}
    config.update_from_flattened_dict(flat)
    return config


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("sst2", {"task__kind": "guessing"}, "config.task.kind='guessing' must be one"),
        ("sst2", {"metric": "pearson"}, "config.metric='pearson' must be one of acc"),
        ("sst2", {"task__labels": ("a", "b", "a")}, "labels=.* duplicate name"),
        (
            "sst2",
            {"task__label": "sentence"},
            "config.task.label='sentence' must be an",
        ),
        ("stsb", {"task__labels": ("a", "b")}, "config.task.labels=.* at most one"),
        ("sst2", {"task__glue": ("cola", "mrpc")}, "config.task.glue=.* must be empty"),
        ("sst2", {"task__glue": ("imdb",)}, "config.task.glue=.* must be empty"),
        ("squad1", {"sequence_length": 67}, "max_query_length=64 leaves no room"),
        ("squad1", {"task__stride": 318}, "stride=318 leaves gaps .* 317 tokens"),
        (
            "similarity",
            {"task__positives": ("a", "b"), "accumulation_steps": 2},
            "config.accumulation_steps=2 must be 1",
        ),
        (
            "similarity",
            {
                "task__positives": ("a",),
                "dropout__hidden_prob": 0.0,
                "dropout__attention_prob": 0.0,
            },
            "config.dropout.hidden_prob=0.0 must be above 0",
        ),
        ("sst2", {"distill__states_weight": 1.0}, "config.distill.teacher='' must"),
    ],
)
def test_invalid_values_are_errors(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        tasks_config.from_config_dict(change(name, **changes))


@pytest.mark.parametrize(
    ("length", "stride", "expected"),
    [(384, 0, 128), (512, 0, 128), (128, 0, 30), (69, 0, 1), (384, 317, 317)],
)
def test_default_stride_is_half_of_the_room_up_to_128(length, stride, expected):
    config = tasks_config.from_config_dict(
        change("squad1", sequence_length=length, task__stride=stride)
    )
    assert config.task.window_stride(length) == expected


def test_a_config_of_the_other_command_is_an_error():
    with pytest.raises(ConfigError, match="--config is a pretraining .*configs/fine"):
        tasks_config.from_config_dict(tiny.get_config())
    with pytest.raises(ConfigError, match="--config is a fine-tuning config"):
        config_lib.from_config_dict(config_dict("sst2"))
