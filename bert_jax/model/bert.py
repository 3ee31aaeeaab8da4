"""BERT: embeddings, encoder, pooler and the two pretraining heads.

Modules hold only parameters. `build` splits a model once into a static `graphdef` and
a tree of arrays, and everything after that is plain JAX. Layers are separate modules
run by a Python loop, which the TPU compiler turns into a faster program than a scan
over stacked layers.

Source: Devlin et al. 2019; google-research/bert modeling.py for every detail.

Shapes: B row in the batch, T token position, S key position in attention, P masked
position, Q query position, K sentence pair in a row, D hidden, F feed-forward, N heads,
H head dim, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.distributed import sharding
from bert_jax.model.attention import attention
from bert_jax.model.dropout import DropoutKey, Seed, dropout
from bert_jax.model.kernels import gpu
from bert_jax.model.layers import LayerNorm, Linear, add_and_norm, can_join, joined
from bert_jax.model.ops import (
    einsum_float32,
    embedding_lookup,
    gather_positions,
    plus_bias,
)

# Checkpoint policies: which intermediates a layer saves for its backward pass; the
# others are recomputed.
REMAT_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "matmuls": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Embeddings(nnx.Module):
    """Sum of word, segment and position embeddings, then LayerNorm and dropout."""

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs):
        init = jax.nn.initializers.truncated_normal(config.initializer_range)

        def table(rows: int, dim: str) -> nnx.Param:
            shape = (rows, config.hidden_size)
            out = sharding.spec(dim, "embed")
            return nnx.Param(init(rngs.params(), shape, jnp.float32, out_sharding=out))

        self.word = table(vocab_size, "vocab")
        self.position = table(config.max_position_embeddings, "positions")
        self.segment = table(config.type_vocab_size, "classes")
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout_rate = config.hidden_dropout_prob

    @jax.named_scope("embeddings")
    def __call__(
        self, batch: dict[str, jax.Array], seed: Seed | None, dtype: jnp.dtype
    ) -> jax.Array:
        word_VD = _replicated(self.word[...])
        position_LD = _replicated(self.position[...])
        if sharding.platform() == "gpu":
            # The gradient is a product with one-hot rows, whose other columns are 0.
            position_LD = position_LD[: batch["position_ids"].shape[1]]
        x_BTD = (
            embedding_lookup(word_VD, batch["input_ids"])
            + embedding_lookup(position_LD, batch["position_ids"])
            + self._of_segments(batch["segment_ids"])
        )
        return dropout(self.norm(x_BTD).astype(dtype), self.dropout_rate, seed)

    def _of_segments(self, segment_ids_BT: jax.Array) -> jax.Array:
        segment_2D = _replicated(self.segment[...])
        if sharding.platform() == "gpu":  # where the lookup's gradient is a product
            return embedding_lookup(segment_2D, segment_ids_BT)
        # The table has two rows, so a product with one-hot rows has a cheap gradient;
        # the gradient of a gather is a scatter of B * T rows onto two.
        one_hot_BT2 = jax.nn.one_hot(segment_ids_BT, len(segment_2D), dtype=jnp.float32)
        out = sharding.spec("batch", "seq", "replicated")
        return einsum_float32("BTs,sD->BTD", one_hot_BT2, segment_2D, out)

    def logits(self, x_BPD: jax.Array) -> jax.Array:
        """Returns float32[B, P, V], the product of x_BPD and the word embeddings."""
        word_VD = _replicated(self.word[...].astype(x_BPD.dtype))
        out = sharding.spec("batch", "replicated", "vocab")
        return einsum_float32("BPD,VD->BPV", x_BPD, word_VD, out)


class SelfAttention(nnx.Module):
    """Bidirectional multi-head attention within each sentence pair of a row."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        D, stddev = config.hidden_size, config.initializer_range

        def projection(*dims: Any) -> Linear:
            return Linear((D, D), dims, stddev, rngs)

        self.query = projection("embed", "heads")
        self.key = projection("embed", "heads")
        self.value = projection("embed", "heads")
        self.output = projection("heads", "embed")
        self.num_heads = config.num_attention_heads
        self.dropout_rate = config.attention_probs_dropout_prob

    def __call__(
        self,
        x_BTD: jax.Array,
        x_BSD: jax.Array | None,
        ids: tuple[jax.Array, jax.Array],
        seed: Seed | None,
    ) -> jax.Array:
        """Returns [B, T, D], attention from the queries x_BTD to the tokens x_BSD.

        If x_BSD is None, they are the same.
        """
        linears = self.query, self.key, self.value
        if x_BSD is None and gpu.has_kernels(x_BTD) and can_join(linears):
            projections = (joined(linears, x_BTD),)
        else:
            x_BSD = x_BTD if x_BSD is None else x_BSD
            projections = self.query(x_BTD), self.key(x_BSD), self.value(x_BSD)
        rate = self.dropout_rate
        return self.output(attention(projections, *ids, self.num_heads, rate, seed))


