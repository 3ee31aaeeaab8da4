"""Converts steps per second to sequences per second, tokens per second and MFU.

MFU is the share of the devices' peak matrix throughput that the model's own matrix
products use. They are counted once for the forward pass and twice for the backward
pass, and only where a step computes them. The peak is the data sheet's for bfloat16,
whatever the compute dtype; a device without a data sheet, such as a CPU, has no MFU.
"""

import jax

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.distributed import chips


def train_flops_per_sequence(config: ExperimentConfig, phase: PhaseConfig) -> float:
    """Returns the FLOPs of the matrix products of one row's forward and backward pass.

    Each token and layer takes 8 D^2 for query, key, value and output, 4 D F for the
    feed-forward layer, and 4 T D for attention scores and context. The last layer
    computes keys and values for every token, and the rest only for the P + K positions
    that the heads read. A packed row counts its full T x T attention, although the
    kernels for GPUs skip blocks of it.
    """
    model, vocab_size = config.model, config.tokenizer.vocab_size
    D, F, L = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    T, P = phase.sequence_length, phase.max_predictions
    K = phase.max_sequences_per_row
    Q = P + K
    layer = T * (8 * D**2 + 4 * D * F + 4 * T * D)
    last_layer = T * 4 * D**2 + Q * (4 * D**2 + 4 * D * F + 4 * T * D)
    heads = P * (2 * D**2 + 2 * D * vocab_size) + K * (2 * D**2 + 4 * D)
    return 3.0 * ((L - 1) * layer + last_layer + heads)


def step_flops(config: ExperimentConfig, phase: PhaseConfig) -> float:
    """Returns the model FLOPs of a step of a phase, over all devices."""
    return phase.global_batch_size * train_flops_per_sequence(config, phase)


def rates(
    config: ExperimentConfig, phase_index: int, steps_per_sec: float
) -> dict[str, float]:
    """Returns the throughput metrics of a log line."""
    phase = config.phases[phase_index]
    rate = phase.global_batch_size * steps_per_sec
    metrics = {
        "sequences_per_sec": rate,
        "tokens_per_sec": rate * phase.sequence_length,
    }
    if chip := chips.chip_of(jax.devices()[0].device_kind):
        peak_flops = chip.peak_flops * jax.device_count()
        metrics["mfu"] = step_flops(config, phase) * steps_per_sec / peak_flops
    return metrics
