"""A made-up task that a small model learns, and a model to tune on it."""

import pathlib

import numpy as np

from bert_jax import encoders
from bert_jax.tasks import config as tasks_config
from bert_jax.tasks import datasets
from bert_jax.tasks.setup import Setup
from tests import models
from tests.conftest import use_mesh
from tests.tasks.test_config import config_dict


def write_table(path: pathlib.Path, num_rows: int, seed: int) -> str:
    """Writes texts that are for it in words of their own; returns their spec."""
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


def changes(directory: pathlib.Path, num_rows: int = 64) -> dict:
    """Returns changes of configs/finetune/sst2.py for a run of seconds."""
    return {
        "data.train": write_table(directory / "train.tsv", num_rows, 0),
        "data.dev": (write_table(directory / "dev.tsv", 30, 1),),
        "data.test": (),
        "task.labels": ("against", "for"),
        "task.glue": (),
        "task.index": "",
        "sequence_length": 24,
        "recipe.num_epochs": 3,
        "recipe.global_batch_size": 8,
        "recipe.learning_rate": 3e-3,
        "log_every_steps": 5,
    }


def make_setup(directory: pathlib.Path, is_from_scratch=False, mesh=(1, 1, 1), **more):
    """Returns what a run of seconds needs; keys with __ for dots."""
    source = directory / "source"
    if not source.exists():
        source.mkdir()
        models.export_to(source)
    config = config_dict("sst2")
    more = {key.replace("__", "."): value for key, value in more.items()}
    for key, value in (changes(directory) | more).items():
        section, _, name = key.rpartition(".")
        target = config[section] if section else config
        target[name] = value
    config = tasks_config.from_config_dict(config)
    encoder = encoders.read(str(source), None)
    found = datasets.read(config, encoder.tokenizer)
    return Setup(
        config, encoder, is_from_scratch, found, found.sha256(), use_mesh(*mesh)
    )
