"""Fine-tunes a trained BERT beside a PyTorch loop over the classes of transformers.

    python -m benchmarks.tuning_parity --data=DIR --workdir=DIR [--model=DIR]
        [--tasks=sst2,cola] [--seeds=0,1,2] [--length=64] [--repeats=5]

Both sides start from the same weights, heads included, and take the same steps: rows in
the same order, learning rates, clipping, weight decay and dropout rates. Only the
random bits of dropout differ. Training sets are random subsets. Prints for each task

    the largest difference of the losses of the first 20 steps, without dropout
    the metric on the dev set after the last step, for every seed; none if --seeds=
    steps per second, timed in alternation on a batch of the most frequent length;
        none if --repeats=0

The same command resumes an interrupted benchmark. The default model is
all-MiniLM-L6-v2, see minilm.py. DIR of --data is that of tuning.py, with

    glue/MRPC   msr_paraphrase_train.txt and msr_paraphrase_test.txt

MRPC is evaluated on its test set, SQuAD on the last of the 36 articles.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import minilm, rows, tuning, tuning_parity_torch
from bert_jax.configs.finetune import glue, squad1, wnut17
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.finetuning import config as config_lib
from bert_jax.finetuning import run as tuning_run
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.data import batches
from bert_jax.finetuning.setup import Setup, Start, open_inputs
from bert_jax.finetuning.tasks.base import Features
from bert_jax.model import parameters
from bert_jax.training.step import TrainState

NUM_EPOCHS = 2
CURVE_STEPS = 20
PEER = "transformers in PyTorch"
PAIR = ("sentence1", "sentence2")


@dataclasses.dataclass(frozen=True)
class Case:
    """A task: its config, data, changes of the config, and baseline."""

    config: Callable[[], Any]
    data: tuning.Data
    learning_rate: float
    num_rows: int  # of the training set
    floor: float | None  # metric of a baseline without a neural network
    floor_of: str  # name of that baseline
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


def mrpc(data: Path, _: Path) -> tuple[str, str]:
    path = f"tsv:{data}/glue/MRPC/msr_paraphrase"
    return f"{path}_train.txt", f"{path}_test.txt"


def of_tuning(
    name: str,
    config: Callable[[], Any],
    learning_rate: float,
    num_rows: int = 1_280,
    **changes: Any,
) -> Case:
    """Returns a task of tuning.py; changes have __ for dots."""
    task = tuning.TASKS[name]
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    floor = task.floor, task.floor_of
    return Case(config, task.data, learning_rate, num_rows, *floor, changes)


CASES = {
    "sst2": of_tuning("sst2", lambda: glue.get_config("sst2"), 1e-4, task__glue=()),
    "cola": of_tuning(
        "cola",
        lambda: glue.get_config("cola"),
        5e-5,
        num_rows=2_560,
        task__glue=(),
        data__header=("source", "label", "star", "sentence"),
    ),
    "stsb": of_tuning(
        "stsb",
        lambda: glue.get_config("stsb"),
        5e-5,
        num_rows=2_560,
        task__glue=(),
        task__label="score",
        metric="pearson",
    ),
    "mrpc": Case(
        lambda: glue.get_config("mrpc"),
        mrpc,
        5e-5,
        1_280,
        0.799,
        "always a paraphrase",
        {
            "task.glue": (),
            "task.label": "Quality",
            "task.text": ("#1 String", "#2 String"),
        },
    ),
    "wnut17": of_tuning("wnut17", wnut17.get_config, 5e-4, num_rows=2_560),
    "squad": Case(
        squad1.get_config,
        functools.partial(tuning.articles, num_held_out=1),
        1e-4,
        640,
        53.36,  # the submission of the dataset's authors
        "logistic regression",
        {
            "sequence_length": 192,
            "task.max_query_length": 24,
            "recipe.global_batch_size": 8,
            "recipe.num_epochs": 1,
        },
    ),
}


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some rows of other features."""

    features: Features
    rows_N: np.ndarray

    def __len__(self) -> int:
        return len(self.rows_N)

    def num_tokens(self) -> np.ndarray:
        return self.features.num_tokens()[self.rows_N]

    def batch(self, rows_B: np.ndarray) -> dict[str, np.ndarray]:
        return self.features.batch(self.rows_N[rows_B])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tasks", default=",".join(CASES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.model is None:
        args.model = args.workdir / "model"
        if not args.model.exists():
            minilm.unpack(args.model)
    for name in args.tasks.split(","):
        compare(name, args)


