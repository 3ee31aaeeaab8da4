"""Texts -> what a trained encoder makes of them, per token or for the whole text.

Source: the ways to combine layers are those of Devlin et al. 2019, section 5.3.

Shapes: B row of the batch, T token, D hidden, F feature: D, or 4 D of four layers.
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
from bert_jax.data.tokenizers.offsets import Located, LocatingEncoder
from bert_jax.data.tokenizers.tokenizers import UNK
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.distributed import sharding
from bert_jax.errors import ConfigError
from bert_jax.loading.model import Trained
from bert_jax.model import heads, int8

# States are those of the embeddings and after each layer; sums leave out the former.
LAYERS: dict[str, Callable[[list[jax.Array]], jax.Array]] = {
    "first": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: sum(states[-3:], states[-4]),
    "concat_last_four": lambda states: jnp.concatenate(states[-4:], axis=-1),
    "sum_all": lambda states: sum(states[2:], states[1]),
}
OF_TEXTS = ("mean", "cls")  # a vector for each
POOLING = ("none", "words", *OF_TEXTS)


@dataclasses.dataclass(frozen=True)
class Features:
    """What is known of one text, or of a pair.

    Attributes:
      ids: int32[T], [CLS] text [SEP], or [CLS] text [SEP] other text [SEP]; of words,
        those of their first tokens.
      starts, ends: int32[T], the token's characters in its text; 0 of special tokens.
      values: float32[T, F], or float32[F] where pooled.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    values: np.ndarray


class Extractor:
    """Computes features of texts; compiles a program for each length of rows."""

    def __init__(
        self,
        trained: Trained,
        *,
        layers: str,
        pooling: str,
        max_length: int,
        batch_size: int,
        dtype: jnp.dtype,
    ):
        """Sets up.

        Args:
          trained: from `model.read_encoder`, or what int8.py made of it.
          layers: one of LAYERS, which to combine and how.
          pooling: one of POOLING: "none" for features of tokens, "words" for those of
            texts' words, see `of_words`, "mean" of all tokens' with [CLS] and [SEP], or
            those of [CLS].
          max_length: in tokens; a longer text loses its end, a pair that of its longer.
          batch_size: rows of a step, over all devices.
          dtype: of the computation.

        Raises:
          ConfigError: when the model is too small for that.
        """
        num_layers = trained.config.num_hidden_layers
        if layers.endswith("last_four") and num_layers < 4:
            raise ConfigError(
                f"--layers={layers}, but the model has {num_layers} layers; try"
                " --layers=sum_all"
            )
        most = trained.config.max_position_embeddings
        if not 5 <= max_length <= most:  # room for a pair
            raise ConfigError(
                f"--max_length={max_length} must be at least 5 and at most the model's"
                f" {most} positions"
            )
        self._trained = trained
        self._mesh = jax.sharding.get_mesh()
        divisor = mesh_lib.batch_divisor(self._mesh)
        self._batch_size = -(-batch_size // divisor) * divisor
        self._max_length = max_length
        self._locate = LocatingEncoder(trained.tokenizer)
        self._forward = _forward(trained.graphdef, layers, pooling, dtype)
        self._pooling = pooling
        self.num_truncated = 0
        self.num_tokens = 0
        self.on_texts: Callable[[int], object] | None = None  # after each batch

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> list[Features]:
        """Returns the features of texts, each alone or with another, in their order."""
        rows, starts, ends = self._rows(texts)
        found: list[Features | None] = [None] * len(texts)
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
                    is_pooled = self._pooling in OF_TEXTS
                    features = Features(
                        arrays["input_ids"][row, :n],
                        starts[layout.source_BT[row, :n]],
                        ends[layout.source_BT[row, :n]],
                        values[row] if is_pooled else values[row, :n].copy(),
                    )
                    if self._pooling == "words":
                        features = of_words(texts[text][0], features)
                    found[text] = features
            if self.on_texts is not None:
                self.on_texts(int((batch_B >= 0).sum()))
        return [features for features in found if features is not None]

    def _rows(
        self, texts: Sequence[tuple[str, ...]]
    ) -> tuple[Rows, np.ndarray, np.ndarray]:
        """Returns rows, and of each of their tokens the first and last character."""
        tokenizer = self._trained.tokenizer
        located = [self._locate_or_unknown(text[0]) for text in texts]
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

    def _locate_or_unknown(self, text: str) -> Located:
        found = self._locate(text)
        if len(found.ids):
            return found
        nowhere = np.zeros(1, np.int32)
        return Located(nowhere + self._trained.tokenizer.id(UNK), nowhere, nowhere)

    def _buckets(self, rows: Rows) -> Iterator[tuple[np.ndarray, int]]:
        """Yields rows of about the same length, filled up with -1, and a length."""
        lengths_N = rows.num_tokens()
        order_N = np.argsort(lengths_N, kind="stable")
        for first in range(0, len(rows), self._batch_size):
            batch_B = np.full(self._batch_size, -1)
            chosen = order_N[first : first + self._batch_size]
            batch_B[: len(chosen)] = chosen
            longest = int(lengths_N[chosen].max())
            yield batch_B, text_rows.row_length(longest, self._max_length)


def of_words(text: str, features: Features) -> Features:
    """Returns the features of a text's words, each those of its first token.

    Source: Devlin et al. 2019, section 5.3, where such features are tagged. Words are
    what stands between spaces. One without a token, cut off with the end of a long text
    or of characters that no token stands for, has features of 0 and the id 0.

    Args:
      text: a text that is alone in its row.
      features: of its tokens, [CLS] and [SEP] among them.
    """
    spans = [match.span() for match in re.finditer("[^ ]+", text)]
    words = np.array(spans, np.int32).reshape(-1, 2)
    starts, ends = features.starts[1:-1], features.ends[1:-1]
    # The first token that ends within the word, or after it.
    first = np.searchsorted(ends, words[:, 0], side="right")
    has_token = np.append(starts, len(text))[first] < words[:, 1]
    first = np.where(has_token, first, 0) + 1
    return Features(
        np.where(has_token, features.ids[first], 0),
        words[:, 0],
        words[:, 1],
        np.where(has_token[:, None], features.values[first], np.float32(0)),
    )


def _forward(
    graphdef: nnx.GraphDef, layers: str, pooling: str, dtype: jnp.dtype
) -> Callable[..., jax.Array]:
    """Returns (params, batch) -> float32[B, T, F], or [B, F] where pooled."""

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
