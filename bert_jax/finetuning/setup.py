"""Opens and describes the inputs of a sweep: model, labelled data and teacher.

`Setup` holds them, with the compiled functions that all runs of the sweep share.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.data.tokenizers.library import LibraryTokenizer
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.distributed import devices, multihost
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import step as tuning_step
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.data import batches
from bert_jax.finetuning.data.datasets import Datasets, Split
from bert_jax.finetuning.data.datasets import read as read_datasets
from bert_jax.finetuning.predictor import Predictor
from bert_jax.finetuning.tasks import HEADS
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
# Attributes that count lost data, of features or examples -> their descriptions.
LOSSES = {
    "num_truncated": "rows truncated to the sequence length",
    "num_cut": "words beyond the sequence length",
    "num_dropped": "questions dropped, no answer in their paragraph",
    "num_unlabelled": "examples skipped, no label",
    "num_lost_lines": "lines skipped, wrong number of columns",
    "num_empty": "sentences skipped, no words",
    "num_mended": "wrong answer offsets, corrected",
    "num_lost": "answers not found in their paragraph",
}
LISTED_CLASSES = 20  # of more classes, the smallest and the largest are reported


@dataclasses.dataclass(frozen=True)
class Start:
    """The model that fine-tuning starts from.

    Attributes:
      model: path of the encoder.
      is_from_scratch: whether only its sizes and tokenizer are used, not its weights.
      lowercase: whether it was trained on lower-cased text, if it does not record it.
      given: the keys of the config that flags set.
    """

    model: str
    is_from_scratch: bool
    lowercase: bool | None
    given: Collection[str] = ()


@dataclasses.dataclass(frozen=True)
class Setup:
    """Inputs and compiled functions that all runs of a sweep share.

    Attributes:
      config: config of the sweep.
      encoder: the encoder that runs start from.
      is_from_scratch: whether runs use only the encoder's sizes and tokenizer, not its
        weights.
      datasets: the labelled data.
      sha256: digests of the data, from `Datasets.sha256`, and of the teacher.
      mesh: the current mesh.
      teacher: a model with the same head to distill from, or None.
    """

    config: FinetuneConfig
    encoder: HostModel
    is_from_scratch: bool
    datasets: Datasets
    sha256: dict[str, str]
    mesh: jax.sharding.Mesh
    teacher: PlacedModel | None = None

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

    @functools.cached_property
    def num_steps(self) -> int:
        """Returns the number of steps of a run."""
        recipe = self.config.recipe
        num_rows = len(self.datasets.train.features)
        return batches.num_steps(num_rows, recipe.num_epochs, recipe.global_batch_size)

    @functools.cached_property
    def train_step(self) -> Any:
        """Returns the jitted train step, shared by all learning rates and seeds."""
        step = tuning_step.make_train_step(
            self.config,
            self.graphdef,
            self.num_steps,
            self.teacher.graphdef if self.teacher else None,
        )
        return compilation.jit(step)

    @functools.cached_property
    def predictor(self) -> Predictor:
        """Returns the predictor, shared by all runs and data sets."""
        config = self.config
        return Predictor(
            self.graphdef,
            length=config.sequence_length,
            batch_size=config.recipe.global_batch_size,
            dtype=step_lib.compute_dtype(config.compute_dtype),
            mesh=self.mesh,
        )

    def predict(self, params: Any, split: Split, on_rows: OnRows | None = None) -> Any:
        """Returns the predictions for a data set, see `Task.predict`."""
        logits = self.predictor(params, split.features, on_rows)
        task, names = self.config.task, self.datasets.names
        return task.predict(split.examples, split.features, logits, names)

    def evaluate(
        self, params: Any, split: Split, on_rows: OnRows | None = None
    ) -> dict[str, float]:
        """Returns the metrics of a labelled data set."""
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
    mesh_lib.host_part(mesh, jax.process_index())
    encoder = model_lib.read_encoder(start.model, start.lowercase)
    if config.task.has_pairs:
        model_lib.check_pairs(encoder.config, f"config.task.kind={config.task.kind!r}")
    encoder = model_lib.first_layers(encoder, config.num_layers)
    mesh_lib.check_optimizer(encoder.config, config.mesh, mesh)
    teacher = open_teacher(config, encoder)
    models = {f"--model={start.model}": encoder}
    if teacher:
        models[f"config.distill.teacher={config.distill.teacher}"] = teacher
    for name, model in models.items():
        most = model.config.max_position_embeddings
        config = fit_length(config, start.given, name, most)
    # Process 0 reads first: it may have to prepare a dataset of TensorFlow Datasets.
    datasets = multihost.first_then_others(
        "labelled data", lambda: read_datasets(config, encoder.tokenizer)
    )
    check_metric(config, datasets)
    if teacher:
        check_teacher_task(teacher, config, datasets)
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
    return Setup(config, encoder, start.is_from_scratch, datasets, sha256, mesh, placed)


def describe(setup: Setup, start: Start, workdir: str) -> str:
    """Returns the first lines of a sweep: its model, task, data and devices."""
    config, datasets = setup.config, setup.datasets
    model = setup.encoder.config
    part = "sizes and tokenizer only" if start.is_from_scratch else "its weights"
    names = f", {len(datasets.names)} labels" if datasets.names else ""
    notes = [*setup.encoder.notes, *class_counts(datasets), *losses(datasets)]
    sizes = [
        split.examples.size(len(split.features))
        for split in (datasets.train, *datasets.dev)
    ]
    teacher = []
    if setup.teacher:
        layers = _layers(setup.teacher.config)
        teacher = [f"teacher: {config.distill.teacher}, {layers}"]
    lines = [
        f"model:  {start.model}, {part}; {_layers(model)} of {model.hidden_size}",
        *teacher,
        f"task:   {config.task.kind}{names}, rows of at most"
        f" {config.sequence_length} tokens, best by {config.metric}",
        f"data:   {sizes[0]} to train on, dev {', '.join(sizes[1:])}",
        *(f"        {note}" for note in notes),
        f"device: {jax.device_count()} x {jax.devices()[0].device_kind}, workdir"
        f" {workdir}",
    ]
    return "\n".join(lines)


def _layers(model: ModelConfig) -> str:
    number = model.num_hidden_layers
    return f"{number} layer{'s' if number > 1 else ''}"


def class_counts(datasets: Datasets) -> list[str]:
    """Returns a line for each labelled set with the number of examples per class."""
    found = []
    for split in (datasets.train, *datasets.dev):
        counts = split.examples.class_counts(datasets.names)
        shown = [f"{name} {count:,}" for name, count in counts]
        if len(shown) > LISTED_CLASSES:
            counts.sort(key=lambda item: -item[1])
            (most, highest), (least, lowest) = counts[0], counts[-1]
            shown = [f"from {least} {lowest:,} to {most} {highest:,}"]
        if shown:
            found.append(f"{split.spec}: {', '.join(shown)}")
    return found


def losses(datasets: Datasets) -> list[str]:
    """Returns a line for each data set that was truncated or is incomplete."""
    found = []
    for split in (datasets.train, *datasets.dev, *datasets.test):
        parts = [
            f"{count:,} {words}"
            for name, words in LOSSES.items()
            for holder in (split.features, split.examples)
            if (count := getattr(holder, name, 0))
        ]
        if parts:
            found.append(f"{split.spec}: {', '.join(parts)}")
    return found


def open_teacher(config: FinetuneConfig, encoder: HostModel) -> HostModel | None:
    """Opens config.distill.teacher, which has to suit the encoder; None if it is ""."""
    path = config.distill.teacher
    if not path:
        return None
    teacher = model_lib.read_tuned(path, HEADS, "config.distill.teacher")
    given = f"config.distill.teacher={path}"
    if _rules(teacher.tokenizer) != _rules(encoder.tokenizer):
        raise ConfigError(
            f"{given} and --model have different tokenizers; distillation needs the"
            " same one"
        )
    sizes = teacher.config.hidden_size, encoder.config.hidden_size
    if config.distill.states_weight and sizes[0] != sizes[1]:
        raise ConfigError(
            f"{given} has hidden_size={sizes[0]}, but --model has {sizes[1]}; set"
            " config.distill.states_weight=0"
        )
    return teacher


def fit_length(
    config: FinetuneConfig, given: Collection[str], model: str, most: int
) -> FinetuneConfig:
    """Lowers config.sequence_length to the number of positions of a model.

    Args:
      given: the keys of the config that flags set.
      model: the flag or key of the model and its value, for error messages.
    """
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


def _rules(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that is equal for tokenizers that differ in rare texts."""
    if isinstance(tokenizer, LibraryTokenizer):
        return tokenizer.for_corpora or tokenizer
    return tokenizer


