"""Measures the input pipeline in rows/s: pairs, packing, shuffling, masks, batches.

    python -m benchmarks.input_pipeline [--megabytes=200] [--shards=100] [--streams=4]
        [--batch=256] [--seconds=4] [--repeats=5]

The corpus is built from the embedded sources and tokenized once; its shard is copied
until there are --shards shards and at least --megabytes of token ids. Rows of 128
tokens are compared with the collator of transformers, if it is installed, which only
masks; it gets the same tokens and runs on one thread, as it does by default. The next
row is the time to the first batch at step 900,000 of the base schedule.

The lower bound for a row of T tokens and P masks: it writes 4 int32 arrays of T and 3
of P, 2,300 bytes at 128 and 20, which take 0.5 microseconds at 5 GB/s; it hashes each
token once (8 operations on 32-bit words) and each mask twice, which takes 0.1
microseconds at 16 words per operation and 2.5 GHz; sorting the tokens of a row by their
hash takes as long again. Time beyond that is spent on row layout and cache traffic.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import rows
from bert_jax.config import ExperimentConfig, from_config_dict
from bert_jax.configs import base, large_packed, tiny
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import build
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.tokenizers import tokenizers
from bert_jax.data.tokenizers.base import CLS, SEP
from bert_jax.distributed import devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--megabytes", type=float, default=200, help="size of all token ids"
    )
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="duration of a repeat"
    )
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    devices.keep_freed_memory()  # as every command does on a CPU
    with tempfile.TemporaryDirectory() as directory:
        corpus = make_corpus(args, directory)
        for case, changes in cases().items():
            measure(case, make_config(args, directory, **changes), corpus, args)
        measure_first_batch(args, make_config(args, directory), corpus)


def cases() -> dict[str, dict[str, Any]]:
    """Returns config overrides, keyed by the name of the row."""
    packed = large_packed.get_config().phases[1]
    packed = {
        name: packed[name]
        for name in ("sequence_length", "max_predictions", "max_sequences_per_row")
    }
    return {
        "128": {},
        "128 whole words": {"whole_word_mask": True},
        "512 packed": packed,
        "512 packed whole words": packed | {"whole_word_mask": True},
    }


def measure(
    case: str, config: ExperimentConfig, corpus: Corpus, args: argparse.Namespace
) -> None:
    """Prints the row of a case; that of the case "128" has a peer."""
    batches = pipeline.batches(
        corpus, config, split="train", seed=0, phase_index=0, first_step=0
    )
    first = next(batches)  # draws the pairs of the first visits to shards
    sides = {"ours": functools.partial(next, batches)}
    collate = hugging_face(corpus, first) if case == "128" else None
    if collate:
        sides["theirs"] = collate
    # The sides alternate, so that noise of the machine affects all equally.
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.repeats):
        for name, function in sides.items():
            found[name].append(args.batch * rate(function, args.seconds))
    rows.print_row(
        "input_pipeline",
        f"{case}, batch {args.batch}",
        "rows/s",
        found["ours"],
        "transformers DataCollatorForLanguageModeling" if collate else None,
        found.get("theirs"),
        tokens_in_corpus=sum(s.num_tokens for s in corpus.shards["train"]),
        shards=args.shards,
        streams=args.streams,
        text_share=round(float((first["sequence_ids"] > 0).mean()), 4),
        peak_memory_bytes=peak_memory_bytes(),
    )


def measure_first_batch(
    args: argparse.Namespace, config: ExperimentConfig, corpus: Corpus
) -> None:
    """Prints the seconds until the batch of the last step of base's first phase."""
    phase = base.get_config().phases[0]
    seconds = []
    for repeat in range(args.repeats):
        start = time.perf_counter()
        next(
            pipeline.batches(
                corpus,
                config,
                split="train",
                seed=repeat,
                phase_index=0,
                first_step=phase.num_steps - 1,
            )
        )
        seconds.append(time.perf_counter() - start)
    rows.print_row(
        "input_pipeline",
        f"first batch at step {phase.num_steps:,}, {config.data.num_shards} shards",
        "s",
        seconds,
        streams=args.streams,
    )


def peak_memory_bytes() -> int:
    """Returns the peak resident memory of this process.

    The one of rusage includes the memory of the process that this one was forked from.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(peak)


def rate(function: Callable[[], Any], seconds: float) -> float:
    """Returns calls per second, measured for at least the given seconds."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        function()
        count += 1
    return count / (time.perf_counter() - start)


# ------------------------------------------------------------------ config and corpus


def make_config(
    args: argparse.Namespace,
    directory: str,
    whole_word_mask: bool = False,
    **phase: Any,
) -> ExperimentConfig:
    config = tiny.get_config()
    config.data.corpus_dir = f"{directory}/corpus"
    config.data.masked_lm_prob = 0.15
    config.data.whole_word_mask = whole_word_mask
    config.data.num_shards = args.shards
    config.data.num_streams = args.streams
    config.model = base.get_config().model
    config.phases[0].update(
        sequence_length=128, global_batch_size=args.batch, max_predictions=20
    )
    config.phases[0].update(**phase)
    return from_config_dict(config)


def make_corpus(args: argparse.Namespace, directory: str) -> Corpus:
    """Builds a corpus with the requested number of shards and bytes."""
    config = make_config(args, directory)
    data = dataclasses.replace(config.data, num_shards=1, num_streams=1)
    one = dataclasses.replace(config, data=data)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for rows only
        found = build.prepare(one)
    (shard,) = found.shards["train"]
    source = os.path.join(found.directory, shard.file)
    # Concatenated TFRecord files are a valid TFRecord file.
    wanted = args.megabytes * 2**20 / 2 / args.shards
    times = max(1, -(-int(wanted) // shard.num_tokens))
    many = dataclasses.replace(
        shard,
        num_documents=times * shard.num_documents,
        num_sentences=times * shard.num_sentences,
        num_tokens=times * shard.num_tokens,
    )
    shards = []
    for i in range(args.shards):
        name = f"copies-{i:05d}"
        with open(os.path.join(found.directory, name), "wb") as file:
            for _ in range(times):
                with open(source, "rb") as copied:
                    shutil.copyfileobj(copied, file)
        shards.append(dataclasses.replace(many, file=name))
    return dataclasses.replace(
        found,
        shards={"train": tuple(shards), "validation": ()},
        rows={"train": np.repeat(times * found.rows["train"], args.shards, axis=-1)},
    )


def hugging_face(corpus: Corpus, batch: pipeline.Batch) -> Callable[[], Any] | None:
    """Returns a function that collates a batch's rows; None without transformers."""
    try:
        import transformers
    except ImportError:
        return None
    vocabulary = os.path.join(corpus.directory, tokenizers.WordPiece.FILE)
    tokenizer = transformers.BertTokenizerFast(vocab=vocabulary)
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer=tokenizer, return_tensors="np"
    )
    special = {corpus.tokenizer.id(t) for t in (CLS, SEP)}
    features = []
    for ids, real in zip(
        batch["input_ids"].tolist(), batch["sequence_ids"].tolist(), strict=True
    ):
        row = ids[: sum(real)]
        features.append(
            {"input_ids": row, "special_tokens_mask": [int(i in special) for i in row]}
        )
    return lambda: collator([dict(feature) for feature in features])


if __name__ == "__main__":
    main()
