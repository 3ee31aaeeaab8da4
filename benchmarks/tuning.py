"""Measures the benefit of pretraining: fine-tunes from a model and from random weights.

    python -m benchmarks.tuning --model=DIR --data=DIR --workdir=DIR
        [--tasks=sst2,cola] [--rates=1e-4,3e-4] [--seeds=0,1] [--length=64]
        [--epochs=N] [--compute_dtype=auto|float32|bfloat16] [--pretrained_only]

Prints a row for each task, with the task's own metric on its dev set for every seed at
the best learning rate. The value is that of the model's weights and the peer is random
weights; `floor` is a baseline without a neural network. The row is named after the
task and the model's directory. The same command resumes an interrupted benchmark. DIR
of --data contains

    glue/SST-2, glue/CoLA, glue/STS-B   train.tsv and dev.tsv of GLUE
    wnut17, codah, goemotions           the files that configs/finetune names
    squad/squad11dev-train36.json       36 articles of SQuAD 1.1's dev set

For GoEmotions only dev.tsv is used, and its last 1,000 lines are held out; for SQuAD
the last 7 articles are held out. Pairs of STS-B that are also in its dev set are not
used in training.
"""

import argparse
import csv
import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import rows

# Maps the data directory and a directory for derived files to the specs of a task's
# training and dev sets.
Data = Callable[[Path, Path], tuple[str, str]]


def glue(name: str) -> Data:
    def find(data: Path, _: Path) -> tuple[str, str]:
        directory = data / "glue" / name
        return f"tsv:{directory}/train.tsv", f"tsv:{directory}/dev.tsv"

    return find


def unseen_pairs(data: Path, made: Path) -> tuple[str, str]:
    """Returns STS-B without training pairs that are also in its dev set."""
    directory = data / "glue" / "STS-B"
    dev = _read_table(directory / "dev.tsv")
    seen = {(row["sentence1"], row["sentence2"]) for row in dev}
    kept = [
        row
        for row in _read_table(directory / "train.tsv")
        if (row["sentence1"], row["sentence2"]) not in seen
    ]
    columns = ("sentence1", "sentence2", "score")
    train = made / "stsb_train.tsv"
    lines = ["\t".join(columns), *("\t".join(row[c] for c in columns) for row in kept)]
    train.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"tsv:{train}", f"tsv:{directory}/dev.tsv"


def _read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in table if row.get("score")]


def wnut(data: Path, _: Path) -> tuple[str, str]:
    directory = data / "wnut17"
    train, dev = directory / "wnut17train.conll", directory / "emerging.dev.conll"
    return f"conll:{train}", f"conll:{dev}"


def codah(data: Path, _: Path) -> tuple[str, str]:
    directory = data / "codah" / "cv_split" / "fold_0"
    return f"tsv:{directory}/train.tsv", f"tsv:{directory}/dev.tsv"


def emotions(data: Path, made: Path, num_held_out: int = 1_000) -> tuple[str, str]:
    text = (data / "goemotions" / "dev.tsv").read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    train, dev = made / "goemotions_train.tsv", made / "goemotions_dev.tsv"
    train.write_text("".join(lines[:-num_held_out]), encoding="utf-8")
    dev.write_text("".join(lines[-num_held_out:]), encoding="utf-8")
    return f"tsv:{train}", f"tsv:{dev}"


def articles(data: Path, made: Path, num_held_out: int = 7) -> tuple[str, str]:
    path = data / "squad" / "squad11dev-train36.json"
    found = json.loads(path.read_text(encoding="utf-8"))["data"]
    train, dev = made / "squad_train.json", made / "squad_dev.json"
    train.write_text(json.dumps({"version": "1.1", "data": found[:-num_held_out]}))
    dev.write_text(json.dumps({"version": "1.1", "data": found[-num_held_out:]}))
    return f"squad:{train}", f"squad:{dev}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A benchmarked task: its config in configs/finetune, data and baseline."""

    config: str
    data: Data
    num_epochs: int  # more for small training sets
    floor: float | None  # metric of a baseline without a neural network
    floor_of: str  # name of that baseline
    flags: tuple[str, ...] = ()  # further flags of finetune


