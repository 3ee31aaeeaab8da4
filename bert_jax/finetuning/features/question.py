"""Questions about paragraphs -> windows of ids, and where their tokens stand.

A paragraph that is too long for a row is read in several windows that overlap; an
answer outside of a window is [CLS] there.

Source: google-research/bert run_squad.py; answers are found by characters here, not by
words.

Shapes: Q question, W window, B window of the batch, T token.
"""

import dataclasses

import numpy as np

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.data.tokenizers.offsets import Located, LocatingEncoder
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.finetuning.data.squad import Question, Questions


@dataclasses.dataclass(frozen=True)
class Windows:
    """Where windows of paragraphs are cut.

    Attributes:
      question_W: int64, whose window it is.
      first_W: int64, its first token in the paragraph.
      length_W: int64, how many it has.
    """

    question_W: np.ndarray
    first_W: np.ndarray
    length_W: np.ndarray

    def max_context(self) -> list[np.ndarray]:
        """Returns bool of each window's tokens: in none there is more on both sides.

        Of the lesser of both sides, and a hundredth of the window's length; of windows
        that are equal in that, the first.
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
class QuestionFeatures:
    """A row a window.

    Attributes:
      rows: [CLS] question [SEP] window [SEP].
      windows: of the rows.
      starts, ends: int32 of each of `text_rows.ids`, its characters in its paragraph.
      start_positions_W, end_positions_W: int32, the answer's places in the row; None
        where they are to be found.
      num_dropped: questions whose answer is not in the paragraph, left out of training.
    """

    rows: Rows
    windows: Windows
    starts: np.ndarray
    ends: np.ndarray
    start_positions_W: np.ndarray | None
    end_positions_W: np.ndarray | None
    num_dropped: int

    def __len__(self) -> int:
        return len(self.rows)

    def num_tokens(self) -> np.ndarray:
        """Returns int64[W], the tokens of each row."""
        return self.rows.num_tokens()

    def batch(self, windows_B: np.ndarray) -> dict[str, np.ndarray]:
        """Returns what the model and its loss read of some windows.

        Args:
          windows_B: int64; -1 for what fills the batch up.

        Returns:
          int32[B, T] of what `Bert.encode` reads, int32[B] start_positions and
          end_positions if known, float32[B] weights; T as short as these windows allow
          where answers are to be found. In training it is always the same, for padding
          is among the places that an answer is not at (run_squad.py).
        """
        found = {"weights": text_rows.weights(windows_B)}
        windows_B = np.maximum(windows_B, 0)
        if self.start_positions_W is not None and self.end_positions_W is not None:
            found["start_positions"] = self.start_positions_W[windows_B]
            found["end_positions"] = self.end_positions_W[windows_B]
            return found | self.rows.arrays(self.rows.layout(windows_B))
        rows = self.rows.cut(windows_B)
        return found | rows.arrays(rows.layout(windows_B))


def of_questions(
    questions: Questions,
    tokenizer: Tokenizer,
    *,
    length: int,
    stride: int,
    max_query_length: int,
    is_training: bool,
) -> QuestionFeatures:
    """Returns the windows of all questions, in their order.

    Args:
      questions: from `squad.read`.
      tokenizer: the model's.
      length: T, tokens of a row.
      stride: tokens from one window of a paragraph to the next, at most
        `length` - 3 - `max_query_length`.
      max_query_length: tokens of a question; what is longer is cut.
      is_training: answers go with the windows, and questions without one are left out.
    """
    locate = LocatingEncoder(tokenizer)
    paragraphs = [locate(text) for text in questions.paragraphs]
    asked = questions.questions
    spans = None
    if is_training:
        found = [(q, _answer_tokens(q, paragraphs[q.paragraph])) for q in asked]
        asked = [q for q, span in found if span is not None]
        spans = np.array([span for _, span in found if span is not None], np.int64)
    texts = text_rows.encode_texts([q.text for q in asked], tokenizer)
    texts = [ids[:max_query_length] for ids in texts]
    tokens = text_rows.join([*texts, *(p.ids for p in paragraphs)], tokenizer, length)
    Q = len(texts)
    paragraph_Q = np.array([q.paragraph for q in asked], np.int64)
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
        ends_W2 = _places(spans.reshape(-1, 2), windows, query_length_Q + 2)
    no_places = [np.zeros(len(ids), np.int32) for ids in texts]
    return QuestionFeatures(
        Rows(tokens.ids, pairs_W4, length),
        windows,
        text_rows.aligned([*no_places, *(p.starts for p in paragraphs)], tokens, 0),
        text_rows.aligned([*no_places, *(p.ends for p in paragraphs)], tokens, 0),
        None if ends_W2 is None else ends_W2[:, 0],
        None if ends_W2 is None else ends_W2[:, 1],
        len(questions.questions) - len(asked),
    )


def _answer_tokens(question: Question, paragraph: Located) -> tuple[int, int] | None:
    """Returns the first and last token of the answer: -1 for there is none.

    None for an answer that is not in the paragraph.
    """
    if question.is_impossible:
        return -1, -1
    if not question.answers or question.answers[0].start is None:
        return None
    start = question.answers[0].start
    end = start + len(question.answers[0].text)
    first = int(np.searchsorted(paragraph.ends, start, side="right"))
    last = int(np.searchsorted(paragraph.starts, end, side="left")) - 1
    return (first, last) if first <= last else None


def _cut(lengths_Q: np.ndarray, room_Q: np.ndarray, stride: int) -> Windows:
    """Cuts paragraphs into windows of up to `room_Q` tokens.

    A stride of at most the least room leaves no token out.
    """
    more_Q = np.maximum(lengths_Q - room_Q, 0)
    num_windows_Q = 1 + -(-more_Q // stride)
    question_W = np.repeat(np.arange(len(lengths_Q)), num_windows_Q)
    before_Q = np.cumsum(num_windows_Q) - num_windows_Q
    number_W = np.arange(len(question_W)) - before_Q[question_W]
    first_W = number_W * stride
    length_W = np.minimum((lengths_Q[question_W] - first_W), room_Q[question_W])
    return Windows(question_W, first_W, length_W)


def _places(spans_Q2: np.ndarray, windows: Windows, offset_Q: np.ndarray) -> np.ndarray:
    """Returns int32[W, 2], an answer's ends in the row; 0 where not all is there."""
    spans_W2 = spans_Q2[windows.question_W] - windows.first_W[:, None]
    is_inside_W = (spans_W2[:, 0] >= 0) & (spans_W2[:, 1] < windows.length_W)
    # -1 stands for no answer, also in the first window.
    is_inside_W &= spans_Q2[windows.question_W, 0] >= 0
    places_W2 = spans_W2 + offset_Q[windows.question_W][:, None]
    return np.where(is_inside_W[:, None], places_W2, 0).astype(np.int32)
