"""Computes what a budget of time trains, for the table of docs/recipes.md.

Steps, tokens and FLOPs are those of the configs; the time on a GPU follows from the
rates in benchmarks/results/gpu_h200.jsonl. The rows of that file are measured, and a
line of the table that follows from them is a plan.
"""

import dataclasses
import re

import ml_collections

from benchmarks import report
from bert_jax import config as config_lib
from bert_jax.configs import base, base_modern, laptop
from bert_jax.monitoring import throughput

# 0.74 in English Wikipedia and 0.76 in books, with the released uncased vocabulary.
WORDS_PER_TOKEN = 0.75
DOLLARS_PER_GPU_HOUR = 4.0  # an assumption, not an offer
# Two idle cores with configs/laptop.py in float32, see docs/recipes.md.
LAPTOP_TOKENS_PER_SECOND = 13_900


@dataclasses.dataclass(frozen=True)
class Budget:
    """A line of the table.

    Attributes:
      name: the machine and its time.
      config_name: the config in configs/.
      config: its values.
      is_planned: whether nothing but the rate was measured.
      expected: the expected result, and where it comes from.
    """

    name: str
    config_name: str
    config: ml_collections.ConfigDict
    is_planned: bool
    expected: str


def budgets() -> str:
    """Returns a table of training budgets, as Markdown."""
    lines = [
        Budget(
            "laptop, 2 CPU cores, 1 hour",
            "laptop.py",
            laptop.get_config(),
            False,
            "3.56 nats held out, 2.77 below the unigram entropy; 96% next-sentence"
            " accuracy; BLiMP 57.4%; STS-B Spearman 52 without fine-tuning (measured on"
            " 48 MB of books and Wikipedia, in bfloat16)",
        ),
        Budget(
            "one H200, 20 minutes",
            "base.py",
            twenty_minutes(),
            True,
            shorter_run(),
        ),
        Budget(
            "one H200, 24 hours",
            "base_modern.py",
            base_modern.get_config(),
            True,
            "not known; MosaicBERT, with another architecture and text, had a GLUE"
            " average of 79.6 after 1.13 h on 8 A100 (Portes et al. 2023)",
        ),
    ]
    cells = [_cells(line) for line in lines]
    return report.table(list(cells[0]), [list(line.values()) for line in cells])


def twenty_minutes() -> ml_collections.ConfigDict:
    """Returns configs/base.py with one phase of 20 minutes at the measured rate."""
    config = base.get_config()
    config.phases = config.phases[:1]
    (phase,) = config.phases
    phase.global_batch_size = 512
    phase.num_steps = round(1_200 * gpu_rate(phase.sequence_length) / 512)
    return config


def shorter_run() -> str:
    """Returns the result of the longest measured run of `train` on the GPU."""
    runs = [row for row in report.read("gpu_h200", ["train"]) if "seconds" in row]
    run = max(runs, key=lambda row: row["seconds"])
    return (
        "not known; the model with a vocabulary of 8,000 and no dropout had a training"
        f" loss of {run['masked_lm_loss_of_the_last_steps']:.2f} nats after"
        f" {run['seconds'] / 60:.0f} minutes (measured)"
    )


def gpu_rate(length: int) -> float:
    """Returns the highest measured rows/s of BERT-base on one H200, with dropout.

    Raises:
      ConfigError: if there is no measurement of train_step.
      ValueError: if there is none with rows of this length.
    """
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
    if budget.is_planned:
        rates = map(gpu_rate, lengths)
        hours = sum(n / rate for n, rate in zip(rows, rates, strict=True)) / 3_600
        cost = f"${DOLLARS_PER_GPU_HOUR * hours:,.2f}"
    else:
        hours, cost = tokens / LAPTOP_TOKENS_PER_SECOND / 3_600, ""
    return {
        "budget": budget.name,
        "config": f"`{budget.config_name}`",
        "tokens": f"{tokens / 1e6:,.0f} M",
        "words": f"{tokens * WORDS_PER_TOKEN / 1e6:,.0f} M",
        "FLOPs": f"{flops:.1e}",
        "steps take": f"{hours:.1f} h" if hours >= 2 else f"{60 * hours:.0f} min",
        "cost": cost,
        "expected result": budget.expected,
        "status": "**planned**" if budget.is_planned else "measured",
    }
