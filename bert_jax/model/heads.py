"""BERT with task heads for fine-tuning.

Each head's `__call__` maps a batch to `Outputs`; the classes of finetuning/tasks
compute the loss from them. Parameters have Hugging Face's names, so that a fine-tuned
model can be exported and read back.

Source: Devlin et al. 2019, section 4 (SWAG's head in section 4.4);
google-research/bert run_classifier.py and run_squad.py; the dual encoder, Reimers and
Gurevych 2019.

Shapes: B example in the batch, C class, choice or text, R row of the encoder (B, or
B * C where each choice or text is a row), T token, D hidden.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.distributed import sharding
from bert_jax.model.bert import Bert
from bert_jax.model.dropout import DropoutKey, Seed, dropout
from bert_jax.model.layers import Linear

Batch = dict[str, jax.Array]
# The class of transformers without a head. With sentence-transformers' mean pooling it
# is a dual encoder.
ENCODER = "BertModel"
# The arrays of a batch that the encoder reads.
INPUTS = ("input_ids", "segment_ids", "position_ids", "sequence_ids")


class Outputs(NamedTuple):
    logits: jax.Array  # float32, in the shape that the head's `__call__` documents
    states: list[jax.Array]  # of `Bert.states`


@dataclasses.dataclass(frozen=True)
class HeadType:
    """The name, class and format of the heads of one kind of task."""

    kind: str  # a value of config.task.kind
    module: type["Model"]
    architecture: str  # the class of transformers with the same head
    problem_type: str | None = None  # in config.json, if the class has several
    has_labels: bool = False  # the head's outputs have names

    @property
    def is_dual_encoder(self) -> bool:
        """Whether the two texts of an example are rows of their own."""
        return self.architecture == ENCODER


@dataclasses.dataclass(frozen=True)
class Head:
    type: HeadType
    labels: tuple[str, ...]  # names of its outputs; one for regression; () if none
    dropout_prob: float  # of the head's input in training


class Model(nnx.Module):
    """A model with a task head; subclasses have the types of these arguments."""

    has_pooler = False  # whether the head reads pooled [CLS] states
    num_outputs: ClassVar[int | None] = None  # of the classifier; None: one per label

    def __init__(
        self, config: ModelConfig, vocab_size: int, head: Head, rngs: nnx.Rngs
    ):
        self.bert = Bert(config, vocab_size, rngs, has_pooler=self.has_pooler)
        self.dropout_prob = head.dropout_prob
        num = len(head.labels) if self.num_outputs is None else self.num_outputs
        if num:
            self.classifier = _classifier(config, num, rngs)

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: DropoutKey | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> Outputs:
        """Returns the outputs; the arguments are those of `Bert.states`."""
        raise NotImplementedError

    def _pooled(
        self, rows: Batch, key: DropoutKey | None, dtype: jnp.dtype, remat: str
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Returns the pooled [CLS] states [B, 1, D] after dropout, and all states.

        The last layer is computed at [CLS] only.
        """
        key, seed = _split(key)
        cls_B1 = jnp.zeros_like(rows["input_ids"][:, :1])
        states = self.bert.states(rows, key, dtype, remat, cls_B1)
        return dropout(self.bert.pool(states[-1]), self.dropout_prob, seed), states


class BertForClassification(Model):
    """Classification or regression of a text or pair from its pooled [CLS] state."""

    has_pooler = True

    def __call__(self, batch, *, dropout_key, dtype, remat="none"):
        """Returns logits [B, C]."""
        pooled_B1D, states = self._pooled(batch, dropout_key, dtype, remat)
        logits_BC = self.classifier(pooled_B1D)[:, 0].astype(jnp.float32)
        return Outputs(logits_BC, states)


class BertForTagging(Model):
    """Token classification."""

    def __call__(self, batch, *, dropout_key, dtype, remat="none"):
        """Returns logits [B, T, C]."""
        encoder_key, seed = _split(dropout_key)
        states = self.bert.states(batch, encoder_key, dtype, remat)
        x_BTD = dropout(states[-1], self.dropout_prob, seed)
        return Outputs(self.classifier(x_BTD).astype(jnp.float32), states)


class BertForQuestionAnswering(Model):
    """Span prediction: start and end logits for every token; without dropout."""

    num_outputs = 0

    def __init__(self, config, vocab_size, head, rngs):
        super().__init__(config, vocab_size, head, rngs)
        self.qa_outputs = _classifier(config, 2, rngs)

    def __call__(self, batch, *, dropout_key, dtype, remat="none"):
        """Returns logits [B, T, 2]."""
        states = self.bert.states(batch, dropout_key, dtype, remat)
        return Outputs(self.qa_outputs(states[-1]).astype(jnp.float32), states)


