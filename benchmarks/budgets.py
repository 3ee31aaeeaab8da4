"""Computes what a budget of time trains, for the table of docs/recipes.md.

Steps, tokens and FLOPs are those of the configs. The minutes on a GPU are those of the
run in benchmarks/results/gpu_run.jsonl. The time of a plan follows from the rates in
benchmarks/results/gpu_h200.jsonl: the rates are measured, and the plan is not.
"""

import dataclasses
import re

import ml_collections

from benchmarks import report
from bert_jax import config as config_lib
from bert_jax.configs import base_modern, gpu, laptop
from bert_jax.monitoring import throughput

# 0.74 in English Wikipedia and 0.76 in books, with the released uncased vocabulary.
WORDS_PER_TOKEN = 0.75
DOLLARS_PER_GPU_HOUR = 4.0  # an assumption, not an offer
# Two idle cores with configs/laptop.py in float32, see docs/recipes.md.
LAPTOP_TOKENS_PER_SECOND = 13_900


@dataclasses.dataclass(frozen=True)
class Budget:
    """A line of the table."""

    name: str  # the machine and its time
    config_name: str  # in configs/
    config: ml_collections.ConfigDict
    hours: float | None  # measured time of the steps; None for a plan
    hourly_cost: float | None  # in dollars; None without a GPU
    expected: str  # the expected result, and where it comes from


def budgets() -> str:
    """Returns a table of training budgets, as Markdown."""
    lines = [laptop_budget(), gpu_budget(), day_budget()]
    cells = [_cells(line) for line in lines]
    return report.table(list(cells[0]), [list(line.values()) for line in cells])


def laptop_budget() -> Budget:
    """Returns the budget of configs/laptop.py, at the rate of idle cores."""
    config = laptop.get_config()
    tokens = sum(
        phase.num_steps * phase.global_batch_size * phase.sequence_length
        for phase in config.phases
    )
    return Budget(
        "laptop, 2 CPU cores, within 1 hour",
        "laptop.py",
        config,
        tokens / LAPTOP_TOKENS_PER_SECOND / 3_600,
        None,
        "3.56 nats held out, 2.77 below the unigram entropy; 96% next-sentence"
        " accuracy; BLiMP 57.4%; STS-B Spearman 52 without fine-tuning (measured on"
        " 48 MB of books and Wikipedia, in bfloat16)",
    )


def gpu_budget() -> Budget:
    """Returns the budget of configs/gpu.py, with the steps of its measured run.

    The rows before the last are of earlier recipes.
    """
    *_, run = report.read("gpu_run", ["pretraining"])
    *_, blimp = report.read("gpu_run", ["blimp"])
    last, config = run["evaluations"][-1], gpu.get_config()
    (phase,) = config.phases
    phase.num_steps = last["step"]
    below = run["peer_value"] - run["value"]
    return Budget(
        f"one H200, {last['seconds'] / 60:.1f} minutes",
        "gpu.py",
        config,
        last["seconds"] / 3_600,
        DOLLARS_PER_GPU_HOUR,
        f"{run['value']:.2f} nats held out, {below:.1f} below the unigram entropy;"
        f" {run['next_sentence_accuracy']:.0%} next-sentence accuracy; BLiMP"
        f" {blimp['value']:.1f}%; see [Evidence](evidence.md#three-minutes-on-one-gpu)"
        " (measured on 48 MB of books and Wikipedia)",
    )


def day_budget() -> Budget:
    """Returns the plan of a day, with configs/base_modern.py."""
    return Budget(
        "one H200, within 24 hours",
        "base_modern.py",
        base_modern.get_config(),
        None,
        DOLLARS_PER_GPU_HOUR,
        "not known; MosaicBERT, with another architecture and text, had a GLUE"
        " average of 79.6 after 1.13 h on 8 A100 (Portes et al. 2023)",
    )


def gpu_rate(length: int) -> float:
    """Returns the highest measured rows/s of BERT-base on one H200, with dropout."""
    cases = re.compile(rf"base \d+x{length}( packed)? bfloat16")
    found = [
        (row["value"], cases.fullmatch(row["case"]))
        for row in report.read("gpu_h200", ["train_step"])
    ]
    # A packed row has two pairs.
    return max(rate / (2 if case[1] else 1) for rate, case in found if case)


def _cells(budget: Budget) -> dict[str, str]:
    config = config_lib.from_config_dict(budget.config)
    vocab_size = config.tokenizer.vocab_size
    rows = [phase.num_steps * phase.global_batch_size for phase in config.phases]
    lengths = [phase.sequence_length for phase in config.phases]
    tokens = sum(n * length for n, length in zip(rows, lengths, strict=True))
    flops = sum(
        n * throughput.train_flops_per_sequence(config.model, vocab_size, phase)
        for n, phase in zip(rows, config.phases, strict=True)
    )
    hours, cost = budget.hours, ""
    if hours is None:
        rates = map(gpu_rate, lengths)
        hours = sum(n / rate for n, rate in zip(rows, rates, strict=True)) / 3_600
    if budget.hourly_cost is not None:
        cost = f"${budget.hourly_cost * hours:,.2f}"
    return {
        "budget": budget.name,
        "config": f"`{budget.config_name}`",
        "tokens": f"{tokens / 1e6:,.0f} M",
        "words": f"{tokens * WORDS_PER_TOKEN / 1e6:,.0f} M",
        "FLOPs": f"{flops:.1e}",
        "time": f"{hours:.1f} h" if hours >= 2 else f"{60 * hours:.0f} min",
        "cost": cost,
        "expected result": budget.expected,
        "status": "**planned**" if budget.hours is None else "measured",
    }
