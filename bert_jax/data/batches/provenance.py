"""Finds the documents of the segments in a batch."""

import bisect
import dataclasses

from bert_jax.config import ExperimentConfig
from bert_jax.data.batches.step_rows import StepRows
from bert_jax.data.batches.visits import Visit
from bert_jax.data.corpus import marks
from bert_jax.data.corpus.corpus import Corpus

# The number of tokens from the start of a document that are shown to identify it.
BEGINNING_TOKENS = 24


@dataclasses.dataclass(frozen=True)
class Excerpt:
    """The position of a segment in its document."""

    document: int  # index in the shard
    first: int  # index of the first token in the document
    length: int  # number of tokens
    document_length: int  # number of tokens of the document
    beginning: tuple[int, ...]  # the document's first ids, at most BEGINNING_TOKENS


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a row."""

    shard: str  # file name
    epoch: int  # of the stream that reads the shard, from 0
    row: int  # index in the visit to the shard
    # A and B of each pair; B is None without the next-sentence objective.
    segments: tuple[tuple[Excerpt, Excerpt | None], ...]


def origins(
    corpus: Corpus,
    config: ExperimentConfig,
    *,
    split: str,
    seed: int,
    phase_index: int,
    step: int,
) -> list[Origin]:
    """Returns the origin of every row of a step's global batch, in order."""
    rows = StepRows(corpus, config, split=split, seed=seed, phase_index=phase_index)
    found = []
    for drawn, first, stop in rows.parts(step, 1):
        visit = drawn.result()
        for row in range(first, stop):
            segments = tuple(
                (
                    _excerpt(corpus, visit, a_start, a_length),
                    _excerpt(corpus, visit, b_start, b_length) if b_length else None,
                )
                for a_start, a_length, b_start, b_length, _ in visit.pairs_RK5[row]
                if a_length
            )
            found.append(Origin(visit.shard, visit.epoch, row, segments))
    rows.close()
    return found


def _excerpt(corpus: Corpus, visit: Visit, start: int, length: int) -> Excerpt:
    starts = visit.document_starts
    document = bisect.bisect_right(starts, start) - 1
    last = document == len(starts) - 1
    first, end = starts[document], len(visit.tokens) if last else starts[document + 1]
    beginning = visit.tokens[first:end][:BEGINNING_TOKENS]
    if corpus.word_segmented:
        beginning, _ = marks.split(beginning)
    return Excerpt(
        document=document,
        first=int(start - first),
        length=int(length),
        document_length=int(end - first),
        beginning=tuple(beginning.tolist()),
    )