def compare(name: str, args: argparse.Namespace) -> None:
    """Prints the rows of a task."""
    setup = open_setup(name, args)
    case = (
        f"{name}, {len(setup.datasets.train.features):,} rows of at most"
        f" {setup.config.sequence_length} tokens, batches of"
        f" {setup.config.recipe.global_batch_size}, {setup.num_steps} steps"
    )
    print_losses(name, case, args)
    if args.seeds:
        print_scores(setup, name, case, args)
    if args.repeats:
        print_rates(name, case, args)


def print_losses(name: str, case: str, args: argparse.Namespace) -> None:
    """Compares the losses of the first steps without dropout, and prints the row."""
    path = args.workdir / name / "losses.json"
    if not path.exists():
        setup = open_setup(name, args, has_dropout=False)
        found = losses(setup, CASES[name].learning_rate, 0, CURVE_STEPS)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found))
    ours, theirs, rounded = map(np.array, json.loads(path.read_text()))
    by_step, of_rounding = np.abs(ours - theirs), np.abs(rounded - theirs)
    rows.print_row(
        "tuning_losses",
        case,
        "largest difference",
        [float(f"{by_step.max():.3g}")],
        "PyTorch, weights changed by 1 ulp",
        [float(f"{of_rounding.max():.3g}")],
        digits=12,
        by_step=[float(f"{x:.3g}") for x in by_step],
        loss=[round(float(x), 3) for x in theirs],
    )


def print_scores(setup: Setup, name: str, case: str, args: argparse.Namespace) -> None:
    """Fine-tunes on both sides with every seed, and prints the row."""
    rate, metric = CASES[name].learning_rate, setup.config.metric
    scores, peer_scores = [], []
    for seed in map(int, args.seeds.split(",")):
        directory = args.workdir / name / f"seed{seed}"
        with contextlib.redirect_stdout(sys.stderr):
            result = tuning_run.tune(setup, rate, seed, str(directory))
        scores.append(result.metrics[metric])
        found = their_metrics(setup, rate, seed, directory / "peer.json")
        peer_scores.append(found[metric])
    rows.print_row(
        "tuning_parity",
        case,
        metric,
        scores,
        PEER,
        peer_scores,
        scores=[round(score, 3) for score in scores],
        peer_scores=[round(score, 3) for score in peer_scores],
        rate=rate,
        floor=CASES[name].floor,
        floor_of=CASES[name].floor_of,
    )


def print_rates(name: str, case: str, args: argparse.Namespace) -> None:
    """Times the steps of both sides in alternation, and prints the row."""
    builders = {
        "ours": functools.partial(build_step, make_our_step),
        "theirs": functools.partial(build_step, make_their_step),
    }
    seconds = rows.alternate(builders, (name, args), args.repeats)
    rates = {side: [1 / s for s in each] for side, each in seconds.items()}
    rows.print_row("tuning_step", case, "steps/s", rates["ours"], PEER, rates["theirs"])


def open_setup(name: str, args: argparse.Namespace, has_dropout: bool = True) -> Setup:
    """Opens the model and the data of a task, with a subset of its training rows."""
    case, made = CASES[name], args.workdir / "data"
    made.mkdir(parents=True, exist_ok=True)
    train, dev = case.data(args.data.resolve(), made.resolve())
    config = case.config()
    changes = {
        "data.train": train,
        "data.dev": (dev,),
        "data.test": (),
        "sequence_length": args.length,
        "recipe.num_epochs": NUM_EPOCHS,
        "recipe.group_by_length": True,
        "eval_every_steps": 10**9,  # after the last step only
    }
    if not has_dropout:
        changes |= {f"dropout.{x}_prob": 0.0 for x in ("hidden", "attention", "head")}
    config.update_from_flattened_dict(changes | case.changes)
    start = Start(str(args.model), is_from_scratch=False, lowercase=None)
    with contextlib.redirect_stdout(sys.stderr):  # only rows are on stdout
        setup = open_inputs(config_lib.from_config_dict(config), start)
    return with_subset(setup, case.num_rows)


