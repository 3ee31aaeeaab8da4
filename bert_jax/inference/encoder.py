"""Loads an encoder and computes features of tokens, words or texts with it.

Source: the combinations of layers are those of Devlin et al. 2019, section 5.3.

Shapes: B row of the batch, T token, D hidden, F feature (D, or 4 D if four layers are
concatenated).
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config.validation import one_of, require
from bert_jax.data.batches import row_layout
from bert_jax.data.batches.row_layout import Rows
from bert_jax.errors import ConfigError
from bert_jax.finetuning.batches import Predictor
from bert_jax.finetuning.tasks.base import Features
from bert_jax.inference import model as base
from bert_jax.inference.model import Model, Options, Parts, Text
from bert_jax.loading import model as model_lib
from bert_jax.model import heads

# Functions of the hidden states: the embeddings, then the output of each layer. Sums do
# not include the embeddings.
LAYERS: dict[str, Callable[[list[jax.Array]], jax.Array]] = {
    "first": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: sum(states[-3:], states[-4]),
    "concat_last_four": lambda states: jnp.concatenate(states[-4:], axis=-1),
    "sum_all": lambda states: sum(states[2:], states[1]),
}
TEXT_POOLING = ("mean", "cls")  # one vector per text
POOLING = ("none", "words", *TEXT_POOLING)


@dataclasses.dataclass(frozen=True)
class TokenFeatures:
    """Features of the tokens or words of one text or pair."""

    # int32[T], the row [CLS] text [SEP] or [CLS] text [SEP] other text [SEP]; with
    # "words" pooling, the first token of each word
    ids: np.ndarray
    # starts, ends: int32[T], character offsets of each token in its text; 0 for special
    # tokens
    starts: np.ndarray
    ends: np.ndarray
    values: np.ndarray  # float32[T, F]


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
    """
    options = Options(max_length, batch_size, compute_dtype, weights)
    with jax.set_mesh(base.current_mesh()):
        model = model_lib.read_encoder(os.fspath(path), lowercase, "model")
        return TextEncoder(model, options)


