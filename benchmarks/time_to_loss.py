"""Measures the time in which variants of a recipe reach a held-out loss.

    python -m benchmarks.time_to_loss --sources=SOURCE --workdir=DIR
        [--variants=faithful,packed] [--seeds=0,1] [--every=100] [--repeats=15]
        [--start_steps=600,1000] [--config.KEY=VALUE ...]

SOURCE is one of config.data.sources, for example text:books/*.txt. The variants are
those of benchmarks/variants.py, trained by bert_jax.train, and two peers that read the
batches of "faithful": "torch", a PyTorch loop, and "keras", which needs keras-hub; see
time_to_loss_torch.py and time_to_loss_keras.py. The rows compare the first variant with
the others. All start from the weights of the variant "start", and every checkpoint is
evaluated on the same held-out rows of one pair, masked at 15%. The same command resumes
an interrupted benchmark, and variants with other names or seeds share the workdir.
--config.KEY=VALUE changes all runs.

The seconds of a step are the median of repeats in alternation with the other variants,
on one batch, without the input pipeline. The loss is the lowest that all runs reach,
and the time to it is the number of steps, interpolated between checkpoints, times these
seconds. Losses by step do not depend on the load of the machine: --repeats=0 trains
only.

Prints a row "loss_curve" for each variant, with the losses by step, and a row
"time_to_loss" for each other variant. Values are medians over the seeds.
"""

import argparse
import dataclasses
import functools
import importlib.util
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import (
    rows,
    time_to_loss_keras,
    time_to_loss_peer,
    time_to_loss_torch,
    train_step,
    variants,
)
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint.workdir import read_config
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.errors import ConfigError
from bert_jax.loading import trained_run as run_lib
from bert_jax.training import evaluation

PEERS = {"torch": time_to_loss_torch, "keras": time_to_loss_keras}
START = "start"
HELD_OUT_ROWS = 32
NAMES = ("masked_lm_loss", "next_sentence_loss", "next_sentence_accuracy")
# Held-out metrics by name, and the steps after which they were evaluated as "steps".
Curve = dict[str, list[float]]


def main() -> None:
    args = parse(sys.argv[1:])
    try:
        compare(args)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def parse(arguments: list[str]) -> argparse.Namespace:
    description = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--sources", required=True, help="separated by commas")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--variants", default="faithful,packed")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--every", type=int, default=100, help="steps of a checkpoint")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--start_steps", default="600,1000", help="of both phases")
    args, args.overrides = parser.parse_known_args(arguments)
    unknown = [flag for flag in args.overrides if not flag.startswith("--config.")]
    if unknown:
        parser.error(
            f"{unknown[0]} is not a flag; changes of a config are --config.KEY"
        )
    args.variants = args.variants.split(",")
    known = [*PEERS, *variants.VARIANTS]
    for name in args.variants:
        if name not in known or name == START:
            known.remove(START)
            parser.error(f"--variants: {name!r} is not one of {', '.join(known)}")
        peer = PEERS.get(name)
        if peer and not importlib.util.find_spec(peer.PACKAGE):
            parser.error(f"--variants: {name!r} needs {peer.PACKAGE}: {peer.INSTALL}")
    return args


def compare(args: argparse.Namespace) -> None:
    """Trains the variants, times their steps and prints the rows."""
    train_start(args)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    curves = {
        name: [curve(name, seed, args) for seed in seeds] for name in args.variants
    }
    if args.repeats:
        print_rows(curves, time_steps(args), args)


# ---- Training


def train_start(args: argparse.Namespace) -> None:
    """Exports the weights from which all variants continue, after training them."""
    if (args.workdir / "exported" / "config.json").exists():
        return
    steps = [
        f"--config.phases[{i}].num_steps={number}"
        for i, number in enumerate(args.start_steps.split(","))
    ]
    run_train(args.workdir / START, START, args, *args.overrides, *steps)
    command = [sys.executable, "-m", "bert_jax.export"]
    flags = [f"--workdir={args.workdir / START}", f"--output={args.workdir}/exported"]
    subprocess.run([*command, *flags], check=True, stdout=sys.stderr)


def curve(variant: str, seed: int, args: argparse.Namespace) -> Curve:
    """Trains and evaluates a variant, or reads the results of an earlier call."""
    run = args.workdir / variant / f"seed{seed}"
    results = run / "curve.json"
    if not results.exists():
        if variant in PEERS:
            found = train_peer(variant, run, seed, args)
        else:
            start = f"--config.init_from={args.workdir / START}"
            flags = [
                f"--config.checkpoint.{key}={args.every}"
                for key in ("every_steps", "keep_every_steps")
            ]
            flags += [f"--config.seed={seed}", start, *args.overrides]
            run_train(run, variant, args, *flags)
            found = evaluate_run(run)
        results.write_text(json.dumps(found))
    return json.loads(results.read_text())


def run_train(run: Path, variant: str, args: argparse.Namespace, *flags: str) -> None:
    command = [
        *(sys.executable, "-m", "bert_jax.train"),
        f"--config={variants.__file__}:{variant}",
        f"--workdir={run}",
        f"--config.data.sources={tuple(args.sources.split(','))}",
        f"--config.data.corpus_dir={args.workdir / 'corpus'}",
    ]
    subprocess.run([*command, *flags], check=True, stdout=sys.stderr)


def train_peer(name: str, run: Path, seed: int, args: argparse.Namespace) -> Curve:
    """Trains a peer on the batches of "faithful" and evaluates it."""
    ours = args.workdir / "faithful" / f"seed{seed}"
    curve("faithful", seed, args)
    start = args.workdir / "exported"
    saved = time_to_loss_peer.train_apart(
        PEERS[name].Trainer, config_of(ours), start, run, args.every
    )
    opened = run_lib.open_run(str(ours), None)
    read = time_to_loss_peer.read
    return evaluate(opened, ((step, read(x, opened)) for step, x in saved.items()))


