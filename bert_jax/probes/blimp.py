"""BLiMP: which of two minimally different sentences is more likely?

A pair is correct if the acceptable sentence has the higher pseudo-log-likelihood. The
directory has one JSON lines file per paradigm, with the keys sentence_good and
sentence_bad, and optionally linguistics_term.

Source: Warstadt et al. 2020, BLiMP; Salazar et al. 2020, section 4.1, for the scores.

Shapes: N pair.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.finetuning.data import tables
from bert_jax.inference.masked_lm import Scorer
from bert_jax.probes.target import Target

# Pairs of each paradigm that a probe scores. The 670 pairs of all paradigms have a
# standard error of at most 1.9%.
PROBED_PAIRS = 10


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Minimal pairs.

    Attributes:
      good: N acceptable sentences.
      bad: N unacceptable sentences.
      terms: N linguistic terms; the name of its file if a pair has none.
    """

    good: list[str]
    bad: list[str]
    terms: list[str]


def read(directory: Path, limit: int | None, given_as: str) -> Pairs:
    """Reads the pairs of all paradigms, in the order of their files.

    Args:
      limit: maximum number of pairs of a paradigm, evenly spaced in its file; None for
        all.
    """
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise ConfigError(
            f"{given_as}: {directory} has no .jsonl files; give the directory of"
            " BLiMP's data, a file for each paradigm"
        )
    found = Pairs([], [], [])
    for path in paths:
        table = tables.read(f"jsonl:{path}")
        good, bad = (table.column(f"sentence_{x}") for x in ("good", "bad"))
        terms = table.columns.get("linguistics_term", [path.stem] * len(good))
        for row in _spaced(len(good), limit):
            for sentence in (good[row], bad[row]):
                if not isinstance(sentence, str):
                    raise ConfigError(
                        f"{path} has {sentence!r} as a sentence; it must be a string"
                    )
            found.good.append(good[row])
            found.bad.append(bad[row])
            found.terms.append(str(terms[row]))
    return found


def _spaced(count: int, limit: int | None) -> list[int]:
    """Returns at most `limit` evenly spaced indices below `count`."""
    limit = count if limit is None else min(limit, count)
    return [i * count // limit for i in range(limit)]


def are_correct(pairs: Pairs, score: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """Returns bool[N], whether the acceptable sentence of each pair scores higher.

    Args:
      score: maps sentences to the score of each.
    """
    scores = score([*pairs.good, *pairs.bad])
    good_N, bad_N = np.split(scores, 2)
    return good_N > bad_N


def read_probe(directory: Path, given_as: str) -> Pairs:
    """Reads the pairs that a probe scores; see `read`."""
    return read(directory, PROBED_PAIRS, given_as)


def make_probe(pairs: Pairs, target: Target) -> Callable[[Any], float]:
    """Returns a function that maps parameters to the accuracy in percent."""
    scorer = Scorer(
        target.graphdef,
        target.tokenizer,
        max_length=target.max_length,
        batch_size=target.batch_size,
        dtype=target.dtype,
        mesh=target.mesh,
    )

    def accuracy(params: Any) -> float:
        correct_N = are_correct(pairs, lambda texts: scorer(params, texts).values)
        return 100.0 * float(correct_N.mean())

    return accuracy
