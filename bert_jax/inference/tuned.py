"""Loads a fine-tuned model and predicts one result per input."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.errors import ConfigError
from bert_jax.finetuning import tuned_model
from bert_jax.finetuning.predictor import Predictor
from bert_jax.finetuning.tasks import HEADS
from bert_jax.finetuning.tasks.base import Form
from bert_jax.inference import options
from bert_jax.inference.options import Parts, Text
from bert_jax.loading import model as model_lib
from bert_jax.loading import source as source_lib
from bert_jax.loading.model import PlacedModel
from bert_jax.model import int8


def load_tuned(
    path: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    batch_size: int = 32,
    compute_dtype: str = "float32",
    weights: str = "float32",
    threshold: float | None = None,
    null_threshold: float | None = None,
    stride: int | None = None,
    max_query_length: int | None = None,
    max_answer_length: int | None = None,
    num_best: int = 3,
) -> "TunedModel":
    """Loads a fine-tuned model.

    The model is placed on the mesh of `jax.set_mesh`, or on all devices of this process
    if there is none. Options that are None have the values of the fine-tuning run; for
    a model that does not record them, those of the released run_squad.py, and a
    threshold of 0.5.

    Args:
      path: WORKDIR/model of `finetune`, or a fine-tuned Hugging Face BERT with
        safetensors.
      max_length: maximum tokens of a row, [CLS] and [SEP] included. Longer texts are
        truncated at the end, a pair in its longer text; a long paragraph of question
        answering becomes several overlapping rows. None: the model's own maximum.
      batch_size: rows per step, over all devices; rounded up to a multiple of the
        number of devices.
      compute_dtype: "float32", or "bfloat16", which is faster on TPUs and GPUs.
      weights: "float32", or "int8", which takes a quarter of the memory.
      threshold: multi_label models predict a label if its probability is above this.
      null_threshold: the prediction is "no answer" if its log odds exceed this; if
        given, any question may have no answer.
      stride: tokens between the starts of consecutive windows of a paragraph; 0: half
        a window, at most 128.
      max_query_length: maximum tokens of a question.
      max_answer_length: maximum tokens of an answer.
      num_best: number of answers in "best" of a question.

    Raises:
      ConfigError: if there is no fine-tuned model, a file is corrupt, an option is out
        of range or does not apply to the model, or the devices cannot be opened.
    """
    options.check_choice("weights", weights, options.WEIGHTS)
    mesh = options.current_mesh()
    directory = source_lib.model_path(os.fspath(path), "model")
    with jax.set_mesh(mesh):
        trained = model_lib.place(model_lib.read_tuned(str(directory), HEADS, "model"))
    assert trained.head is not None
    settings = tuned_model.read_settings(
        directory,
        trained.head.kind,
        threshold=threshold,
        null_threshold=null_threshold,
        has_impossible=None if null_threshold is None else True,
        stride=stride,
        max_query_length=max_query_length,
        max_answer_length=max_answer_length,
    )
    model = TunedModel(
        trained,
        mesh,
        settings,
        num_best=num_best,
        max_length=max_length,
        batch_size=batch_size,
        compute_dtype=compute_dtype,
    )
    return model.quantized() if weights == "int8" else model


class TunedModel:
    """A fine-tuned model that predicts; made by `load_tuned`.

    Compiles one program per row length.

    Attributes:
      kind: the kind of its task, for example "classification".
      labels: the names of its classes, in the order of the model.
      max_length: maximum tokens of a row.
      max_texts: maximum number of texts of an input.
      notes: a line for each part of the model that is not used.
      num_truncated: number of rows truncated to `max_length` so far.
      num_cut_words: number of words beyond `max_length` so far, in tagging; their tag
        is O.
    """

    def __init__(
        self,
        trained: PlacedModel,
        mesh: jax.sharding.Mesh,
        settings: dict[str, Any],
        *,
        num_best: int,
        max_length: int | None,
        batch_size: int,
        compute_dtype: str,
    ):
        """Initializes the model; see `load_tuned` for the options.

        Args:
          trained: a model with a head, on `mesh`.
          mesh: the mesh to compute on.
          settings: the decision settings, from `tuned_model.read_settings`.
          num_best, max_length, batch_size, compute_dtype: as in `load_tuned`.
        """
        assert trained.head is not None
        options.check_positive("batch_size", batch_size)
        options.check_positive("num_best", num_best)
        self.kind, self.labels = trained.head.kind, trained.head.labels
        self.max_length = options.row_length(trained, max_length)
        self.notes = trained.notes
        self.num_truncated = self.num_cut_words = 0
        self._trained, self._mesh, self._settings = trained, mesh, settings
        self._options = {
            "num_best": num_best,
            "max_length": self.max_length,
            "batch_size": batch_size,
            "compute_dtype": compute_dtype,
        }
        self._task = tuned_model.task_of(self.kind, self.labels, settings, num_best)
        self._task.check(self.max_length)
        self.max_texts = self._task.form.most
        self._predictor = Predictor(
            trained.graphdef,
            length=self.max_length,
            batch_size=batch_size,
            dtype=options.dtype_of(compute_dtype),
            mesh=mesh,
        )

    def predict(
        self,
        texts: Sequence[Text],
        *,
        on_batch: Callable[[int], object] | None = None,
    ) -> list[dict[str, Any]]:
        """Predicts one result per input, in order.

        Inputs and results by the kind of the model:

            classification      a text or pair: {"label": str, "probabilities":
                                {label: float}}
            multi_label         a text or pair: {"labels": [str], "probabilities":
                                {label: float}}
            regression          a text or pair: {"score": float}
            similarity          a pair: {"similarity": float}, the cosine
            tagging             words separated by spaces: {"words": [str],
                                "tags": [str]}
            question_answering  (question, paragraph): {"answer": str, "best": [{"text":
                                str, "probability": float, "start_logit": float,
                                "end_logit": float}]}; "" is no answer
            multiple_choice     (context, choice, choice, ...): {"choice": int,
                                "probabilities": {"0": float, ...}}

        Texts are sorted by length before they are batched, so that a large list needs
        less padding than several small ones.

        Args:
          texts: the inputs; a pair, or a context and its choices, is a tuple. All have
            the same number of texts.
          on_batch: called after each batch with the number of rows in it.

        Raises:
          ConfigError: if an input has too few or too many texts.
          TypeError: if `texts` is a single string.
        """
        prompt = self._trained.prompt
        inputs = [tuple(prompt + x for x in parts) for parts in options.as_parts(texts)]
        if not inputs:
            return []
        check_form(self._task.form, inputs)
        assert self._trained.head is not None
        if len(inputs[0]) > 1 and not self._trained.head.type.is_dual_encoder:
            model_lib.check_pairs(self._trained.config, "inputs of several texts")
        found: Any = self._task.of_inputs(inputs, self._settings)
        features: Any = self._task.featurize(
            found, self.labels, self._trained.tokenizer, self.max_length, "test"
        )
        self.num_truncated += getattr(features, "num_truncated", 0)
        self.num_cut_words += getattr(features, "num_cut", 0)
        with jax.set_mesh(self._mesh):
            logits = self._predictor(self._trained.params, features, on_batch)
        predicted = self._task.predict(found, features, logits, self.labels)
        return self._task.results(found, predicted, logits, self.labels)

    @property
    def num_bytes(self) -> int:
        """Returns the size of the weights in bytes."""
        return int8.num_bytes(self._trained.params)

    def quantized(self) -> "TunedModel":
        """Returns a copy of the model with int8 weights."""
        with jax.set_mesh(self._mesh):
            params = int8.quantize(self._trained.params)
        trained = dataclasses.replace(self._trained, params=params)
        return TunedModel(trained, self._mesh, self._settings, **self._options)


def check_form(form: Form, inputs: list[Parts]) -> None:
    """Raises ConfigError if an input has too few or too many texts."""
    least, most, words, _ = form
    for i, parts in enumerate(inputs):
        if not least <= len(parts) <= most or len(parts) != len(inputs[0]):
            alike = "" if least == most else ", with as many texts as the first"
            raise ConfigError(
                f"input {i} ({' ||| '.join(parts)[:60]!r}) has {len(parts)}"
                f" text{'s' * (len(parts) != 1)}; each input must be {words}{alike}"
            )
