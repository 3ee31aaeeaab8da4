"""Texts and choices are converted to batches; a model keeps its settings."""

import dataclasses

import numpy as np
import pytest

from bert_jax.data.tokenizers import base, wordpiece
from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning.tasks import TASKS, similarity
from bert_jax.finetuning.tasks.base import SETTINGS_FILE, Texts
from bert_jax.finetuning.tasks.choice import Choices
from bert_jax.finetuning.tasks.question_data import Questions
from bert_jax.finetuning.tasks.text import text_features
from tests.finetuning import tuned
from tests.finetuning.test_config import config_dict

LETTERS = tuple("abcdefgh")
TOKENIZER = wordpiece.WordPiece((*base.SPECIAL_TOKENS, *LETTERS), lowercase=True)


def shown(ids_T):
    names = {0: "", 1: "?", 2: "<", 3: "|"}
    return "".join(names.get(i, TOKENIZER.vocab[i]) for i in ids_T)


def test_single_texts_are_truncated_at_the_end():
    texts, labels = ["a b", "", "a b c d e f g h"], np.array([1, 0, 1], np.int32)
    features = text_features(texts, None, labels, TOKENIZER, 6)
    batch = features.batch(np.array([2, 0, 1, -1]))
    rows = [shown(ids) for ids in batch["input_ids"]]
    assert rows == ["<abcd|", "<ab|", "<|", "<ab|"]
    assert batch["labels"].tolist() == [1, 1, 0, 1]
    assert batch["weights"].tolist() == [1, 1, 1, 0]
    assert batch["weights"].dtype == np.float32
    assert (len(features), features.num_truncated) == (3, 1)


def test_pairs_are_truncated_in_the_longer_text():
    a, b = ["a b c d e", "a", "a b", "a b"], ["h g", "h g f e d", "", "h g f"]
    features = text_features(a, b, None, TOKENIZER, 8)
    batch = features.batch(np.arange(4))
    rows = [shown(ids) for ids in batch["input_ids"]]
    assert rows == ["<abc|hg|", "<a|hgfe|", "<ab|", "<ab|hgf|"]
    assert batch["segment_ids"][0].tolist() == [0] * 5 + [1] * 3
    assert not batch["segment_ids"][2].any()
    assert "labels" not in batch and features.num_truncated == 2


def test_choices_are_consecutive_rows_of_an_example():
    choices = Choices(
        ["a b", "c"], [["h", "g f"], ["e", "d"]], np.array([1, 0], np.int32)
    )
    features = tuned.make_task("multiple_choice").featurize(
        choices, (), TOKENIZER, 8, "train"
    )
    assert len(features) == 2
    batch = features.batch(np.array([1, 0, -1]))
    assert batch["input_ids"].shape == (3, 2, 8)
    rows = [[shown(ids) for ids in example] for example in batch["input_ids"]]
    assert rows[:2] == [["<c|e|", "<c|d|"], ["<ab|h|", "<ab|gf|"]]
    assert batch["labels"].tolist() == [0, 1, 1]
    assert batch["weights"].tolist() == [1, 1, 0]


def test_separate_texts_of_a_pair_are_rows_of_their_own():
    texts = Texts(["a b", "c"], ["h", "e d f"], np.array([0.5, 1], np.float32), None)
    features = similarity.separate_rows(texts, TOKENIZER, 4)
    assert (len(features), features.num_truncated) == (2, 1)
    batch = features.batch(np.array([1, 0, -1]))
    rows = [[shown(ids) for ids in example] for example in batch["input_ids"]]
    assert rows[:2] == [["<c|", "<ed|"], ["<ab|", "<h|"]]
    assert not batch["segment_ids"].any()
    assert batch["labels"].tolist() == [1.0, 0.5, 0.5]
    assert batch["weights"].tolist() == [1, 1, 0]


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
    assert task.read_settings(tmp_path) == before
    assert type(task).of_model((), before, 1).kind == task.kind
    task.write_settings(tmp_path, SQUAD2)
    assert task.read_settings(tmp_path) == settings
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
        TASKS[kind].read_settings(tmp_path)


def test_given_settings_replace_those_of_the_file(tmp_path):
    (tmp_path / SETTINGS_FILE).write_text('{"stride": 7, "null_threshold": 1.0}')
    read = TASKS["question_answering"].read_settings
    found = read(tmp_path, stride=9, threshold=None)
    assert (found["stride"], found["null_threshold"]) == (9, 1.0)
    with pytest.raises(ConfigError, match="^stride=-1 must be at least 0$"):
        read(tmp_path, stride=-1)
    with pytest.raises(ConfigError, match="threshold=0.5 does not apply to a model fi"):
        read(tmp_path, threshold=0.5)
