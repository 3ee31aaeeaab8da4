"""Questions are read, and their windows equal those of the released code's loops."""

import json

import numpy as np
import pytest

from bert_jax.data.tokenizers import base, wordpiece
from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning.tasks import question_data
from bert_jax.finetuning.tasks.question import Answers
from bert_jax.finetuning.tasks.question_data import Answer, Question, Questions
from tests.finetuning.test_config import change

WORDS = tuple(f"{a}{b}" for a in "bcdfgh" for b in "aeiou")
VOCAB = (*base.SPECIAL_TOKENS, *WORDS, "##s", ",")
TOKENIZER = wordpiece.WordPiece(VOCAB, lowercase=True)
LENGTH, STRIDE, QUERY = 24, 5, 6


def make_questions(seed=0, num=12):
    random = np.random.default_rng(seed)
    paragraphs, questions = [], []
    for i in range(num):
        words = [
            random.choice(WORDS) + random.choice(["", "s", ",", "s,"])
            for _ in range(random.integers(1, 40))
        ]
        paragraphs.append(" ".join(words))
        for j in range(2):
            begin = random.integers(len(words))
            end = min(len(words), begin + random.integers(1, 5))
            text = " ".join(words[begin:end]).rstrip(",")
            start = len(" ".join(words[:begin])) + (begin > 0)
            query = " ".join(random.choice(WORDS, random.integers(1, 9)))
            answers = (Answer(text, start),)
            questions.append(Question(f"{i}-{j}", query, i, answers, False))
    return Questions(paragraphs, questions, False, 0, 0)


def of(questions, is_training=True):
    return question_data.from_questions(
        questions,
        TOKENIZER,
        length=LENGTH,
        stride=STRIDE,
        max_query_length=QUERY,
        is_training=is_training,
    )


def windows_of(num_tokens, room):
    """Returns the windows of the released code's loop."""
    spans, start = [], 0
    while True:
        length = min(num_tokens - start, room)
        spans.append((start, length))
        if start + length == num_tokens:
            return spans
        start += min(length, STRIDE)


def has_max_context(spans, window, token):
    """Returns whether a window has the best score, by the released code's loop."""
    best, best_window = None, None
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if start <= token <= end:
            score = min(token - start, end - token) + 0.01 * length
            if best is None or score > best:
                best, best_window = score, number
    return best_window == window


def test_windows_equal_those_of_the_released_loop():
    questions = make_questions()
    features = of(questions, is_training=False)
    encode = TOKENIZER.encoder()
    contexts = features.windows.max_context()
    window = 0
    for number, question in enumerate(questions.questions):
        query = encode([question.text])[0][:QUERY]
        tokens = encode([questions.paragraphs[question.paragraph]])[0]
        spans = windows_of(len(tokens), LENGTH - 3 - len(query))
        for i, (start, length) in enumerate(spans):
            cls, sep = TOKENIZER.id("[CLS]"), TOKENIZER.id("[SEP]")
            part = tokens[start : start + length]
            ids_T = features.batch(np.array([window]))["input_ids"][0]
            expected = [cls, *query, sep, *part, sep]
            assert ids_T.tolist() == expected + [0] * (len(ids_T) - len(expected))
            assert features.windows.question_W[window] == number
            assert contexts[window].tolist() == [
                has_max_context(spans, i, token)
                for token in range(start, start + length)
            ]
            window += 1
    assert window == len(features) > len(questions.questions)


