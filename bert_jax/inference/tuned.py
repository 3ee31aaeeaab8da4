"""Loads a fine-tuned model and predicts one result per input."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.config.validation import require
from bert_jax.errors import ConfigError
from bert_jax.finetuning.batches import Predictor
from bert_jax.finetuning.tasks import HEADS, TASKS
from bert_jax.finetuning.tasks.base import Form
from bert_jax.inference import model as base
from bert_jax.inference.model import Model, Options, Parts, Text
from bert_jax.loading import model as model_lib
from bert_jax.loading import source as source_lib


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

    Options that are None have the values of the fine-tuning run; for a model that does
    not record them, those of the released run_squad.py, and a threshold of 0.5.

    Args:
      path: WORKDIR/model of `finetune`, or a fine-tuned Hugging Face BERT with
        safetensors.
      max_length, batch_size, compute_dtype, weights: as in `load`. A long paragraph of
        question answering becomes several overlapping rows.
      threshold: multi_label models predict a label if its probability is above this.
      null_threshold: the prediction is "no answer" if its log odds exceed this; if
        given, any question may have no answer.
      stride: tokens between the starts of consecutive windows of a paragraph; 0: half
        a window, at most 128.
      max_query_length: maximum tokens of a question.
      max_answer_length: maximum tokens of an answer.
      num_best: number of answers in "best" of a question.
    """
    options = Options(max_length, batch_size, compute_dtype, weights)
    require(num_best >= 1, "num_best", num_best, "must be at least 1")
    with jax.set_mesh(base.current_mesh()):
        directory = source_lib.model_path(os.fspath(path), "model")
        model = model_lib.read_tuned(str(directory), HEADS, "model")
        assert model.head is not None
        settings = TASKS[model.head.type.kind].read_settings(
            directory,
            threshold=threshold,
            null_threshold=null_threshold,
            has_impossible=None if null_threshold is None else True,
            stride=stride,
            max_query_length=max_query_length,
            max_answer_length=max_answer_length,
        )
        return TunedModel(model, settings, num_best, options)


class TunedModel(Model):
    """A fine-tuned model that predicts; made by `load_tuned`.

    Compiles one program per row length. Attributes beside those of `Model`:
      kind: the kind of its task, for example "classification".
      labels: the names of its classes, in the order of the model.
      max_texts: maximum number of texts of an input.
      num_cut_words: number of words beyond `max_length` so far, in tagging; their tag
        is O.
    """

    def __init__(
        self,
        model: model_lib.HostModel,
        settings: dict[str, Any],
        num_best: int,
        options: Options,
    ):
        """Places a model; see `load_tuned`, and `Task.read_settings`."""
        super().__init__(model, options)
        assert model.head is not None
        self._head, self._prompt, self._settings = model.head, model.prompt, settings
        self.kind, self.labels = model.head.type.kind, model.head.labels
        self.num_cut_words = 0
        self._task = TASKS[self.kind].of_model(self.labels, settings, num_best)
        self._task.check(self.max_length)
        self.max_texts = self._task.form.most
        self._predictor = Predictor(self._graphdef, self._batching)

    def predict(
        self, texts: Sequence[Text], *, on_batch: Callable[[int], object] | None = None
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
        """
        inputs = [
            tuple(self._prompt + text for text in parts)
            for parts in base.as_parts(texts)
        ]
        if not inputs:
            return []
        check_form(self._task.form, inputs)
        if len(inputs[0]) > 1 and not self._head.type.is_dual_encoder:
            model_lib.check_pairs(self._config, "inputs of several texts")
        found: Any = self._task.of_inputs(inputs, self._settings)
        features: Any = self._task.featurize(
            found, self.labels, self.tokenizer, self.max_length, "test"
        )
        self.num_truncated += getattr(features, "num_truncated", 0)
        self.num_cut_words += getattr(features, "num_cut", 0)
        with jax.set_mesh(self._mesh):
            logits = self._predictor(self._params, features, on_batch)
        predicted = self._task.predict(found, features, logits, self.labels)
        return self._task.results(found, predicted, logits, self.labels)


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