# ---- Evaluation


def evaluate_run(run: Path) -> Curve:
    """Evaluates all checkpoints of a run of bert_jax.train."""
    opened = run_lib.open_run(str(run), None)
    steps = integrity.steps(str(run))
    weights = ((step, run_lib.open_run(str(run), step).params) for step in steps)
    return evaluate(opened, weights)


def evaluate(run: run_lib.OpenedRun, weights: Iterable[tuple[int, Any]]) -> Curve:
    """Returns the held-out metrics of a run's model with the parameters of steps."""
    batches = evaluation.eval_batches(run.corpus, held_out_config(run.config), 0)
    found: Curve = {"steps": [], **{name: [] for name in NAMES}}
    for step, params in weights:
        metrics = evaluation.evaluate(run.eval_step, params, batches, run.mesh, 1)
        found["steps"].append(step)
        for name in NAMES:
            found[name].append(round(metrics[name], 4))
        del params  # before the next ones are read
    return found


def held_out_config(config: ExperimentConfig) -> ExperimentConfig:
    """Returns a config whose held-out batches are the same for all variants."""
    (phase,) = config.phases
    phase = dataclasses.replace(
        phase,
        global_batch_size=HELD_OUT_ROWS,
        max_sequences_per_row=1,
        max_predictions=round(phase.sequence_length * config.eval.masked_lm_prob),
    )
    return dataclasses.replace(config, phases=(phase,))


def next_sentence_majority(args: argparse.Namespace) -> float:
    """Returns the share of the more frequent label of the held-out pairs."""
    config = held_out_config(first_config(args.variants[0], args))
    batches = evaluation.eval_batches(corpus_lib.read(config), config, 0)
    majority = evaluation.next_sentence_majority(batches)
    assert majority is not None, "every row has a pair"
    return majority


def first_config(variant: str, args: argparse.Namespace) -> ExperimentConfig:
    """Returns the config of a variant's run with the first seed."""
    ours = "faithful" if variant in PEERS else variant
    return config_of(args.workdir / ours / f"seed{args.seeds.split(',')[0]}")


def config_of(run: Path) -> ExperimentConfig:
    config = read_config(str(run))
    assert config is not None, f"{run} is a run of this benchmark"
    return config


# ---- Time


@dataclasses.dataclass(frozen=True)
class Timed:
    """The step of a variant."""

    seconds: float  # median
    pairs: float  # mean number of pairs in a batch
    text_share: float  # of the tokens of a batch


def time_steps(args: argparse.Namespace) -> dict[str, Timed]:
    """Times the steps of all variants in alternation, each on a batch of its own."""
    builders, shapes = {}, {}
    for variant in args.variants:
        config = first_config(variant, args)
        batches = list(itertools.islice(time_to_loss_peer.batches(config), 50))
        shapes[variant] = (
            float(np.mean([b["next_sentence_weights"].sum() for b in batches])),
            float(np.mean([b["sequence_ids"] > 0 for b in batches])),
        )
        if variant in PEERS:
            peer = PEERS[variant]
            given = peer.Trainer, config, batches[0], args.workdir / "exported"
            for option in peer.OPTIONS:
                step = functools.partial(time_to_loss_peer.make_step, *given, option)
                builders[f"{variant}, {option}"] = step
        else:
            step = functools.partial(train_step.our_step, config, batches[0])
            builders[variant] = step
    seconds = rows.alternate(builders, (), args.repeats)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    print(f"seconds of a step: {medians}", file=sys.stderr)
    return {
        variant: Timed(
            # A peer has the number of threads or the backend that suits it best.
            min(s for name, s in medians.items() if name.startswith(variant)),
            *shapes[variant],
        )
        for variant in args.variants
    }


def steps_to(loss: float, found: Curve) -> float:
    """Returns the number of steps to a loss, interpolated between evaluations.

    Those of the first evaluation if its loss is lower already.
    """
    steps, losses = found["steps"], found["masked_lm_loss"]
    i = next(i for i, each in enumerate(losses) if each <= loss)
    if i == 0:
        return steps[0]
    share = (losses[i - 1] - loss) / (losses[i - 1] - losses[i])
    return steps[i - 1] + share * (steps[i] - steps[i - 1])


# ---- Rows


def print_rows(
    curves: dict[str, list[Curve]], timed: dict[str, Timed], args: argparse.Namespace
) -> None:
    majority = next_sentence_majority(args)
    for name, runs in curves.items():
        step = timed[name]
        rows.print_row(
            "loss_curve",
            name,
            "nats",
            [found["masked_lm_loss"][-1] for found in runs],
            PEERS[name].NAME if name in PEERS else None,
            step_seconds=round(step.seconds, 4),
            pairs=round(step.pairs, 1),
            text_share=round(step.text_share, 3),
            next_sentence_majority=round(majority, 3),
            curves=runs,
        )
    lowest = max(
        min(found["masked_lm_loss"]) for runs in curves.values() for found in runs
    )
    loss = math.ceil(lowest * 100) / 100
    seconds = {
        name: [steps_to(loss, found) * timed[name].seconds for found in runs]
        for name, runs in curves.items()
    }
    reference = args.variants[0]
    for name in args.variants[1:]:
        case = f"{name}, to {loss:g} nats"
        row = (seconds[name], reference, seconds[reference])
        rows.print_row("time_to_loss", case, "s", *row)


if __name__ == "__main__":
    main()