@pytest.mark.parametrize("length", [16, 64])
def test_windows_of_short_rows_overlap_and_cover_all_tokens(length):
    config = tasks_config.from_config_dict(
        change("squad1", sequence_length=length, task__max_query_length=4)
    )
    words = ["ba"] * 500
    question = Question("q", "co da", 0, (), False)
    questions = Questions([" ".join(words)], [question], True, 0, 0)
    features = config.task.featurize(questions, (), TOKENIZER, length, "test")
    first_W, length_W = features.windows.first_W, features.windows.length_W
    overlap_W = (first_W + length_W)[:-1] - first_W[1:]
    assert first_W[0] == 0 and first_W[-1] + length_W[-1] == 500
    # The overlap is at least half of the room of 9 or 57 tokens.
    assert (overlap_W[:-1] >= (length - 7) // 2).all()


def test_answer_positions_are_those_of_the_text_or_of_cls():
    questions = make_questions(1)
    features = of(questions)
    batch = features.batch(np.arange(len(features)))
    layout = features.rows.layout(np.arange(len(features)))
    found = set()
    for window in range(len(features)):
        number = features.windows.question_W[window]
        question = questions.questions[number]
        start, end = (batch[f"{x}_positions"][window] for x in ("start", "end"))
        assert start <= end
        if end == 0:
            continue
        first = features.starts[layout.source_BT[window, start]]
        last = features.ends[layout.source_BT[window, end]]
        paragraph = questions.paragraphs[question.paragraph]
        assert paragraph[first:last] == question.answers[0].text
        assert first == question.answers[0].start
        found.add(number)
    assert found == set(range(len(questions.questions)))  # each is in some window
    assert features.num_dropped == 0
    assert (batch["start_positions"] == 0).any()  # but not in every window


def test_a_window_with_part_of_the_answer_has_no_answer():
    words = ["ba"] * 40
    answer = Answer("ba " * 6 + "ba", 3 * 12)  # tokens 12 to 18
    question = Question("q", "co", 0, (answer,), False)
    features = of(Questions([" ".join(words)], [question], False, 0, 0))
    first_W, length_W = features.windows.first_W, features.windows.length_W
    is_whole_W = (first_W <= 12) & (12 + 6 < first_W + length_W)
    np.testing.assert_array_equal(features.answers_W2[:, 0] > 0, is_whole_W)
    np.testing.assert_array_equal(
        features.answers_W2[is_whole_W, 1], 3 + 18 - first_W[is_whole_W]
    )
    assert is_whole_W.any() and not is_whole_W.all()


def test_impossible_questions_are_trained_on_and_lost_answers_dropped():
    questions = [
        Question("impossible", "co", 0, (), True),
        Question("lost", "co", 0, (Answer("da", None),), False),
        Question("hidden", "co", 0, (), False),
        Question("here", "co", 0, (Answer("da", None), Answer("ba", 0)), False),
    ]
    features = of(Questions(["ba be bi"], questions, True, 0, 1))
    assert features.num_dropped == 2 and len(features) == 2
    batch = features.batch(np.array([0, 1, -1]))
    assert batch["start_positions"].tolist() == [0, 3, 0]
    assert batch["end_positions"].tolist() == [0, 3, 0]
    assert batch["weights"].tolist() == [1, 1, 0]
    everything = of(Questions(["ba be bi"], questions, True, 0, 1), is_training=False)
    assert len(everything) == 4 and "start_positions" not in everything.batch(
        np.arange(4)
    )


@pytest.mark.parametrize("paragraph, query", [("", "co"), ("ba", ""), ("", "")])
def test_an_empty_paragraph_or_question_still_has_a_row(paragraph, query):
    question = Question("q", query, 0, (), False)
    features = of(Questions([paragraph], [question], False, 0, 0), is_training=False)
    batch = features.batch(np.array([0]))
    assert len(features) == 1 and batch["sequence_ids"][0, 0] == 1
    assert len(features.windows.max_context()[0]) == (1 if paragraph else 0)


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
    found = question_data.read(
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
    found = question_data.read(spec)
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
    found = question_data.read(write(tmp_path / "a.json", questions))
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
        question_data.read(f"squad:{path}")


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
    found = question_data.read(f"jsonl:{path}")
    assert found.paragraphs == [PARAGRAPH] and found.has_impossible
    assert found.questions[0].answers == (Answer("bridge", 8),)
    assert [q.is_impossible for q in found.questions] == [False, True]
    for row in rows:  # as Hugging Face's datasets write SQuAD 2.0
        del row["is_impossible"]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    inferred = question_data.read(f"jsonl:{path}")
    assert inferred.questions == found.questions and inferred.has_impossible
    path.write_text(json.dumps(rows[1]))  # a test set, which hides all answers
    assert not question_data.read(f"jsonl:{path}").has_impossible
    del rows[1]["answers"]
    path.write_text(json.dumps(rows[1]))
    with pytest.raises(ConfigError, match="has no column 'answers'"):
        question_data.read(f"jsonl:{path}")
    assert len(question_data.read(f"jsonl:{path}", role="test").questions) == 1
    row = '{"id": "1", "question": "What?", "context": "x", "answers": %s}'
    for answers in ('{"text": ["a", "b"], "answer_start": [1]}', '["a"]'):
        path.write_text(row % answers)
        with pytest.raises(ConfigError, match="is not in SQuAD format"):
            question_data.read(f"jsonl:{path}")


def test_predictions_are_written_as_the_leaderboard_reads_them(tmp_path):
    best = [{"text": "x", "probability": 1.0, "start_logit": 2.0, "end_logit": 1.0}]
    answers = Answers({"q": "caf\u00e9"}, {"q": "x"}, {"q": best}, {"q": -1.5})
    Questions([], [], False, 0, 0).write(tmp_path, answers, ())
    assert {p.name: json.loads(p.read_text()) for p in tmp_path.iterdir()} == {
        "predictions.json": {"q": "caf\u00e9"},
        "nbest_predictions.json": {"q": best},
        "null_odds.json": {"q": -1.5},
    }
