"""Runs every kind of task from file to metrics and predictions, with an oracle."""

import json

import numpy as np
import pytest

from bert_jax.data.tokenizers import wordpiece
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import losses, task
from tests.finetuning.test_config import change

LETTERS = "abcdefgh"
TOKENIZER = wordpiece.WordPiece((*wordpiece.SPECIAL_TOKENS, *LETTERS), lowercase=True)
QUESTION = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "a b c d e",
                    "qas": [
                        {
                            "id": "1",
                            "question": "f",
                            "answers": [{"text": "b c", "answer_start": 2}],
                        },
                        {"id": "2", "question": "g", "answers": []},
                    ],
                }
            ]
        }
    ]
}
QUESTION["data"][0]["paragraphs"][0]["qas"][1]["is_impossible"] = True
FILES = {
    "sst2": "sentence\tlabel\tidx\na b\tpositive\t1\nc\tnegative\t0\nd e\t1\t2\n",
    "stsb": "sentence1\tsentence2\tlabel\tidx\na\tb\t5\t0\nc\td\t1.5\t1\ne\tf\t3\t2\n",
    "goemotions": "a\t0,2\tx\nb\t1\ty\nc\t27\tz\n",
    "codah": "o\ta b\tc\td\te\tf\t2\no\tb\tc\td\te\tf\t0\no\tb\tc\td\te\tf\t3\n",
    "wnut17": "a\tO\nb\tB-loc\nc\tI-loc\n\nd\tB-per\n",
    "squad2": json.dumps(QUESTION),
}
PREFIX = {"wnut17": "conll", "squad2": "squad"}


def oracle(kind, batch, names):
    """Returns logits computed from the labels."""
    if kind == "regression":
        return batch["labels"][:, None]
    if kind == "multi_label":
        return 20 * batch["labels"] - 10
    if kind == "question_answering":
        B, T = batch["input_ids"].shape
        places = np.stack([batch["start_positions"], batch["end_positions"]], axis=1)
        return 10.0 * (np.arange(T)[None, :, None] == places[:, None])
    size = 4 if kind == "multiple_choice" else len(names)
    return 10.0 * (np.arange(size) == batch["labels"][..., None])


def load(name, tmp_path):
    path = tmp_path / "data"
    path.write_text(FILES[name])
    spec = f"{PREFIX.get(name, 'tsv')}:{path}"
    config = tasks_config.from_config_dict(change(name, data__train=spec))
    return config, spec


@pytest.mark.parametrize("name", FILES)
def test_an_oracle_scores_highest_and_its_opposite_lowest(name, tmp_path):
    config, spec = load(name, tmp_path)
    kind, header = config.task.kind, config.data.header
    names = task.label_names(config.task, config.data)
    found = task.read(config.task, spec, header, names, has_labels=True)
    for_training, features = (
        task.featurize(config.task, found, names, TOKENIZER, 96, is_training=training)
        for training in (True, False)
    )
    batch = for_training.batch(np.arange(len(features)))
    logits = oracle(kind, batch, names).astype(np.float32)
    total, count = losses.LOSSES[kind](logits, batch)
    assert float(total / count) < 1e-2 and float(count) > 0
    predicted = task.predict(config.task, found, features, logits, names)
    scores = task.evaluate(config.task, found, predicted, names)
    best = 100.0 if kind == "question_answering" else 1.0
    micro = "micro_f1" if kind == "multi_label" else config.metric
    assert scores[micro] == pytest.approx(best)
    opposite = task.predict(config.task, found, features, -logits, names)
    worst = task.evaluate(config.task, found, opposite, names)
    assert worst[micro] < 0.6 * best

    task.write_predictions(config.task, found, predicted, names, tmp_path)
    written = {p.name: p.read_text() for p in tmp_path.iterdir() if p.name != "data"}
    expected = {
        "sst2": {"text": "a b", "label": "positive"},
        "stsb": {"text": "a", "pair": "b", "label": 5.0},
        "goemotions": {"text": "a", "label": ["admiration", "anger"]},
        "codah": {"text": "a b", "choice": 2, "chosen": "e"},
    }
    if name in expected:
        (lines,) = written.values()
        assert json.loads(lines.splitlines()[0]) == expected[name]
        assert lines.count("\n") == 3
    elif name == "wnut17":
        (lines,) = written.values()
        assert lines == "a O O\nb B-loc B-loc\nc I-loc I-loc\n\nd B-per B-per\n\n"
    else:
        assert json.loads(written["predictions.json"]) == {"1": "b c", "2": ""}
        assert len(written) == 3


def test_label_names_default_to_those_of_the_training_set(tmp_path):
    config, _ = load("wnut17", tmp_path)
    names = task.label_names(config.task, config.data)
    assert names == ("O", "B-loc", "I-loc", "B-per", "I-per")
    (tmp_path / "b").mkdir()
    path = tmp_path / "data"
    path.write_text(FILES["sst2"])
    changes = {"data__train": f"tsv:{path}", "task__labels": ()}
    config = tasks_config.from_config_dict(change("sst2", **changes))
    assert set(task.label_names(config.task, config.data)) == {
        "1",
        "negative",
        "positive",
    }


def test_a_test_set_has_no_labels_and_is_written_in_glues_order(tmp_path):
    config, spec = load("sst2", tmp_path)
    names = config.task.labels
    found = task.read(config.task, spec, (), names, has_labels=False)
    features = task.featurize(
        config.task, found, names, TOKENIZER, 16, is_training=False
    )
    assert "labels" not in features.batch(np.arange(3))
    logits = np.array([[0, 1], [1, 0], [0, 1]])
    predicted = task.predict(config.task, found, features, logits, names)
    task.write_predictions(config.task, found, predicted, names, tmp_path, glue="sst2")
    lines = (tmp_path / "SST-2.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\t0", "1\t1", "2\t1"]