def check_teacher_task(
    teacher: HostModel, config: FinetuneConfig, datasets: Datasets
) -> None:
    """Raises ConfigError if the teacher was fine-tuned on a different task."""
    assert teacher.head is not None
    given = f"config.distill.teacher={config.distill.teacher}"
    if teacher.head.kind != config.task.kind:
        raise ConfigError(
            f"{given} was fine-tuned for {teacher.head.kind}, but config.task.kind is"
            f" {config.task.kind}; give a teacher fine-tuned on the same task"
        )
    # The only label of a regression is a column name, which may differ.
    if config.task.kind != "regression" and teacher.head.labels != datasets.names:
        raise ConfigError(
            f"{given} has the labels {', '.join(teacher.head.labels)}, but the task has"
            f" {', '.join(datasets.names)}; set config.task.labels to the teacher's"
        )


def check_metric(config: FinetuneConfig, datasets: Datasets) -> None:
    """Raises ConfigError if the metric is an F1 undefined for the number of classes."""
    undefined = "macro_f1" if len(datasets.names) == 2 else "f1"
    if config.task.kind == "classification" and config.metric == undefined:
        defined = "f1" if undefined == "macro_f1" else "macro_f1"
        raise ConfigError(
            f"config.metric={undefined!r} is not defined for {len(datasets.names)}"
            f" classes; set config.metric={defined}"
        )


def digest(model: HostModel) -> str:
    """Returns the SHA-256 of a model's config and weights."""
    sha256 = hashlib.sha256(repr(model.config).encode())
    for name, array in sorted(model.arrays.items()):
        sha256.update(name.encode() + array.tobytes())
    return sha256.hexdigest()
