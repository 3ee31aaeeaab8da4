"""The golden model: its file, sizes and weights, which no version of NumPy changes."""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("bert_tiny.npz")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
VOCAB_SIZE = 97
ACTIVATIONS = ("gelu_new", "gelu")


def draw_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns float32 weights for Hugging Face's names, none of them 0 or 1.

    Kernels are larger than a new model's, so that activations are curved and attention
    is uneven even at these few dims.
    """
    random = np.random.RandomState(0)  # its stream is frozen, a Generator's is not
    weights = {}
    for name in sorted(shapes):
        noise = random.standard_normal(shapes[name])
        if name.endswith("LayerNorm.weight"):
            array = 1 + 0.1 * noise
        elif name.endswith("bias"):
            array = 0.1 * noise
        elif name.endswith("embeddings.weight"):
            array = 0.05 * noise
        else:
            array = 0.2 * noise
        weights[name] = array.astype(np.float32)
    return weights
