"""Prediction files have the formats that leaderboards and conlleval read."""

import json

import numpy as np

from bert_jax.finetuning import predictions
from bert_jax.finetuning.answers import Answers
from bert_jax.finetuning.data.conll import Sentences


def test_glue(tmp_path):
    names = ("entailment", "not_entailment")
    index = np.array([1, 0])
    predicted = np.array([0, 1])
    path = predictions.write_glue(tmp_path, "rte", predicted, names, index)
    assert path == tmp_path / "RTE.tsv"
    assert path.read_bytes() == (
        b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    )
    path = predictions.write_glue(tmp_path, "sst2", predicted, names, index)
    assert path.read_text() == "index\tprediction\n0\t1\n1\t0\n"
    scores = np.array([-0.2, 3.14159, 5.6], np.float32)
    path = predictions.write_glue(tmp_path, "stsb", scores, ("score",), np.arange(3))
    assert path.read_text().splitlines()[1:] == ["0\t0.000", "1\t3.142", "2\t5.000"]


def test_squad(tmp_path):
    best = [{"text": "x", "probability": 1.0, "start_logit": 2.0, "end_logit": 1.0}]
    answers = Answers({"q": "caf\u00e9"}, {"q": "x"}, {"q": best}, {"q": -1.5})
    predictions.write_squad(tmp_path, answers)
    found = {p.name: json.loads(p.read_text()) for p in tmp_path.iterdir()}
    assert found == {
        "predictions.json": {"q": "caf\u00e9"},
        "nbest_predictions.json": {"q": best},
        "null_odds.json": {"q": -1.5},
    }


def test_conll(tmp_path):
    path = tmp_path / "a.conll"
    words, tags = [["old", "Rome"], ["x"]], [["O", "B-loc"], ["O"]]
    predicted = [["O", "B-per"], ["B-loc"]]
    predictions.write_conll(path, Sentences("a", words, tags), predicted)
    assert path.read_text() == "old O O\nRome B-loc B-per\n\nx O B-loc\n\n"
    predictions.write_conll(path, Sentences("a", words, None), predicted)
    assert path.read_text() == "old O\nRome B-per\n\nx B-loc\n\n"


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a\nb\u2028", "label": "yes"}, {"text": "caf\u00e9"}]
    predictions.write_json_lines(path, rows)
    lines = path.read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == rows and lines[-1] == ""
