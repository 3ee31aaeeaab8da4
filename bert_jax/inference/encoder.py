"""Loads an encoder and computes features of texts with it."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Literal, overload

import jax
import numpy as np

from bert_jax.errors import ConfigError
from bert_jax.inference import options
from bert_jax.inference.features import (
    LAYERS,
    POOLING,
    TEXT_POOLING,
    Extractor,
    TokenFeatures,
)
from bert_jax.inference.options import Text
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import PlacedModel
from bert_jax.model import int8


def load(
    path: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    batch_size: int = 32,
    compute_dtype: str = "float32",
    weights: str = "float32",
    lowercase: bool | None = None,
) -> "TextEncoder":
    """Loads the encoder of a model; its heads are ignored.

    The model is placed on the mesh of `jax.set_mesh`, or on all devices of this process
    if there is none.

    Args:
      path: a directory of `export` or `finetune`, any Hugging Face BERT with
        safetensors, a TF1 checkpoint of google-research/bert, or a workdir of `train`.
      max_length: maximum tokens of a row, [CLS] and [SEP] included. Longer texts are
        truncated at the end; a pair loses tokens from its longer text. None: the
        model's own maximum.
      batch_size: rows per step, over all devices; rounded up to a multiple of the
        number of devices.
      compute_dtype: "float32", or "bfloat16", which is faster on TPUs and GPUs.
      weights: "float32", or "int8", which takes a quarter of the memory.
      lowercase: whether the model was trained on lower-cased text, if it does not
        record it.

    Raises:
      ConfigError: if there is no model, a file is corrupt, an option is out of range,
        or the devices cannot be opened.
    """
    options.check_choice("weights", weights, options.WEIGHTS)
    mesh = options.current_mesh()
    with jax.set_mesh(mesh):
        found = model_lib.read_encoder(os.fspath(path), lowercase, "model")
        trained = model_lib.place(found)
    model = TextEncoder(
        trained,
        mesh,
        max_length=max_length,
        batch_size=batch_size,
        compute_dtype=compute_dtype,
    )
    return model.quantized() if weights == "int8" else model


class TextEncoder:
    """A pretrained encoder that computes features of texts; made by `load`.

    Compiles one program per row length and choice of layers and pooling.

    Attributes:
      tokenizer: the tokenizer; `tokenizer.vocab[id]` is the token of an id.
      max_length: maximum tokens of a row.
      num_layers: number of layers.
      notes: a line for each part of the model that is not used.
    """

    def __init__(
        self,
        trained: PlacedModel,
        mesh: jax.sharding.Mesh,
        *,
        max_length: int | None,
        batch_size: int,
        compute_dtype: str,
    ):
        """Initializes the encoder; see `load` for the options.

        Args:
          trained: a model without a head, on `mesh`.
          mesh: the mesh to compute on.
          max_length, batch_size, compute_dtype: as in `load`.
        """
        options.check_positive("batch_size", batch_size)
        self.tokenizer = trained.tokenizer
        self.num_layers = trained.config.num_hidden_layers
        self.notes = trained.notes
        self.max_length = options.row_length(trained, max_length)
        self._trained, self._mesh = trained, mesh
        self._batch_size, self._compute_dtype = batch_size, compute_dtype
        self._dtype = options.dtype_of(compute_dtype)
        self._extractors: dict[tuple[str, str], Extractor] = {}

    @overload
    def features(
        self,
        texts: Sequence[Text],
        *,
        layers: str = ...,
        pooling: Literal["mean", "cls"] = ...,
        on_batch: Callable[[int], object] | None = ...,
    ) -> np.ndarray: ...

    @overload
    def features(
        self,
        texts: Sequence[Text],
        *,
        layers: str = ...,
        pooling: Literal["none", "words"],
        on_batch: Callable[[int], object] | None = ...,
    ) -> list[TokenFeatures]: ...

    @overload
    def features(
        self,
        texts: Sequence[Text],
        *,
        layers: str = ...,
        pooling: str,
        on_batch: Callable[[int], object] | None = ...,
    ) -> np.ndarray | list[TokenFeatures]: ...

    def features(
        self,
        texts: Sequence[Text],
        *,
        layers: str = "last",
        pooling: str = "mean",
        on_batch: Callable[[int], object] | None = None,
    ) -> np.ndarray | list[TokenFeatures]:
        """Computes features of texts.

        Texts are sorted by length before they are batched, so that a large list needs
        less padding than several small ones.

        Args:
          texts: N texts, or pairs of texts as tuples, in any mixture.
          layers: a key of LAYERS: "first" (the embeddings), "second_to_last", "last",
            "sum_last_four", "concat_last_four" or "sum_all".
          pooling: "mean" for one vector per text, the mean over all its tokens, [CLS]
            and [SEP] included; "cls" for the vector of [CLS]; "none" for one vector per
            token; "words" for one per word, that of its first token.
          on_batch: called after each batch with the number of texts in it.

        Returns:
          With "mean" or "cls", float32[N, F], where F is the hidden size, or four times
          that with "concat_last_four". With "none" or "words", N TokenFeatures.

        Raises:
          ConfigError: if an option is unknown, the model has too few layers, an input
            has more than two texts, or an input is a pair and `pooling` is "words".
          TypeError: if `texts` is a single string.
        """
        parts = options.as_parts(texts)
        self._check(parts, pooling)
        extractor = self._extractor(layers, pooling)
        with jax.set_mesh(self._mesh):
            found = extractor(parts, on_batch)
        if pooling not in TEXT_POOLING:
            return found
        if not found:
            return np.zeros((0, extractor.num_features), np.float32)
        return np.stack([features.values for features in found])

    @property
    def num_tokens(self) -> int:
        """Returns the number of tokens processed so far, special tokens included."""
        return sum(extractor.num_tokens for extractor in self._extractors.values())

    @property
    def num_truncated(self) -> int:
        """Returns the number of texts truncated to `max_length` so far."""
        return sum(extractor.num_truncated for extractor in self._extractors.values())

    @property
    def num_bytes(self) -> int:
        """Returns the size of the weights in bytes."""
        return int8.num_bytes(self._trained.params)

    def quantized(self) -> "TextEncoder":
        """Returns a copy of the model with int8 weights."""
        with jax.set_mesh(self._mesh):
            params = int8.quantize(self._trained.params)
        return TextEncoder(
            dataclasses.replace(self._trained, params=params),
            self._mesh,
            max_length=self.max_length,
            batch_size=self._batch_size,
            compute_dtype=self._compute_dtype,
        )

    def _extractor(self, layers: str, pooling: str) -> Extractor:
        key = layers, pooling
        if key not in self._extractors:
            options.check_choice("layers", layers, list(LAYERS))
            self._extractors[key] = Extractor(
                self._trained,
                layers=layers,
                pooling=pooling,
                max_length=self.max_length,
                batch_size=self._batch_size,
                dtype=self._dtype,
                mesh=self._mesh,
            )
        return self._extractors[key]

    def _check(self, parts: list[options.Parts], pooling: str) -> None:
        options.check_choice("pooling", pooling, POOLING)
        most = 1 if pooling == "words" else 2
        if any(len(texts) == 2 for texts in parts):
            model_lib.check_pairs(self._trained.config, "inputs of several texts")
        for i, texts in enumerate(parts):
            if not 1 <= len(texts) <= most:
                form = "a single text" if most == 1 else "a text or a pair"
                raise ConfigError(
                    f"input {i} has {len(texts)} texts; with pooling={pooling!r} each"
                    f" must be {form}"
                )
