"""BERT with the head of a task on top: parameters alone, as in bert.py.

Each head's `__call__` makes `Outputs` of a batch; what a task's loss makes of them is
in losses.py. Names are Hugging Face's, so that a tuned model goes there and back.

Source: Devlin et al. 2019, section 4; google-research/bert run_classifier.py and
run_squad.py; SWAG's head, section 4.4; the dual encoder, Reimers and Gurevych 2019.

Shapes: B example of the batch, C class, choice or text, R row: B, or each of C in turn,
T token, D hidden.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.distributed import sharding
from bert_jax.model.bert import Bert
from bert_jax.model.layers import Linear
from bert_jax.model.ops import dropout

Batch = dict[str, jax.Array]
# What an encoder reads of a batch.
INPUTS = ("input_ids", "segment_ids", "position_ids", "sequence_ids")


class Outputs(NamedTuple):
    """What a model with a head makes of a batch.

    Attributes:
      logits: float32, as the head's `__call__` says.
      states: [R, T, D], those of `Bert.states`; [R, 1, D] of [CLS] alone after the last
        layer where a head reads no other.
    """

    logits: jax.Array
    states: list[jax.Array]


@dataclasses.dataclass(frozen=True)
class Head:
    """What stands on top of the encoder.

    Attributes:
      kind: one of KINDS.
      labels: the classes' names in their order; one name for a regression's number;
        none for question answering, multiple choice and similarity.
      dropout_prob: of what the head reads, in training.
    """

    kind: str
    labels: tuple[str, ...]
    dropout_prob: float


class BertForClassification(nnx.Module):
    """Logits of a text or pair from its pooled [CLS]: also a regression's number."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: Head, rngs: nnx.Rngs
    ):
        self.bert = Bert(config, vocab_size, rngs)
        self.classifier = _classifier(config, len(head.labels), rngs)
        self.dropout_prob = head.dropout_prob

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> Outputs:
        """Returns logits [B, C]; the arguments are those of `Bert.encode`."""
        pooled_B1D, states = _pooled(
            self.bert, batch, self.dropout_prob, dropout_key, dtype, remat
        )
        logits_BC = self.classifier(pooled_B1D)[:, 0].astype(jnp.float32)
        return Outputs(logits_BC, states)


class BertForTagging(nnx.Module):
    """Logits of every token."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: Head, rngs: nnx.Rngs
    ):
        self.bert = Bert(config, vocab_size, rngs, has_pooler=False)
        self.classifier = _classifier(config, len(head.labels), rngs)
        self.dropout_prob = head.dropout_prob

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> Outputs:
        """Returns logits [B, T, C]; the arguments are those of `Bert.encode`."""
        encoder_key, seed = _split(dropout_key)
        states = self.bert.states(
            batch, dropout_key=encoder_key, dtype=dtype, remat=remat
        )
        x_BTD = dropout(states[-1], self.dropout_prob, seed)
        return Outputs(self.classifier(x_BTD).astype(jnp.float32), states)


class BertForQuestionAnswering(nnx.Module):
    """Logits of every token to be an answer's first and its last; without dropout."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: Head, rngs: nnx.Rngs
    ):
        self.bert = Bert(config, vocab_size, rngs, has_pooler=False)
        self.qa_outputs = _classifier(config, 2, rngs)

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> Outputs:
        """Returns logits [B, T, 2]; the arguments are those of `Bert.encode`."""
        states = self.bert.states(
            batch, dropout_key=dropout_key, dtype=dtype, remat=remat
        )
        return Outputs(self.qa_outputs(states[-1]).astype(jnp.float32), states)


class BertForMultipleChoice(nnx.Module):
    """A number for every choice, each a row of its own, from its pooled [CLS]."""

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: Head, rngs: nnx.Rngs
    ):
        self.bert = Bert(config, vocab_size, rngs)
        self.classifier = _classifier(config, 1, rngs)
        self.dropout_prob = head.dropout_prob

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> Outputs:
        """Returns logits [B, C]; arrays of the batch that `Bert` reads are [B, C, T].

        The other arguments are those of `Bert.encode`.
        """
        rows = _each_a_row(batch)
        pooled_R1D, states = _pooled(
            self.bert, rows, self.dropout_prob, dropout_key, dtype, remat
        )
        logits_R11 = self.classifier(pooled_R1D).astype(jnp.float32)
        logits_BC = jnp.reshape(
            logits_R11,
            batch["input_ids"].shape[:2],
            out_sharding=sharding.spec("batch", "replicated"),
        )
        return Outputs(logits_BC, states)


