"""Small fine-tuned models of every kind, and batches for them."""

import dataclasses

import jax
import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.data.tokenizers import base
from bert_jax.finetuning.tasks import HEADS as TYPES
from bert_jax.finetuning.tasks import TASKS
from bert_jax.finetuning.tasks.base import Task
from bert_jax.interop import huggingface_write
from bert_jax.loading import model as model_lib
from bert_jax.model import heads
from bert_jax.model.heads import Head
from tests.conftest import make_config
from tests.models import TOKENIZER

NAMES = ("no", "perhaps", "yes")
LABELS = {
    "regression": ("score",),
    "tagging": ("O", "B-person", "I-person"),
    "classification": NAMES,
    "multi_label": NAMES,
}
HEADS = {
    kind: Head(task.head, LABELS.get(kind, ()), 0.1) for kind, task in TASKS.items()
}
VOCAB_SIZE = len(TOKENIZER.vocab)


def make_task(kind: str, **keys) -> Task:
    """Returns a task with these keys; the others have the values of a trained model."""
    task = TASKS[kind].of_model((), TASKS[kind].settings, 1)
    return dataclasses.replace(task, **keys)


def read(path, given_as="--model"):
    """Returns the fine-tuned model in a directory."""
    return model_lib.read_tuned(str(path), TYPES, given_as)


def build(kind: str, seed: int = 0):
    """Returns the config, structure and parameters of a small model."""
    config = make_config().model
    return config, *draw(config, HEADS[kind], seed)


def write(directory, kind: str = "classification", tokenizer=TOKENIZER):
    """Writes a small model, and returns its config, structure and parameters."""
    config, graphdef, params = build(kind)
    huggingface_write.write_model(directory, params, config, HEADS[kind], tokenizer, 32)
    return config, graphdef, params


def draw(config: ModelConfig, head: Head, seed: int):
    """Returns the structure and random parameters of a model.

    The parameters are larger than initial ones, and none is 0 or 1, so that activations
    are in the non-linear range even with few dims.
    """
    graphdef, params = heads.build(config, VOCAB_SIZE, head, jax.random.key(seed))
    random = np.random.default_rng(seed)

    def larger(x):
        noise = random.normal(0, 0.1, x.shape).astype(x.dtype)
        array = np.asarray(x) + noise if x.ndim == 1 else 2 * noise
        return jax.device_put(array, x.sharding)

    return graphdef, jax.tree.map(larger, params)


def make_batch(kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns a batch of four examples with padding, two segments, and labels."""
    random = np.random.default_rng(seed)
    B, T = 4, 16
    lead = (B, *{"multiple_choice": (3,), "similarity": (2,)}.get(kind, ()))
    lengths = random.integers(T // 2, T + 1, (*lead, 1))
    place = np.broadcast_to(np.arange(T), (*lead, T))
    real = place < lengths
    first = len(base.SPECIAL_TOKENS)
    batch = {
        "input_ids": np.where(real, random.integers(first, 97, (*lead, T)), 0),
        "segment_ids": (place >= lengths // 2) & real,
        "position_ids": place,
        "sequence_ids": real,
    }
    batch = {name: array.astype(np.int32) for name, array in batch.items()}
    batch["weights"] = np.ones(B, np.float32)
    if kind in ("classification", "multiple_choice"):
        batch["labels"] = np.array([0, 2, 1, 2], np.int32)
    elif kind == "regression":
        batch["labels"] = np.array([0, 2.5, 5, 3.2], np.float32)
    elif kind == "similarity":
        batch["labels"] = np.array([0, 0.5, 1, 0.8], np.float32)
    elif kind == "multi_label":
        batch["labels"] = random.integers(0, 2, (B, 3)).astype(np.float32)
    elif kind == "tagging":
        labels = np.where(real & (place % 2 == 1), random.integers(0, 3, (B, T)), -100)
        batch["labels"] = labels.astype(np.int32)
    else:
        batch["start_positions"] = np.array([0, 3, 2, 5], np.int32)
        batch["end_positions"] = np.array([0, 4, 2, 7], np.int32)
    return batch
