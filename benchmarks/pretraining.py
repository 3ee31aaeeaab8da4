"""Prints the result of a run of `bert_jax.train` that has ended, as a row.

    python -m benchmarks.pretraining --workdir=DIR

Runs `bert_jax.evaluate` on the last checkpoint. The value is the held-out masked-LM
loss that it finds, and the peer is guessing by word frequency; `logged_loss` is that of
the run itself. `evaluations` has the step, the seconds since the start, the tokens with
padding, the FLOPs, the held-out loss and the next-sentence accuracy of every evaluation
of the run. The row is named after the workdir. Run it on the machine of the run: the
row has the device and the versions of this process.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from benchmarks import rows
from bert_jax.checkpoint.workdir import read_config
from bert_jax.config import ExperimentConfig
from bert_jax.errors import ConfigError
from bert_jax.monitoring import throughput, writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True)
    args = parser.parse_args()
    try:
        evaluations = read_evaluations(args.workdir)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    found = evaluate(args.workdir)
    rows.print_row(
        "pretraining",
        args.workdir.resolve().name,
        "nats",
        [found["masked_lm_loss"]],
        "guessing by word frequency",
        [found["unigram_entropy"]],
        logged_loss=evaluations[-1]["masked_lm_loss"],
        next_sentence_accuracy=round(found["next_sentence_accuracy"], 3),
        next_sentence_majority=round(found["next_sentence_majority"], 3),
        evaluations=evaluations,
        device=jax.devices()[0].device_kind,
    )


def read_evaluations(workdir: Path) -> list[dict[str, Any]]:
    """Returns the evaluations of a run.

    Raises:
      ConfigError: if there is none.
    """
    config = read_config(str(workdir))
    lines = [x for x in writer.read(str(workdir)) if writer.HELD_OUT_LOSS in x]
    if config is None or not lines:
        raise ConfigError(
            f"--workdir={workdir} has no held-out evaluation; give the workdir of a"
            " run that has ended"
        )
    return [
        {
            "step": line["step"],
            "seconds": round(seconds(line), 1),
            **work(config, line["step"]),
            "masked_lm_loss": round(line["eval_masked_lm_loss"], 3),
            "next_sentence_accuracy": round(line["eval_next_sentence_accuracy"], 3),
        }
        for line in lines
    ]


def seconds(line: dict[str, Any]) -> float:
    """Returns the time since the start of the run, in its calls of `train`."""
    parts = (value for key, value in line.items() if key.startswith("seconds_"))
    return sum(parts) - line["seconds_down"]


def work(config: ExperimentConfig, num_steps: int) -> dict[str, float]:
    """Returns the tokens and FLOPs of the first steps of a config."""
    tokens, flops = 0, 0.0
    for phase in config.phases:
        num_rows = min(num_steps, phase.num_steps) * phase.global_batch_size
        num_steps -= min(num_steps, phase.num_steps)
        tokens += num_rows * phase.sequence_length
        flops += num_rows * throughput.train_flops_per_sequence(
            config.model, config.tokenizer.vocab_size, phase
        )
    return {"tokens": tokens, "flops": float(f"{flops:.4g}")}


def evaluate(workdir: Path) -> dict[str, Any]:
    """Returns what `bert_jax.evaluate` prints of the last checkpoint."""
    command = [sys.executable, "-m", "bert_jax.evaluate", f"--workdir={workdir}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main()