NOT_FOR_GLUE = "--config.task.glue=()"
HEADER_OF_COLA = "--config.data.header=('source', 'label', 'star', 'sentence')"
TASKS = {
    "sst2": Tuned(
        "glue.py:sst2",
        glue("SST-2"),
        2,
        0.828,
        "TF-IDF of words and pairs",
        (NOT_FOR_GLUE,),
    ),
    "cola": Tuned(
        "glue.py:cola", glue("CoLA"), 5, 0.108, "TF-IDF", (HEADER_OF_COLA, NOT_FOR_GLUE)
    ),
    "stsb": Tuned(
        "glue.py:stsb",
        unseen_pairs,
        5,
        0.544,
        "words in common",
        ("--config.task.label=score", "--config.metric=pearson", NOT_FOR_GLUE),
    ),
    "similarity": Tuned(
        "similarity.py",
        unseen_pairs,
        5,
        0.544,
        "words in common",
        ("--config.task.label=score", "--config.metric=pearson"),
    ),
    "wnut17": Tuned("wnut17.py", wnut, 8, None, ""),
    "squad": Tuned("squad1.py", articles, 1, None, ""),
    "codah": Tuned("codah.py", codah, 4, 0.25, "chance"),
    "goemotions": Tuned("goemotions.py", emotions, 10, 0.374, "TF-IDF"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--rates", default="1e-4,3e-4")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--epochs", type=int, help="instead of the task's own number")
    parser.add_argument("--compute_dtype", default="auto")
    parser.add_argument(
        "--pretrained_only",
        action="store_true",
        help="do not fine-tune from random weights",
    )
    args = parser.parse_args()
    for name in args.tasks.split(","):
        compare(name, args)


def compare(name: str, args: argparse.Namespace) -> None:
    """Fine-tunes one task from pretrained and random weights, and prints its row."""
    task = TASKS[name]
    num_epochs = args.epochs or task.num_epochs
    made = args.workdir / "data"
    made.mkdir(parents=True, exist_ok=True)
    train, dev = task.data(args.data.resolve(), made.resolve())
    flags = [
        f"--config=configs/finetune/{task.config}",
        f"--model={args.model}",
        f"--config.data.train={train}",
        f"--config.data.dev=('{dev}',)",
        "--config.data.test=()",
        f"--config.sequence_length={args.length}",
        f"--config.compute_dtype={args.compute_dtype}",
        f"--config.recipe.num_epochs={num_epochs}",
        f"--config.recipe.learning_rates=({args.rates},)",
        "--config.recipe.group_by_length=True",
        "--sweep",
        f"--seeds={args.seeds}",
        *task.flags,
    ]
    if task.config == "squad1":  # the paper uses 64 and 128 of 384 tokens
        flags += [
            f"--config.task.max_query_length={args.length // 3}",
            f"--config.task.stride={args.length // 3}",
        ]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    pretrained = tune(args.workdir / name / "pretrained", flags, seeds)
    random = None
    if not args.pretrained_only:
        random = tune(args.workdir / name / "random", [*flags, "--from_scratch"], seeds)
    rows.print_row(
        "tuning",
        f"{name}, {num_epochs} epochs, {Path(args.model).resolve().name}",
        pretrained.metric,
        pretrained.values,
        "random weights" if random else None,
        random.values if random else None,
        rate=pretrained.rate,
        peer_rate=random.rate if random else None,
        floor=task.floor,
        floor_of=task.floor_of,
    )


@dataclasses.dataclass(frozen=True)
class Best:
    """The results at the best learning rate."""

    metric: str
    rate: float
    values: list[float]  # one per seed


def tune(workdir: Path, flags: list[str], seeds: list[int]) -> Best:
    """Runs or resumes finetune and returns the results at the best learning rate.

    Only rates at which all seeds have results, from this or an earlier call, count.
    """
    command = [sys.executable, "-m", "bert_jax.finetune", f"--workdir={workdir}"]
    subprocess.run([*command, *flags], check=True, stdout=sys.stderr)
    summary = json.loads((workdir / "results.json").read_text())
    metric = summary["metric"]
    by_rate: dict[float, list[float]] = {}
    for run in summary["runs"]:
        if run["seed"] in seeds:
            value = run["metrics"].get(metric, 0.0)  # a diverged run has no metrics
            by_rate.setdefault(run["learning_rate"], []).append(value)
    by_rate = {r: found for r, found in by_rate.items() if len(found) == len(seeds)}
    rate = max(by_rate, key=lambda rate: statistics.mean(by_rate[rate]))
    return Best(metric, rate, by_rate[rate])


if __name__ == "__main__":
    main()