class BertForMultipleChoice(Model):
    """One logit for each choice from its pooled [CLS] state; each choice is a row."""

    has_pooler, num_outputs = True, 1

    def __call__(self, batch, *, dropout_key, dtype, remat="none"):
        """Returns logits [B, C]; the arrays INPUTS of the batch are [B, C, T]."""
        rows, dropout_key = _flatten_choices(batch, dropout_key)
        pooled_R1D, states = self._pooled(rows, dropout_key, dtype, remat)
        logits_R11 = self.classifier(pooled_R1D).astype(jnp.float32)
        shape = batch["input_ids"].shape[:2]
        out = sharding.spec("batch", "replicated")
        logits_BC = jnp.reshape(logits_R11, shape, out_sharding=out)
        return Outputs(logits_BC, states)


class BertForSimilarity(Model):
    """Cosine similarity of two texts by a dual encoder; the head has no dropout.

    The embedding of a text is the mean of its tokens' last states. It does not depend
    on the other text, so it can be computed once and stored.
    """

    num_outputs = 0

    def __call__(self, batch, *, dropout_key, dtype, remat="none"):
        """Returns cosines [B]; the arrays INPUTS of the batch are [B, 2, T]."""
        rows, dropout_key = _flatten_choices(batch, dropout_key)
        states = self.bert.states(rows, dropout_key, dtype, remat)
        unit_BCD = embeddings(states[-1], batch["sequence_ids"])
        return Outputs(jnp.sum(unit_BCD[:, 0] * unit_BCD[:, 1], axis=1), states)


def build(
    config: ModelConfig, vocab_size: int, head: Head, key: jax.Array
) -> tuple[nnx.GraphDef, nnx.State]:
    """Initializes a model: returns its graphdef and float32 parameters on the mesh."""
    rngs = nnx.Rngs(params=key)
    return nnx.split(head.type.module(config, vocab_size, head, rngs))


def embeddings(states_RTD: jax.Array, sequence_ids_BCT: jax.Array) -> jax.Array:
    """Returns float32[B, C, D], the embeddings of texts, which have length 1."""
    B, C, T = sequence_ids_BCT.shape
    by_row = sharding.spec("batch", "replicated")
    ids_RT = jnp.reshape(sequence_ids_BCT, (B * C, T), out_sharding=by_row)
    x_RD = mean_of_tokens(states_RTD.astype(jnp.float32), ids_RT)
    squares_R1 = jnp.sum(x_RD * x_RD, axis=1, keepdims=True)
    unit_RD = x_RD * jax.lax.rsqrt(jnp.maximum(squares_R1, 1e-24))
    out = sharding.spec("batch", "replicated", "replicated")
    return jnp.reshape(unit_RD, (B, C, unit_RD.shape[1]), out_sharding=out)


def mean_of_tokens(x_BTD: jax.Array, sequence_ids_BT: jax.Array) -> jax.Array:
    """Returns [B, D], the mean over a row's tokens, [CLS] and [SEP] included."""
    is_real_BT1 = (sequence_ids_BT > 0)[:, :, None].astype(x_BTD.dtype)
    return jnp.sum(x_BTD * is_real_BT1, axis=1) / jnp.sum(is_real_BT1, axis=1)


def _flatten_choices(
    batch: Batch, dropout_key: DropoutKey | None
) -> tuple[Batch, DropoutKey | None]:
    """Reshapes INPUTS from [B, C, T] to [B * C, T]: one row for each choice."""
    B, C, T = batch["input_ids"].shape
    by_row = sharding.spec("batch", "replicated")
    rows = {
        name: jnp.reshape(batch[name], (B * C, T), out_sharding=by_row)
        for name in INPUTS
    }
    if dropout_key is not None:
        rows_BC = dropout_key.rows_B[:, None] * C + jnp.arange(C)[None]
        rows_R = jnp.reshape(rows_BC, (B * C,), out_sharding=sharding.spec("batch"))
        dropout_key = DropoutKey(dropout_key.key, rows_R)
    return rows, dropout_key


def _classifier(config: ModelConfig, num_classes: int, rngs: nnx.Rngs) -> Linear:
    shape, stddev = (config.hidden_size, num_classes), config.initializer_range
    return Linear(shape, ("embed", "classes"), stddev, rngs)


def _split(key: DropoutKey | None) -> tuple[DropoutKey | None, Seed | None]:
    """Splits a key into the encoder's key and the head's dropout seed."""
    if key is None:
        return None, None
    encoder_key, head_key = jax.random.split(key.key)
    words = jax.random.bits(head_key, (2,), jnp.uint32)
    return DropoutKey(encoder_key, key.rows_B), Seed(words, key.rows_B)
