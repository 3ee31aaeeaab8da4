"""Opens the inputs of a sweep: model, labelled data and teacher.

`Setup` holds them, with the compiled functions that all runs of the sweep share.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.data.tokenizers.library import LibraryTokenizer
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.distributed import devices, multihost
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import batches
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.batches import Batching, Predictor
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.tasks import HEADS
from bert_jax.finetuning.tasks.base import Role
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import HostModel, PlacedModel
from bert_jax.model import heads, parameters
from bert_jax.model.heads import Head
from bert_jax.training import compilation
from bert_jax.training import step as step_lib

OnRows = Callable[[int], object]  # called with the number of rows of each batch
# Settings that are digests -> a description of the content that each one covers.
DIGESTED = {
    "encoder_sha256": "the encoder in --model",
    "data_sha256.train": "the data in config.data.train",
    "data_sha256.dev": "the data in config.data.dev",
    "data_sha256.teacher": "the model in config.distill.teacher",
}


@dataclasses.dataclass(frozen=True)
class Start:
    model: str  # path of the encoder
    # whether only its sizes and tokenizer are used, not its weights
    is_from_scratch: bool
    # whether it was trained on lower-cased text, if it does not record it
    lowercase: bool | None
    given: Collection[str] = ()  # the keys of the config that flags set


@dataclasses.dataclass(frozen=True)
class Split:
    spec: str
    examples: Any  # its `Examples`, of the subclass that the task reads
    features: Any  # their rows, which are `Features` of the task


@dataclasses.dataclass(frozen=True)
class Datasets:
    names: tuple[str, ...]  # label names of the head; () if its outputs have no names
    train: Split  # the training set
    dev: tuple[Split, ...]  # dev sets; the first one selects the best checkpoint
    test: tuple[Split, ...]  # test sets, whose labels are not used

    def sha256(self) -> dict[str, str]:
        """Returns SHA-256 digests: "train" of the training set, "dev" of all dev sets.

        They cover the rows that the model reads and the label names.
        """
        dev = hashlib.sha256()
        for split in self.dev:
            dev.update(_digest(split, self.names))
        return {"train": _digest(self.train, self.names).hex(), "dev": dev.hexdigest()}


def _digest(split: Split, names: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256(repr(names).encode())
    digest.update(split.examples.references())
    for rows_B in batches.in_order(len(split.features), 1024):
        for name, array in sorted(split.features.batch(rows_B).items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()


def read_datasets(config: FinetuneConfig, tokenizer: Tokenizer) -> Datasets:
    task, header, length = config.task, config.data.header, config.sequence_length
    names: tuple[str, ...] = ()  # those of the training set, when it has been read

    def split(spec: str, role: Role) -> Split:
        nonlocal names
        examples: Any
        try:
            examples, names = task.read(spec, header, names, role)
            if role == "test":
                examples = examples.as_test_set(train.examples)
            elif not examples.is_labelled:
                raise ConfigError(
                    f"{spec} has no labels, which a train or dev set needs; check the"
                    " columns that config.task names"
                )
            features = task.featurize(examples, names, tokenizer, length, role)
            if not len(features):
                raise ConfigError(f"{spec} has no examples; {examples.why_empty()}")
        except ConfigError as error:
            error.args = (f"config.data.{role}: {error}",)
            raise
        return Split(spec, examples, features)

    train = split(config.data.train, "train")
    dev = tuple(split(spec, "dev") for spec in config.data.dev)
    test = tuple(split(spec, "test") for spec in config.data.test)
    return Datasets(names, train, dev, test)


@dataclasses.dataclass(frozen=True)
class Setup:
    """Inputs and compiled functions that all runs of a sweep share."""

    config: FinetuneConfig
    encoder: HostModel
    start: Start  # where the encoder is from
    datasets: Datasets
    sha256: dict[str, str]  # digests of the data, by set, and of the teacher
    mesh: jax.sharding.Mesh
    teacher: PlacedModel | None = None  # the model to distill from

    @property
    def head(self) -> Head:
        dropout_prob = self.config.dropout.head_prob
        return Head(self.config.task.head, self.datasets.names, dropout_prob)

    @property
    def model(self) -> ModelConfig:
        """Returns the encoder's config with the dropout rates of fine-tuning."""
        dropout = self.config.dropout
        return dataclasses.replace(
            self.encoder.config,
            hidden_dropout_prob=dropout.hidden_prob,
            attention_probs_dropout_prob=dropout.attention_prob,
        )

    def build(self, key: jax.Array) -> tuple[nnx.GraphDef, nnx.State]:
        """Returns the structure and initial parameters of the model with its head."""
        vocab_size = len(self.encoder.tokenizer.vocab)
        return heads.build(self.model, vocab_size, self.head, key)

    @functools.cached_property
    def graphdef(self) -> nnx.GraphDef:
        return parameters.structure(self.build)[0]

    @property
    def num_steps(self) -> int:
        """Steps of a run, as google-research/bert run_classifier.py; at least 1."""
        recipe = self.config.recipe
        num_rows = len(self.datasets.train.features) * recipe.num_epochs
        return max(num_rows // recipe.global_batch_size, 1)

    @functools.cached_property
    def train_step(self) -> Any:
        teacher = self.teacher.graphdef if self.teacher else None
        return compilation.jit(
            tuning_step.make_train_step(
                self.config, self.graphdef, self.num_steps, teacher
            )
        )

    @functools.cached_property
    def predictor(self) -> Predictor:
        config = self.config
        batch_size = config.recipe.global_batch_size
        dtype = step_lib.compute_dtype(config.compute_dtype)
        batching = Batching(config.sequence_length, batch_size, dtype, self.mesh)
        return Predictor(self.graphdef, batching)

    def predict(self, params: Any, split: Split, on_rows: OnRows | None = None) -> Any:
        """Returns the predictions for a data set, see `Task.predict`."""
        logits = self.predictor(params, split.features, on_rows)
        task, names = self.config.task, self.datasets.names
        return task.predict(split.examples, split.features, logits, names)

    def evaluate(
        self, params: Any, split: Split, on_rows: OnRows | None = None
    ) -> dict[str, float]:
        predicted = self.predict(params, split, on_rows)
        return self.config.task.evaluate(split.examples, predicted, self.datasets.names)


def open_inputs(config: FinetuneConfig, start: Start) -> Setup:
    """Opens all inputs and sets the mesh; writes only to the compilation cache."""
    devices.open_devices()
    mesh = mesh_lib.make_mesh(config.mesh)
    jax.set_mesh(mesh)
    mesh_lib.check_batch(
        "config.recipe.global_batch_size",
        config.recipe.global_batch_size,
        config.accumulation_steps,
        mesh,
    )
    encoder = model_lib.read_encoder(start.model, start.lowercase)
    encoder = model_lib.first_layers(encoder, config.num_layers)
    mesh_lib.check_optimizer(encoder.config, config.mesh, mesh)
    models = {f"--model={start.model}": encoder}
    teacher, key = None, "config.distill.teacher"
    if path := config.distill.teacher:
        teacher = model_lib.read_tuned(path, HEADS, key)
        models[f"{key}={path}"] = teacher
    for name, model in models.items():
        if config.task.has_pairs:
            model_lib.check_pairs(model.config, name)
        most = model.config.max_position_embeddings
        config = fit_length(config, start.given, name, most)
    config = fit_dropout(config, start.given, encoder.config)
    # Process 0 reads first: it may have to prepare a dataset of TensorFlow Datasets.
    datasets = multihost.first_then_others(
        "labelled data", lambda: read_datasets(config, encoder.tokenizer)
    )
    check_metric(config, datasets)
    if teacher:
        check_teacher(teacher, encoder, config, datasets.names)
    sha256 = datasets.sha256() | {"teacher": digest(teacher) if teacher else ""}
    for name, value in (
        ("config.data and config.distill.teacher", json.dumps(sha256)),
        (f"--model={start.model}", digest(encoder)),
    ):
        multihost.check_same(
            name,
            value,
            f"the content of {name} differs between processes; give every process the"
            " same files",
        )
    print(compilation.enable_cache(config.compilation_cache_dir), flush=True)
    placed = model_lib.place(teacher) if teacher else None
    return Setup(config, encoder, start, datasets, sha256, mesh, placed)


def fit_length(
    config: FinetuneConfig, given: Collection[str], model: str, most: int
) -> FinetuneConfig:
    """Lowers config.sequence_length to a model's positions, unless a flag sets it."""
    if config.sequence_length <= most:
        return config
    if "sequence_length" in given:
        raise ConfigError(
            f"config.sequence_length={config.sequence_length}, but {model} has {most}"
            f" positions; set it to at most {most}, or remove the flag"
        )
    fitting = dataclasses.replace(config, sequence_length=most)
    fitting.task.check(most, fitting)
    return fitting


def fit_dropout(
    config: FinetuneConfig, given: Collection[str], model: ModelConfig
) -> FinetuneConfig:
    """Sets the encoder's rates to 0 that are 0 in the model, unless a flag sets them.

    transformers also fine-tunes with the rates in the model's config.json.
    """
    if config.task.needs_dropout:
        return config
    rates = {
        "hidden_prob": model.hidden_dropout_prob,
        "attention_prob": model.attention_probs_dropout_prob,
    }
    zeros = {
        name: 0.0
        for name, rate in rates.items()
        if rate == 0 and f"dropout.{name}" not in given
    }
    dropout = dataclasses.replace(config.dropout, **zeros)
    return dataclasses.replace(config, dropout=dropout)


def _rules(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that is equal for tokenizers that differ in rare texts."""
    if isinstance(tokenizer, LibraryTokenizer):
        return tokenizer.for_corpora or tokenizer
    return tokenizer


def check_teacher(
    teacher: HostModel,
    encoder: HostModel,
    config: FinetuneConfig,
    names: tuple[str, ...],
) -> None:
    """Raises ConfigError if a teacher does not suit its student or the task."""
    assert teacher.head is not None
    kind, labels = teacher.head.type.kind, teacher.head.labels
    sizes = teacher.config.hidden_size, encoder.config.hidden_size
    if _rules(teacher.tokenizer) != _rules(encoder.tokenizer):
        problem = "has another tokenizer than --model; distillation needs the same one"
    elif config.distill.states_weight and sizes[0] != sizes[1]:
        problem = (
            f"has hidden_size={sizes[0]}, but --model has {sizes[1]}; set"
            " config.distill.states_weight=0"
        )
    elif kind != config.task.kind:
        problem = (
            f"was fine-tuned for {kind}, but config.task.kind is {config.task.kind};"
            " give a teacher fine-tuned on the same task"
        )
    # The only label of a regression is a column name, which may differ.
    elif kind != "regression" and labels != names:
        problem = (
            f"has the labels {', '.join(labels)}, but the task has {', '.join(names)};"
            " set config.task.labels to the teacher's"
        )
    else:
        return
    raise ConfigError(f"config.distill.teacher={config.distill.teacher} {problem}")


def check_metric(config: FinetuneConfig, datasets: Datasets) -> None:
    """Raises ConfigError if the metric is an F1 undefined for the number of classes."""
    is_binary = len(datasets.names) == 2
    defined, undefined = ("f1", "macro_f1") if is_binary else ("macro_f1", "f1")
    if config.task.kind == "classification" and config.metric == undefined:
        raise ConfigError(
            f"config.metric={undefined!r} is not defined for {len(datasets.names)}"
            f" classes; set config.metric={defined}"
        )


def digest(model: HostModel) -> str:
    sha256 = hashlib.sha256(repr(model.config).encode())
    for name, array in sorted(model.arrays.items()):
        sha256.update(name.encode() + array.tobytes())
    return sha256.hexdigest()