class BertForSimilarity(nnx.Module):
    """How near two texts are that were read each for itself; without dropout.

    A dual encoder: a text's embedding is the mean of its tokens' last states, which can
    be made once and kept; nearness is the cosine.
    """

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: Head, rngs: nnx.Rngs
    ):
        self.bert = Bert(config, vocab_size, rngs, has_pooler=False)

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> Outputs:
        """Returns cosines [B]; what `Bert` reads of the batch is [B, 2, T].

        The other arguments are those of `Bert.encode`.
        """
        rows = _each_a_row(batch)
        states = self.bert.states(
            rows, dropout_key=dropout_key, dtype=dtype, remat=remat
        )
        x_RD = mean_of_tokens(states[-1].astype(jnp.float32), rows["sequence_ids"])
        squares_R1 = jnp.sum(x_RD * x_RD, axis=1, keepdims=True)
        unit_RD = x_RD * jax.lax.rsqrt(jnp.maximum(squares_R1, 1e-24))
        B, C, _ = batch["input_ids"].shape
        unit_BCD = jnp.reshape(
            unit_RD,
            (B, C, unit_RD.shape[1]),
            out_sharding=sharding.spec("batch", "replicated", "replicated"),
        )
        return Outputs(jnp.sum(unit_BCD[:, 0] * unit_BCD[:, 1], axis=1), states)


# What a task is about -> the model that learns it.
KINDS: dict[str, Callable[[ModelConfig, int, Head, nnx.Rngs], nnx.Module]] = {
    "classification": BertForClassification,
    "regression": BertForClassification,
    "multi_label": BertForClassification,
    "tagging": BertForTagging,
    "question_answering": BertForQuestionAnswering,
    "multiple_choice": BertForMultipleChoice,
    "similarity": BertForSimilarity,
}


def build(
    config: ModelConfig, vocab_size: int, head: Head, key: jax.Array
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the static structure and the float32 parameters, laid out on the mesh."""
    rngs = nnx.Rngs(params=key)
    return nnx.split(KINDS[head.kind](config, vocab_size, head, rngs))


def mean_of_tokens(x_BTD: jax.Array, sequence_ids_BT: jax.Array) -> jax.Array:
    """Returns [B, D], the mean over a row's tokens with [CLS] and [SEP]."""
    is_real_BT1 = (sequence_ids_BT > 0)[:, :, None].astype(x_BTD.dtype)
    return jnp.sum(x_BTD * is_real_BT1, axis=1) / jnp.sum(is_real_BT1, axis=1)


def _each_a_row(batch: Batch) -> Batch:
    """Returns what `Bert` reads with [B, C, T] as [B C, T]."""
    B, C, T = batch["input_ids"].shape
    by_row = sharding.spec("batch", "replicated")
    return {
        name: jnp.reshape(batch[name], (B * C, T), out_sharding=by_row)
        for name in INPUTS
    }


def _classifier(config: ModelConfig, num_classes: int, rngs: nnx.Rngs) -> Linear:
    return Linear(
        (config.hidden_size, num_classes),
        ("embed", "classes"),
        stddev=config.initializer_range,
        rngs=rngs,
    )


def _pooled(
    bert: Bert,
    rows: Batch,
    dropout_prob: float,
    dropout_key: jax.Array | None,
    dtype: jnp.dtype,
    remat: str,
) -> tuple[jax.Array, list[jax.Array]]:
    """Returns [B, 1, D] and the states; of the last layer only [CLS] is computed."""
    encoder_key, seed = _split(dropout_key)
    states = bert.states(
        rows,
        positions_BQ=jnp.zeros_like(rows["input_ids"][:, :1]),
        dropout_key=encoder_key,
        dtype=dtype,
        remat=remat,
    )
    return dropout(bert.pool(states[-1]), dropout_prob, seed), states


def _split(key: jax.Array | None) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns the encoder's key and the seed, uint32[2], of the head's dropout."""
    if key is None:
        return None, None
    encoder_key, head_key = jax.random.split(key)
    return encoder_key, jax.random.bits(head_key, (2,), jnp.uint32)