class TextEncoder(Model):
    """A pretrained encoder that computes features of texts; made by `load`.

    Compiles one program per row length and choice of layers and pooling. Attributes
    beside those of `Model`:
      num_layers: number of layers.
      num_tokens: number of tokens processed so far, special tokens included.
    """

    def __init__(self, model: model_lib.HostModel, options: Options):
        super().__init__(model, options)
        self.num_layers = model.config.num_hidden_layers
        self.num_tokens = 0
        self._locate = self.tokenizer.locator()
        self._predictors: dict[tuple[str, str], Predictor] = {}

    def features(
        self,
        texts: Sequence[Text],
        *,
        layers: str = "last",
        pooling: str = "mean",
        on_batch: Callable[[int], object] | None = None,
    ) -> Any:
        """Computes features of texts.

        Texts are sorted by length before they are batched, so that a large list needs
        less padding than several small ones.

        Args:
          texts: N texts, or pairs of texts as tuples, in any mixture.
          layers: a key of LAYERS; "first" is the embeddings.
          pooling: "mean" for one vector per text, the mean over all its tokens, [CLS]
            and [SEP] included; "cls" for the vector of [CLS]; "none" for one vector per
            token; "words" for one per word, that of its first token.
          on_batch: called after each batch with the number of texts in it.

        Returns:
          With "mean" or "cls", float32[N, F], where F is the hidden size, or four times
          that with "concat_last_four". With "none" or "words", N TokenFeatures.
        """
        parts = base.as_parts(texts)
        self._check(parts, layers, pooling)
        found: Any = [None] * len(parts)
        if pooling in TEXT_POOLING:
            num_vectors = 4 if layers == "concat_last_four" else 1
            shape = len(parts), num_vectors * self._config.hidden_size
            found = np.zeros(shape, np.float32)
        if parts:
            self._compute(parts, layers, pooling, on_batch, found)
        return found

    def _compute(
        self,
        texts: list[Parts],
        layers: str,
        pooling: str,
        on_batch: Callable[[int], object] | None,
        found: Any,
    ) -> None:
        """Computes the features of each text into `found`."""
        rows, starts, ends = self._rows(texts)
        num_tokens_N = rows.num_tokens()
        self.num_tokens += int(num_tokens_N.sum())
        predictor = self._predictors.get((layers, pooling))
        if predictor is None:
            outputs = functools.partial(_features, layers, pooling)
            predictor = Predictor(self._graphdef, self._batching, outputs)
            self._predictors[layers, pooling] = predictor
        with jax.set_mesh(self._mesh):
            for texts_B, values in predictor.batches(self._params, Features(rows)):
                if pooling in TEXT_POOLING:
                    found[texts_B] = values
                else:
                    source_BT = rows.cut(texts_B).layout(texts_B).source_BT
                    for row, text in enumerate(texts_B):
                        tokens = row, slice(num_tokens_N[text])
                        source = source_BT[tokens]
                        of_tokens = values[tokens].copy()
                        found[text] = TokenFeatures(
                            rows.ids[source], starts[source], ends[source], of_tokens
                        )
                        if pooling == "words":
                            found[text] = word_features(texts[text][0], found[text])
                if on_batch is not None:
                    on_batch(len(texts_B))

    def _rows(self, texts: list[Parts]) -> tuple[Rows, np.ndarray, np.ndarray]:
        """Returns the rows, and the character offsets of their tokens."""
        located = [self._locate(part) for text in texts for part in text]
        num_parts_N = np.array([len(text) for text in texts])
        a_N = np.cumsum(num_parts_N) - num_parts_N
        b_N = np.where(num_parts_N > 1, a_N + 1, -1)
        ids = [text.ids for text in located]
        tokens = row_layout.join(ids, self.tokenizer, self.max_length)
        rows, num_truncated = row_layout.of_pairs(tokens, a_N, b_N, self.max_length)
        self.num_truncated += num_truncated
        starts = row_layout.aligned([text.starts for text in located], tokens, 0)
        ends = row_layout.aligned([text.ends for text in located], tokens, 0)
        return rows, starts, ends

    def _check(self, parts: list[Parts], layers: str, pooling: str) -> None:
        require(pooling in POOLING, "pooling", pooling, one_of(POOLING))
        most = 1 if pooling == "words" else 2
        if any(len(texts) == 2 for texts in parts):
            model_lib.check_pairs(self._config, "inputs of several texts")
        for i, texts in enumerate(parts):
            if not 1 <= len(texts) <= most:
                form = "a single text" if most == 1 else "a text or a pair"
                raise ConfigError(
                    f"input {i} has {len(texts)} texts; with pooling={pooling!r} each"
                    f" must be {form}"
                )
        require(layers in LAYERS, "layers", layers, one_of(LAYERS))
        if layers.endswith("last_four") and self.num_layers < 4:
            raise ConfigError(
                f"layers={layers} needs at least 4 layers, but the model has"
                f" {self.num_layers} layers; try layers=sum_all"
            )


def word_features(text: str, features: TokenFeatures) -> TokenFeatures:
    """Reduces the features of a text's tokens to one vector per word.

    Words are separated by spaces. The features of a word are those of its first token,
    as in the tagging experiment of Devlin et al. 2019, section 5.3. A word without
    tokens, because it was truncated or the tokenizer drops its characters, has the id
    0 and features of 0.

    The features include those of [CLS] and [SEP].
    """
    spans = [match.span() for match in re.finditer("[^ ]+", text)]
    words = np.array(spans, np.int32).reshape(-1, 2)
    starts, ends = features.starts[1:-1], features.ends[1:-1]
    # The first token that ends after the word's start; the word has tokens only if this
    # token also starts before the word's end.
    first = np.searchsorted(ends, words[:, 0], side="right")
    has_token = np.append(starts, len(text))[first] < words[:, 1]
    first = np.where(has_token, first, 0) + 1
    return TokenFeatures(
        np.where(has_token, features.ids[first], 0),
        words[:, 0],
        words[:, 1],
        np.where(has_token[:, None], features.values[first], np.float32(0)),
    )


def _features(
    layers: str,
    pooling: str,
    model: Any,
    batch: dict[str, jax.Array],
    dtype: jnp.dtype,
) -> jax.Array:
    """Returns float32[B, T, F], or [B, F] if pooled."""
    states = model.bert.states(batch, dropout_key=None, dtype=dtype)
    x_BTF = LAYERS[layers]([x.astype(jnp.float32) for x in states])
    if pooling == "cls":
        return x_BTF[:, 0]
    if pooling == "mean":
        return heads.mean_of_tokens(x_BTF, batch["sequence_ids"])
    return x_BTF
