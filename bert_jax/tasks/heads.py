"""BERT with the head of a task on top: parameters alone, as in model.py.

Each head's `__call__` makes logits of a batch; what a task's loss makes of them is in
losses.py. Names are Hugging Face's, so that a tuned model goes there and back.

Source: Devlin et al. 2019, section 4; google-research/bert run_classifier.py and
run_squad.py; SWAG's head, section 4.4.

Shapes: B example of the batch, C class or choice, T token, D hidden.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax import sharding
from bert_jax.config import ModelConfig
from bert_jax.dropout import dropout
from bert_jax.model import Bert, Linear

Batch = dict[str, jax.Array]
# What an encoder reads of a batch.
INPUTS = ("input_ids", "segment_ids", "position_ids", "sequence_ids")


@dataclasses.dataclass(frozen=True)
class Head:
    """What stands on top of the encoder.

    Attributes:
      kind: one of KINDS.
      labels: the classes' names in their order; one name for a regression's number;
        none for question answering, nor for multiple choice.
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
    ) -> jax.Array:
        """Returns float32[B, C]; the arguments are those of `Bert.encode`."""
        pooled_B1D = _pooled(
            self.bert, batch, self.dropout_prob, dropout_key, dtype, remat
        )
        return self.classifier(pooled_B1D)[:, 0].astype(jnp.float32)


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
    ) -> jax.Array:
        """Returns float32[B, T, C]; the arguments are those of `Bert.encode`."""
        encoder_key, seed = _split(dropout_key)
        x_BTD = self.bert.encode(
            batch, dropout_key=encoder_key, dtype=dtype, remat=remat
        )
        x_BTD = dropout(x_BTD, self.dropout_prob, seed)
        return self.classifier(x_BTD).astype(jnp.float32)


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
    ) -> jax.Array:
        """Returns float32[B, T, 2]; the arguments are those of `Bert.encode`."""
        x_BTD = self.bert.encode(
            batch, dropout_key=dropout_key, dtype=dtype, remat=remat
        )
        return self.qa_outputs(x_BTD).astype(jnp.float32)


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
    ) -> jax.Array:
        """Returns float32[B, C]; arrays of the batch that `Bert` reads are [B, C, T].

        The other arguments are those of `Bert.encode`.
        """
        B, C, T = batch["input_ids"].shape
        rows = {
            name: jnp.reshape(
                batch[name],
                (B * C, T),
                out_sharding=sharding.spec("batch", "replicated"),
            )
            for name in INPUTS
        }
        pooled_R1D = _pooled(
            self.bert, rows, self.dropout_prob, dropout_key, dtype, remat
        )
        logits_R11 = self.classifier(pooled_R1D).astype(jnp.float32)
        return jnp.reshape(
            logits_R11, (B, C), out_sharding=sharding.spec("batch", "replicated")
        )


# What a task is about -> the model that learns it.
KINDS: dict[str, Callable[[ModelConfig, int, Head, nnx.Rngs], nnx.Module]] = {
    "classification": BertForClassification,
    "regression": BertForClassification,
    "multi_label": BertForClassification,
    "tagging": BertForTagging,
    "question_answering": BertForQuestionAnswering,
    "multiple_choice": BertForMultipleChoice,
}


def build(
    config: ModelConfig, vocab_size: int, head: Head, key: jax.Array
) -> tuple[nnx.GraphDef, nnx.State]:
    """Returns the static structure and the float32 parameters, laid out on the mesh."""
    rngs = nnx.Rngs(params=key)
    return nnx.split(KINDS[head.kind](config, vocab_size, head, rngs))


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
) -> jax.Array:
    """Returns [B, 1, D]; of the last layer only [CLS] is computed."""
    encoder_key, seed = _split(dropout_key)
    x_B1D = bert.encode(
        rows,
        positions_BQ=jnp.zeros_like(rows["input_ids"][:, :1]),
        dropout_key=encoder_key,
        dtype=dtype,
        remat=remat,
    )
    return dropout(bert.pool(x_B1D), dropout_prob, seed)


def _split(key: jax.Array | None) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns the encoder's key and the seed, uint32[2], of the head's dropout."""
    if key is None:
        return None, None
    encoder_key, head_key = jax.random.split(key)
    return encoder_key, jax.random.bits(head_key, (2,), jnp.uint32)