def with_subset(setup: Setup, num_rows: int) -> Setup:
    """Returns a setup whose training set has a random subset of the rows."""
    train = setup.datasets.train
    order = np.random.default_rng(0).permutation(len(train.features))
    subset = dataclasses.replace(
        train, features=Subset(train.features, order[:num_rows])
    )
    datasets = dataclasses.replace(setup.datasets, train=subset)
    return dataclasses.replace(setup, datasets=datasets)


def batch_of(setup: Setup, seed: int) -> Callable[[int], dict[str, np.ndarray]]:
    """Returns a function that returns the batch of a step of a run."""
    features, recipe = setup.datasets.train.features, setup.config.recipe
    lengths = features.num_tokens() if recipe.group_by_length else None
    order = batches.Shuffled(len(features), recipe.global_batch_size, seed, lengths)
    return lambda step: features.batch(order.of_step(step))


def their_metrics(
    setup: Setup, learning_rate: float, seed: int, path: Path
) -> dict[str, float]:
    """Runs the PyTorch loop, or reads the metrics of an earlier call."""
    if not path.exists():
        _, found = tuning_parity_torch.tune(
            setup, learning_rate, seed, batch_of(setup, seed)
        )
        path.write_text(json.dumps(found))
    return json.loads(path.read_text())


def losses(
    setup: Setup, learning_rate: float, seed: int, num_steps: int
) -> list[list[float]]:
    """Returns the losses of the first steps of a run.

    Those of bert_jax, of the PyTorch loop, and of the PyTorch loop from weights that
    differ by one unit in the last place, which shows how fast rounding errors grow.
    """
    of_step = batch_of(setup, seed)
    taken = [of_step(step) for step in range(num_steps)]
    rounded = functools.partial(make_their_step, is_rounded=True)
    sides = (make_our_step, make_their_step, rounded)
    return [list(map(side(setup, learning_rate, seed), taken)) for side in sides]


def make_our_step(
    setup: Setup, learning_rate: float, seed: int
) -> Callable[[dict[str, np.ndarray]], float]:
    """Returns a function that takes a training step on a batch and returns its loss."""
    recipe, num_steps = setup.config.recipe, setup.num_steps
    tx, _ = tuning_step.make_optimizer(recipe, learning_rate, num_steps)

    @jax.jit
    def init(key: jax.Array) -> TrainState:
        _, params = setup.build(key)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, params, tx.init(params), zero, zero)

    state = init(tuning_step.init_key(seed))
    params = parameters.place(state.params, setup.encoder.arrays)
    state = dataclasses.replace(state, params=params)
    part = mesh_lib.host_part(setup.mesh, jax.process_index())
    rate, key = jnp.float32(learning_rate), tuning_step.dropout_key(seed)

    def step(batch: dict[str, np.ndarray]) -> float:
        nonlocal state
        placed = batches.place(batch, part, setup.mesh)
        state, metrics = setup.train_step(state, placed, rate, key, None)
        return float(metrics["loss"])

    return step


def make_their_step(
    setup: Setup, learning_rate: float, seed: int, *, is_rounded: bool = False
) -> Callable[[dict[str, np.ndarray]], float]:
    """Returns the step of the PyTorch loop, see `make_our_step`."""
    model = tuning_parity_torch.open_model(setup, seed, is_rounded=is_rounded)
    return tuning_parity_torch.make_step(setup, model, learning_rate)


def build_step(
    make: Callable[..., Callable[[dict[str, np.ndarray]], float]],
    name: str,
    args: argparse.Namespace,
) -> Callable[[], None]:
    """Returns a training step on a batch of the most frequent length."""
    setup = open_setup(name, args)
    of_step = batch_of(setup, 0)
    taken = [of_step(step) for step in range(setup.num_steps)]
    lengths = [batch["input_ids"].shape[1] for batch in taken]
    batch = taken[lengths.index(statistics.mode(lengths))]
    step = make(setup, CASES[name].learning_rate, 0)

    def run() -> None:
        step(batch)

    return run


if __name__ == "__main__":
    main()
