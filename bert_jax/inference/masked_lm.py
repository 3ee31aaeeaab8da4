"""Loads a masked language model and scores texts by their pseudo-log-likelihood.

Every token of a text, without [CLS] and [SEP], is masked in a row of its own. The score
of the text is the sum of the log-probabilities of the true tokens.

Source: Salazar et al. 2020, Masked Language Model Scoring, section 2.

Shapes: N text, M masked token of all texts, B row of the batch, T token, V vocabulary.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.data.batches import row_layout
from bert_jax.data.tokenizers.base import MASK, Tokenizer
from bert_jax.finetuning.batches import Batching, Predictor
from bert_jax.finetuning.tasks.base import Features
from bert_jax.inference import model as base
from bert_jax.inference.model import Model, Options
from bert_jax.loading import model as model_lib
from bert_jax.model import heads
from bert_jax.training import losses


@dataclasses.dataclass(frozen=True)
class Scores:
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
    options = Options(max_length, batch_size, compute_dtype)
    with jax.set_mesh(base.current_mesh()):
        model = model_lib.read_encoder(
            os.fspath(path), lowercase, "model", has_masked_lm=True
        )
        return MaskedLM(model, options)


class MaskedLM(Model):
    """A pretrained model that scores texts; made by `load_masked_lm`.

    Attributes beside those of `Model`:
      num_tokens: number of tokens scored so far.
    """

    def __init__(self, model: model_lib.HostModel, options: Options):
        super().__init__(model, options)
        self.num_tokens = 0
        self._scorer = Scorer(self._graphdef, self.tokenizer, self._batching)

    def score(
        self, texts: Sequence[str], *, on_batch: Callable[[int], object] | None = None
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
        self, graphdef: nnx.GraphDef, tokenizer: Tokenizer, batching: Batching
    ):
        """Compiles nothing yet.

        The graphdef is that of a `BertForPreTraining`; its next-sentence head and
        pooler may be missing.
        """
        self._tokenizer, self._length = tokenizer, batching.max_length
        self._encode = tokenizer.encoder()  # which keeps the pieces of words
        names = (*heads.INPUTS, "masked_lm_ids", "masked_lm_positions")
        self._predictor = Predictor(graphdef, batching, _log_probs, names)

    def __call__(
        self,
        params: Any,
        texts: Sequence[str],
        on_batch: Callable[[int], object] | None = None,
    ) -> Scores:
        """Returns the scores of N texts, the same in every process; see `score`."""
        text_N = np.arange(len(texts))
        ids = self._encode([*texts])
        tokens = row_layout.join(ids, self._tokenizer, self._length)
        rows, num_truncated = row_layout.of_pairs(tokens, text_N, -1, self._length)
        lengths_N = rows.pairs_N4[:, 1]
        text_M = np.repeat(text_N, lengths_N)
        starts_N = np.cumsum(lengths_N) - lengths_N
        # The places after [CLS]: 1 to n in each text of n tokens.
        position_M = np.arange(len(text_M)) - starts_N[text_M] + 1
        features = MaskedTokens(rows, text_M, position_M, self._tokenizer.id(MASK))
        log_probs_M = self._predictor(params, features, on_batch)
        values_N = np.bincount(text_M, weights=log_probs_M, minlength=len(texts))
        return Scores(values_N, lengths_N, num_truncated)


@dataclasses.dataclass(frozen=True)
class MaskedTokens(Features):
    """The rows of texts, one for each token, which is masked in it."""

    text_M: np.ndarray  # int64, index of the row of the masked token's text
    position_M: np.ndarray  # int64, in the row
    mask_id: int

    def __len__(self) -> int:
        return len(self.text_M)

    def num_tokens(self):
        return self.rows.num_tokens()[self.text_M]

    def inputs(self, items_B):
        text_B, position_B = self.text_M[items_B], self.position_M[items_B]
        batch = super().inputs(text_B)
        place = np.arange(len(text_B)), position_B
        batch["masked_lm_ids"] = batch["input_ids"][place][:, None]
        batch["masked_lm_positions"] = position_B[:, None].astype(np.int32)
        batch["input_ids"][place] = self.mask_id
        return batch


def _log_probs(model: Any, batch: dict[str, jax.Array], dtype: jnp.dtype) -> jax.Array:
    """Returns float32[B], the log-probabilities of the masked tokens."""
    positions_B1, ids_B1 = batch["masked_lm_positions"], batch["masked_lm_ids"]
    *_, x_B1D = model.bert.states(
        batch, positions_BQ=positions_B1, dropout_key=None, dtype=dtype
    )
    logits_B1V = model.masked_lm(x_B1D)
    log_probs_B1 = losses.logits_of(logits_B1V, ids_B1) - jax.nn.logsumexp(
        logits_B1V, axis=-1
    )
    return log_probs_B1[:, 0]
