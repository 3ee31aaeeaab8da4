"""Sequences a second of the input pipeline: pairs, shuffle, masks and batches.

    python -m benchmarks.input_pipeline [--length=128] [--batch=256] [--seconds=10]
        [--repeats=5]

Reads a corpus made from the embedded sources, over and over (every pass draws its pairs
anew), and counts the rows that come out. Beside it the bytes and FLOPs are nothing: the
floor is a few operations per token and mask.
"""

import argparse
import contextlib
import sys
import tempfile
import time

from benchmarks import rows
from bert_jax import config as config_lib
from bert_jax import prepare
from bert_jax.data import pipeline
from configs import base, tiny


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = make_config(args, directory)
        with contextlib.redirect_stdout(sys.stderr):  # rows alone on stdout
            corpus = prepare.prepare(config)
        batches = pipeline.batches(
            corpus, config, split="train", seed=0, phase_index=0, first_step=0
        )
        next(batches)  # the first visit's pairs, and tracing
        rates = [rate(batches, args.seconds) * args.batch for _ in range(args.repeats)]
        rows.print_row(
            "input_pipeline",
            f"pairs+masks+batches {args.length}, batch {args.batch}",
            "sequences/s",
            rates,
            tokens_in_corpus=sum(s.num_tokens for s in corpus.shards["train"]),
        )


def rate(batches, seconds: float) -> float:
    """Returns batches a second over some seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(batches)
        count += 1
    return count / (time.perf_counter() - start)


def make_config(args, directory: str) -> config_lib.ExperimentConfig:
    config = tiny.get_config()
    config.data.corpus_dir = f"{directory}/corpus"
    config.model = base.get_config().model
    config.phases[0].sequence_length = args.length
    config.phases[0].global_batch_size = args.batch
    config.phases[0].max_predictions = max(1, round(0.15 * args.length) + 1)
    return config_lib.from_config_dict(config)


if __name__ == "__main__":
    main()
