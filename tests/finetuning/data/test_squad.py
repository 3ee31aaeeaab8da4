"""Questions are read from SQuAD's JSON, and wrong answer offsets are corrected."""

import json

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import squad
from bert_jax.finetuning.data.squad import Answer

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
        ("[]", r"is not in SQuAD format \(TypeError"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "KeyError: 'qas'"),
        ('{"data": []}', "has no questions"),
        (
            '{"data": [{"paragraphs": [{"context": null, "qas": [{"id": "1"}]}]}]}',
            "context is None",
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
    for answers in ("[]", '{"text": ["a", "b"], "answer_start": [1]}'):
        path.write_text(row % answers)
        with pytest.raises(ConfigError, match="is not in SQuAD format"):
            squad.read(f"jsonl:{path}")


def test_duplicate_question_ids_are_an_error(tmp_path):
    spec = write(tmp_path / "a.json", [ask("1"), ask("2")])
    squad.check_ids(squad.read(spec), spec)
    spec = write(tmp_path / "a.json", [ask("1"), ask("2"), ask("1")])
    with pytest.raises(ConfigError, match="has 2 questions with the id '1'"):
        squad.check_ids(squad.read(spec), spec)
