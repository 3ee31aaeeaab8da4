"""The best spans equal those of an exhaustive search."""

import numpy as np
import pytest

from bert_jax.finetuning.tasks import question as question_lib
from bert_jax.finetuning.tasks.question_data import Question, Questions
from tests.finetuning import tuned
from tests.finetuning.tasks.test_question_data import make_questions, of


def find(questions, features, logits, **changes):
    settings = {"num_best": 5, "max_answer_length": 4} | changes
    task = tuned.make_task("question_answering", **settings)
    return task.predict(questions, features, logits, ())


def search(questions, features, logits, max_answer_length):
    """Returns each question's spans as (score, text), best first, and null scores."""
    contexts = features.windows.max_context()
    spans, nulls = {}, {}
    for window in range(len(features)):
        question = questions.questions[features.windows.question_W[window]]
        paragraph = questions.paragraphs[question.paragraph]
        layout = features.rows.layout(np.array([window]))
        places = np.flatnonzero(layout.segment_ids_BT[0] == 1)[:-1]  # not [SEP]
        null = float(logits[window, 0].sum())
        nulls[question.id] = min(nulls.get(question.id, np.inf), null)
        for i, start in enumerate(places):
            if not contexts[window][i]:
                continue
            for end in places[i : i + max_answer_length]:
                score = float(logits[window, start, 0] + logits[window, end, 1])
                first = features.starts[layout.source_BT[0, start]]
                last = features.ends[layout.source_BT[0, end]]
                spans.setdefault(question.id, []).append((score, paragraph[first:last]))
    return {id_: sorted(found, reverse=True) for id_, found in spans.items()}, nulls


@pytest.mark.parametrize("has_impossible", [False, True])
def test_answers_are_the_best_spans(has_impossible):
    made = make_questions()
    questions = Questions(made.paragraphs, made.questions, has_impossible, 0, 0)
    features = of(questions, is_training=False)
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (len(features), 24, 2)).astype(np.float32)
    logits[:, 0] += 4
    found = find(questions, features, logits)
    spans, nulls = search(questions, features, logits, 4)
    said_none = 0
    for question in questions.questions:
        score, text = spans[question.id][0]
        assert found.not_empty[question.id] == text
        odds = nulls[question.id] - score
        np.testing.assert_allclose(found.null_odds[question.id], odds, atol=1e-5)
        expected = "" if has_impossible and odds > 0 else text
        assert found.texts[question.id] == expected
        said_none += expected == ""
        best = found.best[question.id]
        texts = [entry["text"] for entry in best]
        assert len(set(texts)) == len(texts) <= 5
        assert ("" in texts) <= has_impossible
        distinct = list(dict.fromkeys(text for _, text in spans[question.id]))
        assert [t for t in texts if t] == distinct[: len([t for t in texts if t])]
        scores = [entry["start_logit"] + entry["end_logit"] for entry in best]
        assert scores == sorted(scores, reverse=True)
        probabilities = [entry["probability"] for entry in best]
        np.testing.assert_allclose(sum(probabilities), 1)
        np.testing.assert_allclose(
            probabilities, np.exp(scores) / np.exp(scores).sum(), rtol=1e-5
        )
    assert (0 < said_none < len(questions.questions)) == has_impossible


def test_the_null_threshold_decides_between_answer_and_no_answer():
    made = make_questions(num=3)
    questions = Questions(made.paragraphs, made.questions, True, 0, 0)
    features = of(questions, is_training=False)
    logits = np.zeros((len(features), 24, 2), np.float32)
    for threshold, expected in ((-1.0, True), (0.0, False)):
        found = find(questions, features, logits, null_threshold=threshold)
        assert all((text == "") == expected for text in found.texts.values())


def test_answers_do_not_depend_on_the_chunk_size(monkeypatch):
    questions = make_questions()
    features = of(questions, is_training=False)
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (len(features), 24, 2)).astype(np.float32)
    expected = find(questions, features, logits)
    monkeypatch.setattr(question_lib, "_WINDOWS_AT_ONCE", 3)
    assert find(questions, features, logits) == expected


def test_an_empty_paragraph_has_no_answer():
    questions = Questions([""], [Question("q", "co", 0, (), False)], False, 0, 0)
    features = of(questions, is_training=False)
    found = find(questions, features, np.zeros((1, 24, 2), np.float32))
    assert found.texts == {"q": ""} and found.best["q"][0]["text"] == ""
    assert np.isfinite(found.null_odds["q"])