class Layer(nnx.Module):
    """A post-norm Transformer layer: self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        D, F = config.hidden_size, config.intermediate_size
        stddev = config.initializer_range
        self.attention = SelfAttention(config, rngs)
        self.attention_norm = LayerNorm(D, config.layer_norm_eps)
        self.intermediate = Linear((D, F), ("embed", "mlp"), stddev, rngs)
        self.output = Linear((F, D), ("mlp", "embed"), stddev, rngs)
        self.output_norm = LayerNorm(D, config.layer_norm_eps)
        self.activation = config.hidden_act
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self,
        x_BTD: jax.Array,
        x_BSD: jax.Array | None,
        ids: tuple[jax.Array, jax.Array],
        seeds: Sequence[Seed | None],
    ) -> jax.Array:
        """Returns the layer's output [B, T, D] for the queries x_BTD.

        Args:
          x_BTD: the layer's input at the query positions.
          x_BSD: the layer's input at all positions of the row; None if it is x_BTD.
          ids: int32 sequence_ids of the queries, [B, T], and of all tokens, [B, S].
          seeds: for the three dropouts; None for no dropout.
        """
        probs_seed, attention_seed, output_seed = seeds
        y_BTD = self.attention(x_BTD, x_BSD, ids, probs_seed)
        rate = self.dropout_rate
        x_BTD = add_and_norm(self.attention_norm, x_BTD, y_BTD, rate, attention_seed)
        y_BTD = self.output(self.intermediate.activated(x_BTD, self.activation))
        return add_and_norm(self.output_norm, x_BTD, y_BTD, rate, output_seed)


class Bert(nnx.Module):
    """The encoder without a task head; the pooler is optional."""

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        rngs: nnx.Rngs,
        *,
        has_pooler: bool = True,
    ):
        D = config.hidden_size
        self.embeddings = Embeddings(config, vocab_size, rngs)
        self.layers = nnx.List(
            [Layer(config, rngs) for _ in range(config.num_hidden_layers)]
        )
        if has_pooler:
            stddev = config.initializer_range
            self.pooler = Linear((D, D), ("embed", "replicated"), stddev, rngs)

    def states(
        self,
        batch: dict[str, jax.Array],
        dropout_key: DropoutKey | None,
        dtype: jnp.dtype,
        remat: str = "none",
        positions_BQ: jax.Array | None = None,
    ) -> list[jax.Array]:
        """Returns the outputs [B, T, D] of the embeddings and of each layer.

        That of the last layer is [B, Q, D] if positions_BQ are given.

        Pretraining reads the last layer's states at a few positions only, and they do
        not depend on each other, so only those are computed. With 20 masks in 128
        tokens this saves 84% of the layer's queries and feed-forward, which is 6% of
        BERT-base's step.

        Args:
          batch: int32[B, T] input_ids, segment_ids, position_ids and sequence_ids
            (0 for padding, otherwise the number of the token's pair in its row, from
            1).
          dropout_key: None for no dropout.
          dtype: the dtype of activations; parameters stay float32.
          remat: "none", or a key of REMAT_POLICIES, which trades computation for
            memory.
          positions_BQ: int32, the positions of the last layer to compute; None for all.
        """
        num = 1 + 3 * len(self.layers)
        all_seeds = [None] * num if dropout_key is None else dropout_key.seeds(num)
        layer_seeds = [all_seeds[i : i + 3] for i in range(1, num, 3)]
        x_BTD = self.embeddings(batch, all_seeds[0], dtype)
        states = [x_BTD]
        ids_BT = batch["sequence_ids"]
        for layer, seeds in zip(self.layers[:-1], layer_seeds[:-1], strict=True):
            with jax.named_scope("layer"):
                x_BTD = _with_remat(layer, remat)(x_BTD, None, (ids_BT, ids_BT), seeds)
                states.append(x_BTD)
        query_BTD, all_BTD, query_ids = x_BTD, None, ids_BT
        if positions_BQ is not None:
            query_BTD, all_BTD = gather_positions(x_BTD, positions_BQ), x_BTD
            query_ids = gather_positions(ids_BT, positions_BQ)
        with jax.named_scope("last_layer"):
            last, ids = _with_remat(self.layers[-1], remat), (query_ids, ids_BT)
            states.append(last(query_BTD, all_BTD, ids, layer_seeds[-1]))
        return states

    def pool(self, x_BKD: jax.Array) -> jax.Array:
        """Returns [B, K, D], the tanh of a projection of the [CLS] states."""
        return jnp.tanh(self.pooler(x_BKD))


class BertForPreTraining(nnx.Module):
    """BERT with the masked-LM head (tied to the word embeddings) and the NSP head."""

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs):
        D = config.hidden_size
        stddev = config.initializer_range
        self.bert = Bert(config, vocab_size, rngs)
        self.transform = Linear((D, D), ("embed", "replicated"), stddev, rngs)
        self.transform_norm = LayerNorm(D, config.layer_norm_eps)
        self.decoder_bias = nnx.Param(
            jnp.zeros((vocab_size,), jnp.float32, out_sharding=sharding.spec("vocab"))
        )
        self.next_sentence = Linear((D, 2), ("embed", "classes"), stddev, rngs)
        self.activation = config.hidden_act

    def __call__(
        self,
        batch: dict[str, jax.Array],
        *,
        dropout_key: DropoutKey | None,
        dtype: jnp.dtype,
        remat: str = "none",
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the logits of both objectives.

        Args:
          batch: the arrays that `Bert.states` reads, as it reads the other arguments,
            int32[B, P] masked_lm_positions and int32[B, K] next_sentence_positions.

        Returns:
          float32[B, P, V] masked-LM logits and float32[B, K, 2] next-sentence logits
          (class 0: B follows A, class 1: B is random).
        """
        num_masked = batch["masked_lm_positions"].shape[1]
        positions_BQ = jnp.concatenate(
            [batch["masked_lm_positions"], batch["next_sentence_positions"]], axis=1
        )
        *_, x_BQD = self.bert.states(batch, dropout_key, dtype, remat, positions_BQ)
        masked_lm_BPV = self.masked_lm(x_BQD[:, :num_masked])
        pooled_BKD = self.bert.pool(x_BQD[:, num_masked:])
        next_sentence_BK2 = self.next_sentence(pooled_BKD)
        return masked_lm_BPV, next_sentence_BK2.astype(jnp.float32)

    def masked_lm(self, x_BPD: jax.Array) -> jax.Array:
        """Returns float32[B, P, V] logits of gathered hidden states."""
        with jax.named_scope("masked_lm_head"):
            h_BPD = self.transform.activated(x_BPD, self.activation)
            h_BPD = self.transform_norm(h_BPD)
            logits_BPV = self.bert.embeddings.logits(h_BPD)
            return plus_bias(logits_BPV, self.decoder_bias[...], h_BPD.dtype)


def build(
    config: ModelConfig, vocab_size: int, key: jax.Array
) -> tuple[nnx.GraphDef, nnx.State]:
    """Initializes BERT: returns its graphdef and float32 parameters on the mesh."""
    model = BertForPreTraining(config, vocab_size, nnx.Rngs(params=key))
    return nnx.split(model)


def _replicated(table_RD: jax.Array) -> jax.Array:
    return jax.reshard(table_RD, jax.P(None, None))


def _with_remat(
    layer: Callable[..., jax.Array], remat: str
) -> Callable[..., jax.Array]:
    if remat == "none":
        return layer
    return jax.checkpoint(lambda *inputs: layer(*inputs), policy=REMAT_POLICIES[remat])
