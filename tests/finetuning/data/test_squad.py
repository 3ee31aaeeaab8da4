"""Questions are read from SQuAD's JSON, and wrong answer offsets are corrected."""

import json

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import squad
from bert_jax.finetuning.data.squad import Answer
from bert_jax.finetuning.tasks.question import Answers

PARAGRAPH = "The old bridge crosses the river. " * 8 + "A new bridge is planned."


def write(path, questions, context=PARAGRAPH):
    paragraphs = [{"context": context, "qas": questions}]
    content = {"version": "1.1", "data": [{"title": "x", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content))
    return f"squad:{path}"


def ask(id_, *answers, **more):
    return {
        "id": id_,
        "question": " What? ",
        "answers": [{"text": t, "answer_start": s} for t, s in answers],
    } | more


def test_answers_with_correct_shifted_and_lost_offsets(tmp_path):
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
    # The nearest of several occurrences is used.
    assert answers[1] == (Answer("bridge", 8), Answer("bridge", 42))
    assert answers[2] == (Answer("bridge", 8),)
    assert [answer.start for answer in answers[3]] == [None, None]
    assert (found.num_mended, found.num_lost) == (2, 2)
    assert found.questions[0].text == "What?" and not found.has_impossible


@pytest.mark.parametrize(
    "context, text, start, expected",
    [
        ("on  the\nred mat .", "the red mat", 4, Answer("the\nred mat", 4)),
        ("on  the red mat .", "on the", 0, Answer("on  the", 0)),
        ("on the red mat .", "on\xa0 the", 0, Answer("on the", 0)),
        ("die mo\u0308chte", "m\xf6chte", 4, Answer("mo\u0308chte", 4)),
        ("die m\xf6chte Tu\u0308r", "T\xfcr", 11, Answer("Tu\u0308r", 11)),
        ("die m\xf6chte", "mo\u0308chte", 1, Answer("m\xf6chte", 4)),
        ("mo\u0308 mo", "mo", 1, Answer("mo", 4)),
    ],
)
def test_white_space_and_normal_form_of_an_answer_may_differ(
    tmp_path, context, text, start, expected
):
    spec = write(tmp_path / "a.json", [ask("1", (text, start))], context)
    found = squad.read(spec)
    assert found.questions[0].answers == (expected,) and not found.num_lost
    assert found.num_mended == (expected.start != start)
    assert context[expected.start :].startswith(expected.text)


@pytest.mark.parametrize(
    "more, is_impossible",
    [
        ({"is_impossible": "false"}, False),
        ({"is_impossible": "True"}, True),
        ({"is_impossible": 0}, False),
        ({"is_impossible": False, "answers": []}, False),
        ({"is_impossible": True}, True),  # its "plausible" answers are not answers
        ({"answers": []}, True),
        ({"answers": None}, True),
        ({"answers": [{"text": "", "answer_start": -1}]}, True),
        ({"answers": {"text": [], "answer_start": []}}, True),
        ({"answers": {"text": ["bridge"], "answer_start": [8]}}, False),
    ],
)
def test_a_question_is_impossible_by_its_mark_or_without_an_answer(
    tmp_path, more, is_impossible
):
    questions = [ask("1", ("bridge", 8)), ask("2", ("bridge", 8)) | more]
    found = squad.read(write(tmp_path / "a.json", questions))
    assert found.questions[1].is_impossible == is_impossible
    assert not (is_impossible and found.questions[1].answers)
    assert found.has_impossible == is_impossible and not found.num_lost


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is not JSON"),
        ("[]", r"is not in SQuAD format \(TypeError"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "KeyError: 'qas'"),
        ('{"data": []}', "has no questions"),
        (
            '{"data": [{"paragraphs": [{"context": null, "qas": [{"id": "1"}]}]}]}',
            "context is None",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "7", "question":'
            ' "x", "answers": [], "is_impossible": "maybe"}]}]}]}',
            "question '7' has is_impossible='maybe'; it must be true or false",
        ),
    ],
)
def test_invalid_files_are_errors(text, message, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        squad.read(f"squad:{path}")


def test_a_table_with_the_same_columns(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"id": "1", "question": "What?", "context": PARAGRAPH},
        {"id": "2", "question": "Who?", "context": PARAGRAPH},
    ]
    rows[0] |= {"answers": {"text": ["bridge"], "answer_start": [8]}}
    rows[1] |= {"answers": {"text": [], "answer_start": []}}
    for i, row in enumerate(rows):
        row["is_impossible"] = bool(i)
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = squad.read(f"jsonl:{path}")
    assert found.paragraphs == [PARAGRAPH] and found.has_impossible
    assert found.questions[0].answers == (Answer("bridge", 8),)
    assert [q.is_impossible for q in found.questions] == [False, True]
    for row in rows:  # as Hugging Face's datasets write SQuAD 2.0
        del row["is_impossible"]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    inferred = squad.read(f"jsonl:{path}")
    assert inferred.questions == found.questions and inferred.has_impossible
    path.write_text(json.dumps(rows[1]))  # a test set, which hides all answers
    assert not squad.read(f"jsonl:{path}").has_impossible
    row = '{"id": "1", "question": "What?", "context": "x", "answers": %s}'
    for answers in ('{"text": ["a", "b"], "answer_start": [1]}', '["a"]'):
        path.write_text(row % answers)
        with pytest.raises(ConfigError, match="is not in SQuAD format"):
            squad.read(f"jsonl:{path}")


def test_predictions_are_written_as_the_leaderboard_reads_them(tmp_path):
    best = [{"text": "x", "probability": 1.0, "start_logit": 2.0, "end_logit": 1.0}]
    answers = Answers({"q": "caf\u00e9"}, {"q": "x"}, {"q": best}, {"q": -1.5})
    squad.Questions([], [], False, 0, 0).write(tmp_path, answers, ())
    assert {p.name: json.loads(p.read_text()) for p in tmp_path.iterdir()} == {
        "predictions.json": {"q": "caf\u00e9"},
        "nbest_predictions.json": {"q": best},
        "null_odds.json": {"q": -1.5},
    }
