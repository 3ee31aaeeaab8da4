"""Synthetic tasks, one of each kind, that a small model learns, and such a model."""

import json
import pathlib

import numpy as np

from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import setup as setup_lib
from bert_jax.finetuning.setup import Setup, Start
from bert_jax.loading import model as model_lib
from tests import models
from tests.conftest import use_mesh
from tests.finetuning.test_config import config_dict


def write_table(path: pathlib.Path, num_rows: int, seed: int) -> str:
    """Writes texts whose words determine their class; returns the table's spec."""
    random = np.random.default_rng(seed)
    lines = ["sentence\tlabel"]
    for _ in range(num_rows):
        label = int(random.integers(2))
        first = 1 + 30 * label
        numbers = random.integers(first, first + 30, random.integers(3, 20))
        words = [f"w{i}" for i in numbers]
        lines.append(f"{' '.join(words)}\t{('against', 'for')[label]}")
    path.write_text("\n".join(lines) + "\n")
    return f"tsv:{path}"


def _words(random, side: int, count: int) -> str:
    """Returns random words from one of the two halves of the vocabulary."""
    numbers = random.integers(1 + 30 * side, 31 + 30 * side, count)
    return " ".join(f"w{i}" for i in numbers)


def _regression(random) -> str:
    side = int(random.integers(2))
    return f"{_words(random, side, 6)}\t{_words(random, side, 4)}\t{5 * side}\n"


def _similarity(random) -> str:
    a, b = random.integers(2, size=2)
    return f"{_words(random, a, 6)}\t{_words(random, b, 6)}\t{5 * int(a == b)}\n"


def write_positives(path: pathlib.Path, num_rows: int, seed: int) -> str:
    """Writes pairs of texts with words of the same half; returns the spec."""
    random, lines = np.random.default_rng(seed), ["sentence1\tsentence2\n"]
    for _ in range(num_rows):
        side = int(random.integers(2))
        lines.append(f"{_words(random, side, 6)}\t{_words(random, side, 4)}\n")
    path.write_text("".join(lines))
    return f"tsv:{path}"


def _multi_label(random) -> str:
    sides = [[0], [1], [0, 1]][random.integers(3)]
    text = " ".join(_words(random, side, 4) for side in sides)
    return f"{text}\t{','.join(map(str, sides))}\tid\n"


def _tagging(random) -> str:
    sides = random.integers(2, size=6)
    tags = ("O", "B-name")
    lines = (f"{_words(random, side, 1)}\t{tags[side]}\n" for side in sides)
    return "".join(lines) + "\n"


def _multiple_choice(random) -> str:
    """Returns an example whose correct choice has words of the second half."""
    right = int(random.integers(4))
    choices = "\t".join(_words(random, int(i == right), 3) for i in range(4))
    return f"k\t{_words(random, 0, 5)}\t{choices}\t{right}\n"


# Kind -> config, the first line of its file, and the function that makes later lines.
FILES = {
    "regression": ("stsb", "tsv", "sentence1\tsentence2\tlabel\n", _regression),
    "similarity": ("similarity", "tsv", "sentence1\tsentence2\tlabel\n", _similarity),
    "multi_label": ("goemotions", "tsv", "", _multi_label),
    "tagging": ("wnut17", "conll", "", _tagging),
    "multiple_choice": ("codah", "tsv", "", _multiple_choice),
}


def _write_questions(path: pathlib.Path, num_rows: int, seed: int) -> str:
    """Writes paragraphs of one half's words; the answer is a word of the other half."""
    random, paragraphs = np.random.default_rng(seed), []
    for row in range(num_rows):
        before, answer = _words(random, 0, 4) + " ", _words(random, 1, 1)
        text = f"{before}{answer} {_words(random, 0, 3)}"
        found = [{"text": answer, "answer_start": len(before)}]
        question = {"id": str(row), "question": "w95", "answers": found}
        paragraphs.append({"context": text, "qas": [question]})
    data = [{"title": "made up", "paragraphs": paragraphs}]
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return f"squad:{path}"


def write_set(kind: str, path: pathlib.Path, num_rows: int, seed: int) -> str:
    """Writes examples of a kind; returns the spec of the file."""
    if kind == "classification":
        return write_table(path, num_rows, seed)
    if kind == "question_answering":
        return _write_questions(path, num_rows, seed)
    _, format_, first, line = FILES[kind]
    random = np.random.default_rng(seed)
    path.write_text(first + "".join(line(random) for _ in range(num_rows)))
    return f"{format_}:{path}"


def config_of(kind: str) -> str:
    """Returns the name of a config for the kind."""
    of_kind = {"classification": "sst2", "question_answering": "squad1"}
    return of_kind.get(kind) or FILES[kind][0]


def changes_of(kind: str, directory: pathlib.Path) -> dict:
    """Returns overrides of that config for a run that takes seconds."""
    num_rows, num_epochs = (64, 3) if kind == "classification" else (96, 6)
    found = {
        "data.train": write_set(kind, directory / "train.txt", num_rows, 0),
        "data.dev": (write_set(kind, directory / "dev.txt", 30, 1),),
        "data.test": (),
        "sequence_length": 24,
        "recipe.num_epochs": num_epochs,
        "recipe.global_batch_size": 8,
        "recipe.learning_rate": 3e-3,
        "log_every_steps": 5,
    }
    if kind in ("classification", "regression"):
        found |= {"task.glue": (), "task.index": ""}
    if kind == "classification":
        found |= {"task.labels": ("against", "for")}
    if kind == "multi_label":
        found |= {"task.labels": ("0", "1")}
    if kind == "question_answering":
        found |= {"task.max_query_length": 4, "task.stride": 8}
    return found


def make_setup(
    directory: pathlib.Path,
    is_from_scratch=False,
    mesh=(1, 1, 1),
    kind="classification",
    **more,
):
    """Returns the setup of a run that takes seconds; keys have __ instead of dots."""
    source = directory / "source"
    if not source.exists():
        source.mkdir()
        models.export_to(source)
    config = config_dict(config_of(kind))
    more = {key.replace("__", "."): value for key, value in more.items()}
    config.update_from_flattened_dict(changes_of(kind, directory) | more)
    config = tasks_config.from_config_dict(config)
    encoder = model_lib.read_encoder(str(source))
    found = setup_lib.read_datasets(config, encoder.tokenizer)
    start = Start(str(source), is_from_scratch, None)
    return Setup(config, encoder, start, found, found.sha256(), use_mesh(*mesh))
