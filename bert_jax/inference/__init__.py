"""Computes features and scores of texts, and predictions of fine-tuned models.

from bert_jax import inference

model = inference.load("my_bert")
vectors = model.features(["a text", ("a text", "and another")])  # float32[2, F]

classifier = inference.load_tuned("runs/sst2/model")
classifier.predict(["a fine film"])  # [{"label": ..., "probabilities": {...}}]

masked_lm = inference.load_masked_lm("my_bert")
masked_lm.score(["a fine film"]).values  # float64[N], pseudo-log-likelihoods

Models are placed on the mesh of `jax.set_mesh`, or on all devices of this process if
there is none. An invalid option, input or model raises errors.ConfigError; a single
string instead of a list raises TypeError.
"""

from bert_jax.inference.encoder import LAYERS, POOLING, TextEncoder, TokenFeatures, load
from bert_jax.inference.masked_lm import MaskedLM, Scores, load_masked_lm
from bert_jax.inference.tuned import TunedModel, load_tuned

__all__ = [
    "LAYERS",
    "POOLING",
    "MaskedLM",
    "Scores",
    "TextEncoder",
    "TokenFeatures",
    "TunedModel",
    "load",
    "load_masked_lm",
    "load_tuned",
]
