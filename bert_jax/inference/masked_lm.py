"""Loads a masked language model and scores texts by their pseudo-log-likelihood.

Every token of a text, without [CLS] and [SEP], is masked in a row of its own. The score
of the text is the sum of the log-probabilities of the true tokens.

Source: Salazar et al. 2020, Masked Language Model Scoring, section 2.

Shapes: N text, M masked token of all texts, B row of the batch, T token, V vocabulary.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.data.batches import row_layout
from bert_jax.data.batches.row_layout import Rows
from bert_jax.data.tokenizers.tokenizers import MASK, Tokenizer
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.finetuning import batches
from bert_jax.inference import model as base
from bert_jax.inference.model import Model
from bert_jax.loading import model as model_lib
from bert_jax.training import losses


@dataclasses.dataclass(frozen=True)
class Scores:
    """Pseudo-log-likelihoods of texts."""

    values: np.ndarray  # float64[N], in nats; 0 for a text without tokens
    num_tokens: np.ndarray  # int64[N], the number of scored tokens
    num_truncated: int  # the number of truncated texts


def load_masked_lm(
    path: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    batch_size: int = 128,
    compute_dtype: str = "float32",
    lowercase: bool | None = None,
) -> "MaskedLM":
    """Loads the encoder of a model and its masked-LM head.

    Args:
      path: a directory of `export`, any Hugging Face BERT with a masked-LM head and
        safetensors, a TF1 checkpoint of google-research/bert, or a workdir of `train`.
      batch_size: rows per step, over all devices; rounded up to a multiple of the
        number of devices. A text has a row for each of its tokens.
      max_length, compute_dtype, lowercase: as in `load`.
    """
    base.check_options(batch_size, compute_dtype, "float32")
    with jax.set_mesh(base.current_mesh()):
        return MaskedLM(
            model_lib.read_encoder(
                os.fspath(path), lowercase, "model", has_masked_lm=True
            ),
            max_length=max_length,
            batch_size=batch_size,
            compute_dtype=compute_dtype,
        )


class MaskedLM(Model):
    """A pretrained model that scores texts; made by `load_masked_lm`.

    Attributes beside those of `Model`:
      num_tokens: number of tokens scored so far.
    """

    def __init__(self, model: model_lib.HostModel, **options: Any):
        super().__init__(model, **options)
        self.num_tokens = 0
        self._scorer = Scorer(
            self._graphdef,
            self.tokenizer,
            max_length=self.max_length,
            batch_size=self._batch_size,
            dtype=self._dtype,
            mesh=self._mesh,
        )

    def score(
        self,
        texts: Sequence[str],
        *,
        on_batch: Callable[[int], object] | None = None,
    ) -> Scores:
        """Computes the pseudo-log-likelihood of each of N texts.

        `on_batch` is called after each batch with the number of tokens scored in it.
        """
        base.as_parts(texts)  # refuses a single string
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"texts must be strings, not {text!r}")
        with jax.set_mesh(self._mesh):
            found = self._scorer(self._params, texts, on_batch)
        self.num_truncated += found.num_truncated
        self.num_tokens += int(found.num_tokens.sum())
        return found


class Scorer:
    """Scores texts with any parameters; compiles one program per row length."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        batch_size: int,
        dtype: jnp.dtype,
        mesh: jax.sharding.Mesh,
    ):
        """Compiles nothing yet.

        The graphdef is that of a `BertForPreTraining`; its next-sentence head and
        pooler may be missing.
        """
        self._batch_size = batches.rounded_up(batch_size, mesh)
        self._tokenizer, self._encode = tokenizer, tokenizer.encoder()
        self._mask_id = tokenizer.id(MASK)
        self._max_length, self._mesh = max_length, mesh
        self._part = mesh_lib.host_part(mesh, jax.process_index())
        self._forward = jax.jit(functools.partial(_forward, graphdef, dtype))

    def __call__(
        self,
        params: Any,
        texts: Sequence[str],
        on_batch: Callable[[int], object] | None = None,
    ) -> Scores:
        """Returns the scores of N texts, the same in every process; see `score`.

        Masked rows are sorted by length before they are batched.
        """
        length, text_N = self._max_length, np.arange(len(texts))
        tokens = row_layout.join(self._encode([*texts]), self._tokenizer, length)
        no_pair_N = np.full_like(text_N, -1)
        rows, num_truncated = row_layout.of_pairs(tokens, text_N, no_pair_N, length)
        lengths_N = rows.pairs_N4[:, 1]
        order_N = np.argsort(lengths_N, kind="stable")
        text_M = np.repeat(order_N, lengths_N[order_N])
        position_M = _positions(lengths_N[order_N])
        log_probs_M = np.empty(len(text_M), np.float32)
        for masked_B in batches.in_order(len(text_M), self._batch_size):
            is_real_B = masked_B >= 0
            padded_B = np.maximum(masked_B, 0)
            batch = self._masked(rows, text_M[padded_B], position_M[padded_B])
            placed = batches.place(batch, self._part, self._mesh)
            log_probs_B = jax.device_get(self._forward(params, placed))
            log_probs_M[masked_B[is_real_B]] = log_probs_B[is_real_B]
            if on_batch is not None:
                on_batch(int(is_real_B.sum()))
        values_N = np.bincount(text_M, weights=log_probs_M, minlength=len(texts))
        return Scores(values_N, lengths_N, num_truncated)

    def _masked(
        self, rows: Rows, text_B: np.ndarray, position_B: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Returns the rows of some texts, each with [MASK] at one position."""
        rows = rows.cut(text_B)
        batch = rows.arrays(rows.layout(text_B))
        place = np.arange(len(text_B)), position_B
        batch["masked_lm_ids"] = batch["input_ids"][place][:, None]
        batch["masked_lm_positions"] = position_B[:, None].astype(np.int32)
        batch["input_ids"][place] = self._mask_id
        return batch


def _positions(lengths_N: np.ndarray) -> np.ndarray:
    """Returns int64[M], 1 to n for each text of n tokens: their places after [CLS]."""
    starts_N = np.cumsum(lengths_N) - lengths_N
    return np.arange(lengths_N.sum()) - np.repeat(starts_N, lengths_N) + 1


def _forward(
    graphdef: nnx.GraphDef, dtype: jnp.dtype, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """Returns the log-probabilities float32[B], replicated on all devices."""
    model: Any = nnx.merge(graphdef, params)
    *_, x_B1D = model.bert.states(
        batch,
        positions_BQ=batch["masked_lm_positions"],
        dropout_key=None,
        dtype=dtype,
    )
    logits_B1V = model.masked_lm(x_B1D)
    log_probs_B1 = losses.logits_of(
        logits_B1V, batch["masked_lm_ids"]
    ) - jax.nn.logsumexp(logits_B1V, axis=-1)
    return jax.reshard(log_probs_B1[:, 0], jax.P())
