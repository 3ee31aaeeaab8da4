"""keras-hub's BertMaskedLM, trained by Keras.

    pip install keras-hub==0.32.0

A peer of benchmarks.time_to_loss: it starts from the same weights, reads the same
batches, and has the same learning rates, weight decay and clipping. keras-hub has no
next-sentence loss, so this trains the masked LM alone, and the weights of the pooler
and of the next-sentence head stay those of the start. keras-hub has one dropout rate;
the head of its masked LM has an exact GELU and an epsilon of 1e-5 in LayerNorm. AdamW
is Keras', with bias correction.

tensorflow-text, which keras-hub requires, has 200 MB and is used by tokenizers only.
Therefore keras-hub is not in requirements-parity.txt.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import time_to_loss_peer
from bert_jax.config import ExperimentConfig
from bert_jax.data.batches import pipeline
from bert_jax.errors import ConfigError
from bert_jax.training import optimizer

NAME = "keras-hub BertMaskedLM, trained by Keras"
PACKAGE, INSTALL = "keras_hub", "pip install keras-hub==0.32.0"
OPTIONS = ("jax", "tensorflow")  # backends of Keras
# Parts of the paths of Keras' variables -> parts of our names, replaced in this order.
NAMES = {
    "token_embedding/embeddings": "bert.embeddings.word",
    "position_embedding/embeddings": "bert.embeddings.position",
    "segment_embedding/embeddings": "bert.embeddings.segment",
    "embeddings_layer_norm": "bert.embeddings.norm",
    "transformer_layer_": "bert.layers.",
    "self_attention_layer_norm": "attention_norm",
    "self_attention_layer": "attention",
    "attention_output": "output",
    "feedforward_intermediate_dense": "intermediate",
    "feedforward_output_dense": "output",
    "feedforward_layer_norm": "output_norm",
    "pooled_dense": "bert.pooler",
    "mlm_head/intermediate_dense": "transform",
    "mlm_head/intermediate_layer_norm": "transform_norm",
    "mlm_head/output_bias": "decoder_bias",
    "/gamma": "/scale",
    "/beta": "/bias",
    "/": ".",
}


class Trainer:
    """The model and its optimizer; see time_to_loss_peer.Trainer.

    A process can use one backend of Keras only.
    """

    def __init__(self, config: ExperimentConfig, start: Path, backend: str = "jax"):
        os.environ["KERAS_BACKEND"] = backend
        import keras

        assert keras.config.backend() == backend, "Keras was imported before"
        keras.utils.set_random_seed(config.seed)
        self._start = time_to_loss_peer.read_arrays(start, config)
        self.model = make_model(config)
        self._variables = {our_name(v.path): v for v in self.model.weights}
        for name, variable in self._variables.items():
            variable.assign(self._start[name].reshape(variable.shape))
        rate = config.optimizer
        adamw = keras.optimizers.AdamW(
            weight_decay=rate.weight_decay,
            beta_1=rate.beta1,
            beta_2=rate.beta2,
            epsilon=rate.epsilon,
            global_clipnorm=rate.clip_norm,
        )
        adamw.exclude_from_weight_decay(
            [
                variable
                for name, variable in self._variables.items()
                if name.endswith(optimizer.UNDECAYED)
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
        self.model.compile(adamw, loss, weighted_metrics=[])
        self._rates = time_to_loss_peer.learning_rates(config)

    @staticmethod
    def inputs(batch: pipeline.Batch) -> dict[str, Any]:
        """Converts rows of one pair to the arguments of train_on_batch."""
        return {
            "x": {
                "token_ids": batch["input_ids"],
                "segment_ids": batch["segment_ids"],
                "padding_mask": batch["sequence_ids"],
                "mask_positions": batch["masked_lm_positions"],
            },
            "y": batch["masked_lm_ids"],
            "sample_weight": batch["masked_lm_weights"],
        }

    def step(self, batch: dict[str, Any]) -> None:
        self.model.optimizer.learning_rate = next(self._rates)
        self.model.train_on_batch(**batch)

    def weights(self) -> dict[str, np.ndarray]:
        trained = {
            name: np.reshape(variable.numpy(), self._start[name].shape)
            for name, variable in self._variables.items()
        }
        return self._start | trained


def make_model(config: ExperimentConfig) -> Any:
    sizes = config.model
    if sizes.hidden_dropout_prob != sizes.attention_probs_dropout_prob:
        raise ConfigError(
            "keras-hub has one dropout rate; give config.model.hidden_dropout_prob and"
            " config.model.attention_probs_dropout_prob the same value"
        )
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config.tokenizer.vocab_size,
        num_layers=sizes.num_hidden_layers,
        num_heads=sizes.num_attention_heads,
        hidden_dim=sizes.hidden_size,
        intermediate_dim=sizes.intermediate_size,
        dropout=sizes.hidden_dropout_prob,
        max_sequence_length=sizes.max_position_embeddings,
        num_segments=sizes.type_vocab_size,
    )
    backbone.pooled_dense.trainable = False  # the masked LM does not use it
    return keras_hub.models.BertMaskedLM(backbone)


def our_name(path: str) -> str:
    """Returns our name of the parameter in a variable of Keras."""
    for theirs, ours in NAMES.items():
        path = path.replace(theirs, ours)
    return path
