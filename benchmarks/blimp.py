"""Measures accuracy on BLiMP: is the acceptable sentence of a pair the more likely one?

    python -m benchmarks.blimp --model=DIR --data=DIR [--limit=N] [--batch_size=N]
        [--compute_dtype=float32|bfloat16]

A sentence's score is its pseudo-log-likelihood, see bert_jax/score.py. DIR of --data
has a JSON lines file for each of the 67 paradigms: the directory `data` of the GitHub
repository alexwarstadt/blimp. With --limit, N evenly spaced pairs of each paradigm are
scored. Prints a row with the accuracy over all pairs, as `terms` that of each
linguistic term, and as `with_ties` the accuracy if ties are correct, as in BabyLM. The
peer is guessing, and the row is named after the model's directory.

Source: Warstadt et al. 2020, BLiMP; Salazar et al. 2020, section 4.1.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks import rows
from bert_jax import inference, probes

CHANCE = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--compute_dtype", default="float32")
    args = parser.parse_args()
    pairs = probes.read_blimp(args.data, "--data", args.limit)
    model = inference.load_masked_lm(
        args.model, batch_size=args.batch_size, compute_dtype=args.compute_dtype
    )
    begin = time.monotonic()
    margins_N = probes.margins(pairs, lambda texts: model.score(texts).values)
    seconds = time.monotonic() - begin
    correct_N = margins_N > 0
    rows.print_row(
        "blimp",
        f"{Path(args.model).resolve().name}, {len(correct_N):,} pairs",
        "accuracy, %",
        [100 * float(correct_N.mean())],
        "chance",
        [CHANCE],
        terms=by_term(pairs.terms, correct_N),
        with_ties=round(100 * float((margins_N >= 0).mean()), 2),
        tokens=model.num_tokens,
        seconds=round(seconds),
    )


def by_term(terms: list[str], correct_N: np.ndarray) -> dict[str, float]:
    """Returns the accuracy in percent of each linguistic term."""
    terms_N = np.array(terms)
    return {
        str(term): round(100 * float(correct_N[terms_N == term].mean()), 1)
        for term in np.unique(terms_N)
    }


if __name__ == "__main__":
    main()
