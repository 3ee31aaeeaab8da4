"""Opens the model, the labelled data and the teacher of a fine-tuning run."""

import dataclasses
import hashlib
import json

import jax

from bert_jax.distributed import devices, multihost
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.data import datasets as datasets_lib
from bert_jax.finetuning.data.datasets import Datasets
from bert_jax.finetuning.sweep import Setup
from bert_jax.loading import encoders
from bert_jax.loading import model as model_lib
from bert_jax.loading.encoders import Encoder
from bert_jax.loading.model import Opened
from bert_jax.training import compilation

# Settings that are digests, and what they are of.
DIGESTED = {
    "encoder_sha256": "the encoder in --model",
    "data_sha256.train": "what is read from config.data.train",
    "data_sha256.dev": "what is read from config.data.dev",
    "data_sha256.teacher": "the model in config.distill.teacher",
}


@dataclasses.dataclass(frozen=True)
class Start:
    """What tuning begins with.

    Attributes:
      model: where the encoder is.
      is_from_scratch: whether only its sizes and tokenizer are taken.
      lowercase: whether its text was lower-cased, where it does not say.
    """

    model: str
    is_from_scratch: bool
    lowercase: bool | None


def open_inputs(config: FinetuneConfig, start: Start) -> Setup:
    """Returns everything that is read, with the mesh set; nothing is written.

    Raises:
      ConfigError: for everything a person can get wrong.
    """
    devices.open_devices()
    compilation.keep_compiled(config.compilation_cache_dir)
    mesh = mesh_lib.make_mesh(config.mesh)
    jax.set_mesh(mesh)
    mesh_lib.check_batch(
        "config.recipe.global_batch_size",
        config.recipe.global_batch_size,
        config.accumulation_steps,
        mesh,
    )
    mesh_lib.host_part(mesh, jax.process_index())
    encoder = encoders.read(start.model, start.lowercase)
    encoder = encoders.first_layers(encoder, config.num_layers)
    mesh_lib.check_optimizer(encoder.config, config.mesh, mesh)
    most = encoder.config.max_position_embeddings
    if config.sequence_length > most:
        raise ConfigError(
            f"config.sequence_length={config.sequence_length}, but the model in"
            f" {start.model} has {most} positions; set it so, or lower"
        )
    teacher = open_teacher(config, encoder)
    # One after the first: TensorFlow Datasets may have to be prepared.
    datasets = multihost.first_then_others(
        "labelled data", lambda: datasets_lib.read(config, encoder.tokenizer)
    )
    check_metric(config, datasets)
    if teacher:
        check_task_of(teacher, config, datasets)
    sha256 = datasets.sha256() | {"teacher": _digest(teacher) if teacher else ""}
    for name, value in (
        ("config.data and config.distill.teacher", json.dumps(sha256)),
        (f"--model={start.model}", _digest(encoder)),
    ):
        multihost.check_same(name, value, f"{name} is not the same on all hosts")
    laid_out = model_lib.lay_out(teacher) if teacher else None
    return Setup(
        config, encoder, start.is_from_scratch, datasets, sha256, mesh, laid_out
    )


def open_teacher(config: FinetuneConfig, encoder: Encoder) -> Opened | None:
    """Reads the model that config.distill names, None where it names none.

    Raises:
      ConfigError: when there is none, or it cannot read what the encoder reads.
    """
    path = config.distill.teacher
    if not path:
        return None
    teacher = model_lib.open_tuned(path, "config.distill.teacher")
    given, tokenizer = f"config.distill.teacher={path}", encoder.tokenizer
    if (teacher.tokenizer.vocab, teacher.tokenizer.lowercase) != (
        tokenizer.vocab,
        tokenizer.lowercase,
    ):
        raise ConfigError(f"{given} has another tokenizer than --model")
    sizes = teacher.config.hidden_size, encoder.config.hidden_size
    if config.distill.states_weight and sizes[0] != sizes[1]:
        raise ConfigError(
            f"{given} has states of {sizes[0]} dims, --model of {sizes[1]}; set"
            " config.distill.states_weight=0"
        )
    most = teacher.config.max_position_embeddings
    if config.sequence_length > most:
        raise ConfigError(
            f"config.sequence_length={config.sequence_length}, but {given} has"
            f" {most} positions; set it so, or lower"
        )
    return teacher


def check_task_of(teacher: Opened, config: FinetuneConfig, datasets: Datasets) -> None:
    """Raises ConfigError for a teacher of another task."""
    assert teacher.head is not None
    given = f"config.distill.teacher={config.distill.teacher}"
    if teacher.head.kind != config.task.kind:
        raise ConfigError(
            f"{given} was tuned for {teacher.head.kind}, config.task.kind is"
            f" {config.task.kind}"
        )
    # A regression's only label is the name of a column.
    if config.task.kind != "regression" and teacher.head.labels != datasets.names:
        raise ConfigError(
            f"{given} has the labels {', '.join(teacher.head.labels)}, the task"
            f" {', '.join(datasets.names)}; set config.task.labels to the former"
        )


def check_metric(config: FinetuneConfig, datasets: Datasets) -> None:
    """Raises ConfigError for the F1 that so many classes have not."""
    if config.task.kind == "classification":
        of_two, of_others = ("f1", "macro_f1")
        absent = of_others if len(datasets.names) == 2 else of_two
        if config.metric == absent:
            raise ConfigError(
                f"config.metric={absent!r} is not for {len(datasets.names)} classes:"
                f" two have {of_two}, others {of_others}"
            )


def _digest(model: Encoder | Opened) -> str:
    digest = hashlib.sha256(repr(model.config).encode())
    for name, array in sorted(model.arrays.items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()
