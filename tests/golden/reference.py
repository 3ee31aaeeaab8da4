"""What transformers' BertForPreTraining computes in torch, as NumPy arrays.

Shapes: B row, T token, D hidden, V vocabulary, E the embeddings' output and every
layer's.
"""

import numpy as np
import torch
import transformers

Inputs = dict[str, np.ndarray]


def build(vocab_size: int, sizes: dict[str, object]) -> transformers.BertForPreTraining:
    """Returns a model that writes its attention out and drops nothing."""
    config = transformers.BertConfig(
        vocab_size=vocab_size, attn_implementation="eager", **sizes
    )
    return transformers.BertForPreTraining(config).eval()


def shapes(model: transformers.BertForPreTraining) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in model.named_parameters()}


def set_weights(
    model: transformers.BertForPreTraining, weights: dict[str, np.ndarray]
) -> None:
    """Fills every parameter; a missing name or another shape is an error."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert parameter.shape == weights[name].shape, name
            parameter.copy_(torch.tensor(weights[name]))


def outputs(model: transformers.BertForPreTraining, inputs: Inputs) -> Inputs:
    """Returns the states, logits and loss, and leaves gradients in the parameters.

    Args:
      inputs: int64 input_ids, token_type_ids, attention_mask and labels, all [B, T],
        and next_sentence_label [B]; a label of -100 stands for no mask.

    Returns:
      hidden_states [E, B, T, D], pooled [B, D], masked_lm_logits [B, T, V],
      next_sentence_logits [B, 2] and loss [].
    """
    model.zero_grad()
    found = model(
        **{name: torch.tensor(rows) for name, rows in inputs.items()},
        output_hidden_states=True,
    )
    found.loss.backward()
    tensors = {
        "hidden_states": torch.stack(found.hidden_states),
        "pooled": model.bert.pooler(found.hidden_states[-1]),
        "masked_lm_logits": found.prediction_logits,
        "next_sentence_logits": found.seq_relationship_logits,
        "loss": found.loss,
    }
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def gradients(model: transformers.BertForPreTraining) -> dict[str, np.ndarray]:
    """Returns what `outputs` left; the tied embedding has one, the sum of its uses."""
    return {name: x.grad.numpy() for name, x in model.named_parameters()}
