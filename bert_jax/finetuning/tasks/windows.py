"""Converts questions about paragraphs to windows of token ids with answer positions.

A paragraph that is too long for a row is split into overlapping windows. In windows
that do not contain the answer, the answer position is [CLS].

Source: google-research/bert run_squad.py, which locates answers by words; this module
locates them by characters.

Shapes: Q question, W window, B window of the batch, T token.
"""

import dataclasses

import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.base import Located
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning.data.squad import Question, Questions
from bert_jax.finetuning.tasks.base import Features


@dataclasses.dataclass(frozen=True)
class Windows:
    """Positions of windows in their paragraphs."""

    question_W: np.ndarray  # int64, index of the window's question
    first_W: np.ndarray  # int64, index of the window's first token in the paragraph
    length_W: np.ndarray  # int64, number of paragraph tokens in the window

    def max_context(self) -> list[np.ndarray]:
        """Returns for each window which tokens have maximum context in it, as bools.

        A token that is in several windows has maximum context in one of them: the one
        with the largest min(tokens to the left, tokens to the right) + 0.01 * length,
        and the first of these if several are equal.
        """
        sizes = self.length_W
        window = np.repeat(np.arange(len(sizes)), sizes)
        begins = np.cumsum(sizes) - sizes
        left = np.arange(sizes.sum()) - begins[window]
        right = sizes[window] - 1 - left
        score = np.minimum(left, right) + 0.01 * sizes[window]
        token = self.first_W[window] + left
        order = np.lexsort((window, -score, token, self.question_W[window]))
        question, token = self.question_W[window][order], token[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (question[1:] != question[:-1]) | (token[1:] != token[:-1])
        found = np.zeros(len(order), bool)
        found[order[is_first]] = True
        return np.split(found, begins[1:])


@dataclasses.dataclass(frozen=True)
class QuestionFeatures(Features):
    """Rows [CLS] question [SEP] window [SEP], one per window."""

    windows: Windows
    # int32, character offsets in the paragraph of each of the rows' ids
    starts: np.ndarray
    ends: np.ndarray
    # int32, positions in the row of the answer's first and last token; None outside
    # training
    start_positions_W: np.ndarray | None
    end_positions_W: np.ndarray | None
    num_dropped: int  # questions that are not used, see `from_questions`

    def inputs(self, windows_B):
        """Adds int32[B] start_positions and end_positions in training.

        T is fixed then, because the loss includes padding positions among the classes
        (run_squad.py).
        """
        if self.start_positions_W is None or self.end_positions_W is None:
            rows = self.rows.cut(windows_B)
            return rows.arrays(rows.layout(windows_B))
        return self.rows.arrays(self.rows.layout(windows_B)) | {
            "start_positions": self.start_positions_W[windows_B],
            "end_positions": self.end_positions_W[windows_B],
        }


def from_questions(
    questions: Questions,
    tokenizer: Tokenizer,
    *,
    length: int,
    stride: int,
    max_query_length: int,
    is_training: bool,
) -> QuestionFeatures:
    """Converts questions to windows, in the order of the questions.

    Args:
      length: T, tokens of a row.
      stride: tokens between the starts of a paragraph's windows, at most
        `length` - 3 - `max_query_length`.
      max_query_length: longer questions are truncated.
      is_training: whether to add answer positions and drop questions whose answer was
        not found in the paragraph.
    """
    locate = tokenizer.locator()
    paragraphs = [locate(text) for text in questions.paragraphs]
    kept = questions.questions
    spans = None
    if is_training:
        found = [(q, _answer_tokens(q, paragraphs[q.paragraph])) for q in kept]
        kept = [q for q, span in found if span is not None]
        spans = np.array([span for _, span in found if span is not None], np.int64)
    encoded = tokenizer.encoder()([q.text for q in kept])
    texts = [ids[:max_query_length] for ids in encoded]
    tokens = text_rows.join([*texts, *(p.ids for p in paragraphs)], tokenizer, length)
    Q = len(texts)
    paragraph_Q = np.array([q.paragraph for q in kept], np.int64)
    query_length_Q = tokens.lengths[:Q]
    windows = _cut(tokens.lengths[Q:][paragraph_Q], length - 3 - query_length_Q, stride)
    question_W = windows.question_W
    pairs_W4 = np.stack(
        [
            tokens.starts[:Q][question_W],
            query_length_Q[question_W],
            tokens.starts[Q:][paragraph_Q][question_W] + windows.first_W,
            windows.length_W,
        ],
        axis=1,
    )
    ends_W2 = None
    if spans is not None:
        ends_W2 = _positions(spans.reshape(-1, 2), windows, query_length_Q + 2)
    no_offsets = [np.zeros(len(ids), np.int32) for ids in texts]
    return QuestionFeatures(
        Rows(tokens.ids, pairs_W4, length),
        windows,
        text_rows.aligned([*no_offsets, *(p.starts for p in paragraphs)], tokens, 0),
        text_rows.aligned([*no_offsets, *(p.ends for p in paragraphs)], tokens, 0),
        None if ends_W2 is None else ends_W2[:, 0],
        None if ends_W2 is None else ends_W2[:, 1],
        len(questions.questions) - len(kept),
    )


def _answer_tokens(question: Question, paragraph: Located) -> tuple[int, int] | None:
    """Returns an answer's first and last token, -1 if there is none, None if lost."""
    if question.is_impossible:
        return -1, -1
    spans = [
        (a.start, a.start + len(a.text))
        for a in question.answers
        if a.start is not None
    ]
    if not spans:
        return None
    start, end = spans[0]
    first = int(np.searchsorted(paragraph.ends, start, side="right"))
    last = int(np.searchsorted(paragraph.starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def _cut(lengths_Q: np.ndarray, room_Q: np.ndarray, stride: int) -> Windows:
    """Splits paragraphs into windows, which overlap if the stride is below the room."""
    more_Q = np.maximum(lengths_Q - room_Q, 0)
    num_windows_Q = 1 + -(-more_Q // stride)
    question_W = np.repeat(np.arange(len(lengths_Q)), num_windows_Q)
    before_Q = np.cumsum(num_windows_Q) - num_windows_Q
    number_W = np.arange(len(question_W)) - before_Q[question_W]
    first_W = number_W * stride
    length_W = np.minimum((lengths_Q[question_W] - first_W), room_Q[question_W])
    return Windows(question_W, first_W, length_W)


def _positions(
    spans_Q2: np.ndarray, windows: Windows, offset_Q: np.ndarray
) -> np.ndarray:
    """Returns int32[W, 2], the answer's ends in the row; 0 outside of the window."""
    spans_W2 = spans_Q2[windows.question_W] - windows.first_W[:, None]
    is_inside_W = (spans_W2[:, 0] >= 0) & (spans_W2[:, 1] < windows.length_W)
    # A span of -1 means "no answer", in every window.
    is_inside_W &= spans_Q2[windows.question_W, 0] >= 0
    positions_W2 = spans_W2 + offset_Q[windows.question_W][:, None]
    return np.where(is_inside_W[:, None], positions_W2, 0).astype(np.int32)
