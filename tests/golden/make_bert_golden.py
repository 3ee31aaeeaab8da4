"""Makes bert_tiny.npz: what transformers gives for a tiny BERT, and its gradients.

Run by hand, from the root of the repository, when the cases change:

    python -m tests.golden.make_bert_golden

The file there is by torch 2.13.0, transformers 5.23.0 and NumPy 2.4.6 in float64 and
holds these versions too. Nothing of bert_jax takes part.
"""

import numpy as np
import torch
import transformers

from tests.golden import reference, tiny_bert


def make_inputs() -> reference.Inputs:
    """Returns rows with padding, two segments and different numbers of masks."""
    random = np.random.RandomState(1)
    lengths_B1 = np.array([[16], [11], [7]])
    B, T = len(lengths_B1), 16
    position_T = np.arange(T)[None]
    is_real_BT = position_T < lengths_B1
    ids_BT = random.randint(5, tiny_bert.VOCAB_SIZE, (B, T))
    labels_BT = np.full((B, T), -100)
    for row, positions in enumerate([[1, 2, 8, 14], [3, 10], [5]]):
        labels_BT[row, positions] = random.randint(
            5, tiny_bert.VOCAB_SIZE, len(positions)
        )
    inputs = {
        "input_ids": np.where(is_real_BT, ids_BT, 0),
        "token_type_ids": (position_T >= lengths_B1 // 2) & is_real_BT,
        "attention_mask": is_real_BT,
        "labels": labels_BT,
        "next_sentence_label": np.array([0, 1, 1]),
    }
    return {name: rows.astype(np.int64) for name, rows in inputs.items()}


def make_case(activation: str) -> dict[str, np.ndarray]:
    """Returns outputs and gradients under names that begin with the activation's."""
    sizes = tiny_bert.SIZES | {"hidden_act": activation}
    model = reference.build(tiny_bert.VOCAB_SIZE, sizes)
    reference.set_weights(model, tiny_bert.draw_weights(reference.shapes(model)))
    model.double()
    inputs = make_inputs()
    found = reference.outputs(model, inputs)
    found["masked_lm_logits"] = found["masked_lm_logits"][inputs["labels"] != -100]
    for name, gradient in reference.gradients(model).items():
        found[f"gradient/{name}"] = gradient
    return {f"{activation}/{k}": v.astype(np.float32) for k, v in found.items()}


def make() -> dict[str, np.ndarray]:
    arrays = {f"inputs/{name}": rows for name, rows in make_inputs().items()}
    for activation in tiny_bert.ACTIVATIONS:
        arrays |= make_case(activation)
    for library in (torch, transformers, np):
        # Without what a build adds to it, as in 2.13.0+cpu.
        version = library.__version__.partition("+")[0]
        arrays[f"version/{library.__name__}"] = np.array(version)
    return arrays


if __name__ == "__main__":
    np.savez_compressed(tiny_bert.FILE, **make())
