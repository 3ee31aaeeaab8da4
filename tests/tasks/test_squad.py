"""Questions of SQuAD's JSON; offsets are believed only where the text stands there."""

import json

import pytest

from bert_jax.config import ConfigError
from bert_jax.tasks import squad
from bert_jax.tasks.squad import Answer

PARAGRAPH = "The old bridge crosses the river. " * 8 + "A new bridge is planned."


def write(path, questions, context=PARAGRAPH):
    paragraphs = [{"context": context, "qas": questions}]
    content = {"version": "1.1", "data": [{"title": "x", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content))
    return str(path)


def ask(id_, *answers, **more):
    return {
        "id": id_,
        "question": " What? ",
        "answers": [{"text": t, "answer_start": s} for t, s in answers],
    } | more


def test_answers_right_off_and_lost(tmp_path):
    far = PARAGRAPH.index("planned")
    found = squad.read(
        write(
            tmp_path / "a.json",
            [
                ask("right", ("bridge", 8)),
                ask("off", ("bridge", 11), ("bridge", 44)),
                ask("spaces", (" bridge ", 7)),
                ask("lost", ("tunnel", 8), ("planned", far - 150), ("", 3)),
            ],
        )
    )
    answers = [question.answers for question in found.questions]
    assert answers[0] == (Answer("bridge", 8),)
    # The nearest of several.
    assert answers[1] == (Answer("bridge", 8), Answer("bridge", 42))
    assert answers[2] == (Answer("bridge", 8),)
    assert [answer.start for answer in answers[3]] == [None, None, None]
    assert (found.num_mended, found.num_lost) == (2, 3)
    assert found.questions[0].text == "What?" and not found.has_impossible


def test_impossible_questions_have_no_answers(tmp_path):
    impossible = ask("no", ("bridge", 8), is_impossible=True)
    found = squad.read(write(tmp_path / "a.json", [ask("yes"), impossible]))
    assert found.has_impossible
    assert [q.answers for q in found.questions] == [(), ()]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not JSON"),
        ("[]", "is no SQuAD JSON"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "KeyError: 'qas'"),
        ('{"data": []}', "has no questions"),
    ],
)
def test_mistakes(text, message, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        squad.read(str(path))
