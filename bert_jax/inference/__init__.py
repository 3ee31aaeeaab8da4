"""Computes features of texts and predictions of fine-tuned models.

from bert_jax import inference

model = inference.load("my_bert")
vectors = model.features(["a text", ("a text", "and another")])  # float32[2, F]

classifier = inference.load_tuned("runs/sst2/model")
classifier.predict(["a fine film"])  # [{"label": ..., "probabilities": {...}}]
"""

from bert_jax.inference.encoder import TextEncoder, load
from bert_jax.inference.features import LAYERS, POOLING, TokenFeatures
from bert_jax.inference.tuned import TunedModel, load_tuned

__all__ = [
    "LAYERS",
    "POOLING",
    "TextEncoder",
    "TokenFeatures",
    "TunedModel",
    "load",
    "load_tuned",
]
