"""Extracts features of texts from a trained encoder, per token, word or text.

Source: the combinations of layers are those of Devlin et al. 2019, section 5.3.

Shapes: B row of the batch, T token, D hidden, F feature (D, or 4 D if four layers are
concatenated).
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.data.batches import text_rows
from bert_jax.data.batches.text_rows import Rows
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.loading.model import PlacedModel
from bert_jax.model import heads, int8

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
    """Features of the tokens or words of one text or pair.

    Attributes:
      ids: int32[T], the row [CLS] text [SEP] or [CLS] text [SEP] other text [SEP]; with
        "words" pooling, the first token of each word.
      starts, ends: int32[T], character offsets of each token in its text; 0 for special
        tokens.
      values: float32[T, F]; inside this module, float32[F] with "mean" or "cls"
        pooling.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    values: np.ndarray


class Extractor:
    """Computes features of texts; compiles one program per row length.

    Attributes:
      num_truncated: number of texts truncated so far.
      num_tokens: number of tokens processed so far, special tokens included.
      num_features: F.
    """

    def __init__(
        self,
        trained: PlacedModel,
        *,
        layers: str,
        pooling: str,
        max_length: int,
        batch_size: int,
        dtype: jnp.dtype,
        mesh: jax.sharding.Mesh,
    ):
        """Initializes the extractor.

        Args:
          trained: a model without a head, optionally quantized by int8.py.
          layers: a key of LAYERS, the layers to use and how to combine them.
          pooling: one of POOLING. "none" gives features of tokens; "words" of words,
            see `word_features`; "mean" the mean over all tokens, [CLS] and [SEP]
            included; "cls" the features of [CLS].
          max_length: maximum tokens of a row. Longer texts are truncated at the end; a
            pair loses tokens from its longer text.
          batch_size: rows per step, over all devices; rounded up to a multiple of the
            mesh's batch divisor.
          dtype: dtype of the computation.
          mesh: mesh of the parameters, and of each call.

        Raises:
          ConfigError: if the model has too few layers.
        """
        num_layers = trained.config.num_hidden_layers
        if layers.endswith("last_four") and num_layers < 4:
            raise ConfigError(
                f"layers={layers} needs at least 4 layers, but the model has"
                f" {num_layers} layers; try layers=sum_all"
            )
        self._trained, self._mesh = trained, mesh
        divisor = mesh_lib.batch_divisor(mesh)
        self._batch_size = -(-batch_size // divisor) * divisor
        self._max_length = max_length
        self._locate = trained.tokenizer.locator()
        self._forward = _forward(trained.graphdef, layers, pooling, dtype)
        self._pooling = pooling
        self.num_truncated = 0
        self.num_tokens = 0
        num_vectors = 4 if layers == "concat_last_four" else 1
        self.num_features = num_vectors * trained.config.hidden_size

    def __call__(
        self,
        texts: Sequence[tuple[str, ...]],
        on_batch: Callable[[int], object] | None = None,
    ) -> list[TokenFeatures]:
        """Returns the features of single texts or pairs, in order.

        Calls `on_batch` after each batch with the number of texts in it.
        """
        if not texts:
            return []
        rows, starts, ends = self._rows(texts)
        found: list[TokenFeatures | None] = [None] * len(texts)
        for batch_B, length in self._buckets(rows):
            cut = dataclasses.replace(rows, length=length)
            layout = cut.layout(np.maximum(batch_B, 0))
            arrays = cut.arrays(layout)
            placed = sharding.place_batch(arrays, self._mesh)
            values = jax.device_get(self._forward(self._trained.params, placed))
            num_tokens_B = (arrays["sequence_ids"] > 0).sum(axis=1)
            self.num_tokens += int(num_tokens_B[batch_B >= 0].sum())
            for row, text in enumerate(batch_B):
                if text >= 0:
                    n = num_tokens_B[row]
                    is_pooled = self._pooling in TEXT_POOLING
                    features = TokenFeatures(
                        arrays["input_ids"][row, :n],
                        starts[layout.source_BT[row, :n]],
                        ends[layout.source_BT[row, :n]],
                        values[row] if is_pooled else values[row, :n].copy(),
                    )
                    if self._pooling == "words":
                        features = word_features(texts[text][0], features)
                    found[text] = features
            if on_batch is not None:
                on_batch(int((batch_B >= 0).sum()))
        return [features for features in found if features is not None]

    def _rows(
        self, texts: Sequence[tuple[str, ...]]
    ) -> tuple[Rows, np.ndarray, np.ndarray]:
        """Returns the rows, and the character offsets of their tokens."""
        tokenizer = self._trained.tokenizer
        located = [self._locate(text[0]) for text in texts]
        b_N = np.full(len(texts), -1)
        for i, text in enumerate(texts):
            if len(text) > 1:
                b_N[i] = len(located)
                located.append(self._locate(text[1]))
        tokens = text_rows.join([x.ids for x in located], tokenizer, self._max_length)
        a_N = np.arange(len(texts))
        rows, num_truncated = text_rows.of_pairs(tokens, a_N, b_N, self._max_length)
        self.num_truncated += num_truncated
        return (
            rows,
            text_rows.aligned([x.starts for x in located], tokens, 0),
            text_rows.aligned([x.ends for x in located], tokens, 0),
        )

    def _buckets(self, rows: Rows) -> Iterator[tuple[np.ndarray, int]]:
        """Yields batches of rows of similar length, padded with -1, and the length."""
        lengths_N = rows.num_tokens()
        order_N = np.argsort(lengths_N, kind="stable")
        for first in range(0, len(rows), self._batch_size):
            batch_B = np.full(self._batch_size, -1)
            chosen = order_N[first : first + self._batch_size]
            batch_B[: len(chosen)] = chosen
            longest = int(lengths_N[chosen].max())
            yield batch_B, text_rows.row_length(longest, self._max_length)


def word_features(text: str, features: TokenFeatures) -> TokenFeatures:
    """Reduces the features of a text's tokens to one vector per word.

    Words are separated by spaces. The features of a word are those of its first token,
    as in the tagging experiment of Devlin et al. 2019, section 5.3. A word without
    tokens, because it was truncated or the tokenizer drops its characters, has the id
    0 and features of 0.

    Args:
      text: a single text, not a pair.
      features: features of its tokens, including [CLS] and [SEP].
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


def _forward(
    graphdef: nnx.GraphDef, layers: str, pooling: str, dtype: jnp.dtype
) -> Callable[..., jax.Array]:
    """Returns a function (params, batch) -> float32[B, T, F], or [B, F] if pooled."""

    @jax.jit
    def forward(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        bert = nnx.merge(graphdef, int8.dequantize(params))
        states = bert.states(batch, dropout_key=None, dtype=dtype)
        x_BTF = LAYERS[layers]([x.astype(jnp.float32) for x in states])
        if pooling == "cls":
            return x_BTF[:, 0]
        if pooling == "mean":
            return heads.mean_of_tokens(x_BTF, batch["sequence_ids"])
        return x_BTF

    return forward
