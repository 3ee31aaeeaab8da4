"""Runs every kind of task from file to metrics and predictions, with an oracle.

Rows of weight 0 do not contribute to losses.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.tokenizers import base, wordpiece
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning.tasks import TASKS
from bert_jax.finetuning.tasks.base import Texts
from bert_jax.model.heads import Outputs
from tests.finetuning import tuned
from tests.finetuning.test_config import change

LETTERS = "abcdefgh"
TOKENIZER = wordpiece.WordPiece((*base.SPECIAL_TOKENS, *LETTERS), lowercase=True)
ANSWER = {"text": "b c", "answer_start": 2}
QUESTIONS = [
    {"id": "1", "question": "f", "answers": [ANSWER]},
    {"id": "2", "question": "g", "answers": [], "is_impossible": True},
]
SQUAD = {"data": [{"paragraphs": [{"context": "a b c d e", "qas": QUESTIONS}]}]}
FILES = {
    "sst2": "sentence\tlabel\tidx\na b\tpositive\t1\nc\tnegative\t0\nd e\t1\t2\n",
    "stsb": "sentence1\tsentence2\tlabel\tidx\na\tb\t5\t0\nc\td\t1.5\t1\ne\tf\t3\t2\n",
    "goemotions": "a\t0,2\tx\nb\t1\ty\nc\t27\tz\n",
    "codah": "o\ta b\tc\td\te\tf\t2\no\tb\tc\td\te\tf\t0\no\tb\tc\td\te\tf\t3\n",
    "wnut17": "a\tO\nb\tB-loc\nc\tI-loc\n\nd\tB-per\n",
    "squad2": json.dumps(SQUAD),
}
PREFIX = {"wnut17": "conll", "squad2": "squad"}


def label_names(config):
    _, names = config.task.read(config.data.train, config.data.header, (), "train")
    return names


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
    names = label_names(config)
    found, _ = config.task.read(spec, header, names, "dev")
    for_training, features = (
        config.task.featurize(found, names, TOKENIZER, 96, role)
        for role in ("train", "dev")
    )
    batch = for_training.batch(np.arange(len(features)))
    logits = oracle(kind, batch, names).astype(np.float32)
    total, count = config.task.loss(Outputs(logits, []), batch)
    assert float(total / count) < 1e-2 and float(count) > 0
    predicted = config.task.predict(found, features, logits, names)
    scores = config.task.evaluate(found, predicted, names)
    best = 100.0 if kind == "question_answering" else 1.0
    micro = "micro_f1" if kind == "multi_label" else config.metric
    assert scores[micro] == pytest.approx(best)
    opposite = config.task.predict(found, features, -logits, names)
    worst = config.task.evaluate(found, opposite, names)
    assert worst[micro] < 0.6 * best

    found.write(tmp_path, predicted, names)
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
    names = label_names(config)
    assert names == ("O", "B-loc", "I-loc", "B-per", "I-per")
    path = tmp_path / "data"
    path.write_text(FILES["sst2"])
    changes = {"data__train": f"tsv:{path}", "task__labels": ()}
    config = tasks_config.from_config_dict(change("sst2", **changes))
    assert set(label_names(config)) == {"1", "negative", "positive"}


def test_a_test_set_has_no_labels_and_is_written_in_glues_order(tmp_path):
    config, spec = load("sst2", tmp_path)
    names = config.task.labels
    found, _ = config.task.read(spec, (), names, "test")
    features = config.task.featurize(found, names, TOKENIZER, 16, "test")
    assert "labels" not in features.batch(np.arange(3))
    logits = np.array([[0, 1], [1, 0], [0, 1]])
    predicted = config.task.predict(found, features, logits, names)
    config.task.write_submission(tmp_path, 0, found, predicted, names)
    lines = (tmp_path / "SST-2.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", "0\t0", "1\t1", "2\t1"]
    task = tuned.make_task("regression", glue=("stsb",))
    scores = np.array([-0.2, 3.14159, 5.6], np.float32)
    texts = Texts(list("abc"), None, None, np.array([0, 2, 1]))
    task.write_submission(tmp_path, 0, texts, scores, ("score",))
    lines = (tmp_path / "STS-B.tsv").read_text().splitlines()[1:]
    assert lines == ["0\t0.000", "1\t5.000", "2\t3.142"]


def log_softmax(x):
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def expected_of(kind, logits, batch):
    """Returns the terms of the sum, one for each counted item."""
    terms = []
    for row, weight in enumerate(batch["weights"]):
        if not weight:
            continue
        if kind == "regression":
            terms.append((logits[row, 0] - batch["labels"][row]) ** 2)
        elif kind == "multi_label":
            p = 1 / (1 + np.exp(-logits[row]))
            y = batch["labels"][row]
            terms += list(-y * np.log(p) - (1 - y) * np.log(1 - p))
        elif kind == "tagging":
            for place, label in enumerate(batch["labels"][row]):
                if label != -100:
                    terms.append(-log_softmax(logits[row, place])[label])
        elif kind == "question_answering":
            start, end = log_softmax(logits[row].T)
            ends = batch["start_positions"][row], batch["end_positions"][row]
            terms.append(-(start[ends[0]] + end[ends[1]]) / 2)
        elif kind == "similarity":
            terms.append((logits[row] - batch["labels"][row]) ** 2)
        else:
            terms.append(-log_softmax(logits[row])[batch["labels"][row]])
    return terms


@pytest.mark.parametrize("kind", TASKS)
def test_losses_equal_those_of_a_loop_over_examples(kind):
    batch = tuned.make_batch(kind)
    batch["weights"][1] = 0.0
    shape = {
        "regression": (4, 1),
        "similarity": (4,),
        "tagging": (4, 16, 3),
        "question_answering": (4, 16, 2),
    }.get(kind, (4, 3))
    logits = np.random.default_rng(0).normal(0, 2, shape).astype(np.float32)
    outputs = Outputs(jnp.asarray(logits), [])
    total, count = jax.jit(tuned.make_task(kind).loss)(outputs, batch)
    terms = expected_of(kind, logits.astype(np.float64), batch)
    assert float(count) == len(terms)
    np.testing.assert_allclose(float(total), sum(terms), rtol=1e-5)


def test_multi_label_is_precise_at_large_logits():
    batch = {"labels": jnp.array([[1.0, 0.0]]), "weights": jnp.ones(1)}
    outputs = Outputs(jnp.array([[-200.0, 300.0]]), [])
    assert float(tuned.make_task("multi_label").loss(outputs, batch)[0]) == 500.0
