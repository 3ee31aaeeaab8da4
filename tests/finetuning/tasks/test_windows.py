"""Windows, answer positions and contexts equal those of the released code's loops."""

import numpy as np
import pytest

from bert_jax.data.tokenizers import wordpiece
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning.data.squad import Answer, Question, Questions
from bert_jax.finetuning.tasks import windows as windows_lib
from tests.finetuning.test_config import change

WORDS = tuple(f"{a}{b}" for a in "bcdfgh" for b in "aeiou")
VOCAB = (*wordpiece.SPECIAL_TOKENS, *WORDS, "##s", ",")
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
    return windows_lib.from_questions(
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
    np.testing.assert_array_equal(features.start_positions_W > 0, is_whole_W)
    np.testing.assert_array_equal(
        features.end_positions_W[is_whole_W], 3 + 18 - first_W[is_whole_W]
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
