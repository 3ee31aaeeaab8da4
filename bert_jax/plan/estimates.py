"""Estimates the rate, memory and loss of a run from measurements of other runs.

docs/plan.md says how far each estimate is from what was measured.
"""

import math

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.distributed import chips
from bert_jax.monitoring import throughput

MEASURED_ON = "NVIDIA H200"
# The share of the peak that a step in bfloat16 takes, by hidden size. Narrower models
# were not measured: their share is taken as proportional to the width.
SHARE_OF_PEAK = {512: 0.339, 768: 0.429, 1024: 0.489}
STEPS_SHARE = 0.92  # of the time of the run of configs/gpu.py, with start-up and saves
# Other GPUs have no kernels for attention, which save 59 of the 145 ms that a step of
# BERT-base takes with 128 packed rows of 512 tokens (docs/performance.md).
HAVE_KERNELS = ("NVIDIA H100", "NVIDIA H200")
WITHOUT_KERNELS = 0.6
# FLOPs of the runs of configs/laptop.py and configs/gpu.py, and how far their held-out
# losses were below the unigram entropy, in nats.
LAPTOP, GPU = (3.61e14, 2.77), (6.63e16, 3.76)
GPU_GB = {"a100": 40, "h100": 80, "h200": 141, "l40s": 48, "l40": 48, "l4": 24}
GPU_GB["4090"] = 24
GPU_SHARE = 0.75  # that JAX allocates
STATE_BYTES = 16  # of a parameter: weight, two moments and gradient
# Activations of a layer, per token and hidden unit: 29 in configs/gpu_day.py with 64
# rows at a time, compiled for v5e. Without kernels, also per pair of tokens and head.
ACTIVATION_BYTES, SCORE_BYTES = 30, 4


def num_parameters(config: ExperimentConfig) -> int:
    """Returns the number of weights in matrices and tables."""
    model = config.model
    D, F, L = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    rows = config.tokenizer.vocab_size + model.max_position_embeddings
    return D * rows + L * (4 * D**2 + 2 * D * F) + 2 * D**2


def flops_per_token(config: ExperimentConfig, phase: PhaseConfig) -> float:
    """Returns the FLOPs of a token of a row, forward and backward."""
    model, vocab_size = config.model, config.tokenizer.vocab_size
    row = throughput.train_flops_per_sequence(model, vocab_size, phase)
    return row / phase.sequence_length


def tokens_per_second(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> float:
    """Estimates how many tokens a run reads per second on each device.

    Args:
      phase: one of its phases.
      kind: the devices, a key of chips.CHIPS. The rate of an H200 is scaled by the peak
        or by the bandwidth of the memory, whichever is the smaller ratio.
    """
    chip, measured = chips.CHIPS[kind], chips.CHIPS[MEASURED_ON]
    speed = min(
        chip.peak_flops / measured.peak_flops,
        chip.hbm_bytes_per_s / measured.hbm_bytes_per_s,
    )
    if kind.startswith("NVIDIA") and kind not in HAVE_KERNELS:
        speed *= WITHOUT_KERNELS
    width = config.model.hidden_size
    nearest = max((n for n in SHARE_OF_PEAK if n <= width), default=512)
    share = STEPS_SHARE * SHARE_OF_PEAK[nearest] * min(width / nearest, 1.0)
    return speed * share * measured.peak_flops / flops_per_token(config, phase)


def rows_that_fit(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> int:
    """Estimates how many rows fit into the memory of a device at a time."""
    memory = chips.CHIPS[kind].hbm_gib * chips.GIB
    if kind.startswith("NVIDIA"):
        memory = GPU_SHARE * 1e9 * GPU_GB[kind.split()[-1].lower()]
    free = memory - STATE_BYTES * num_parameters(config)
    return max(int(free / row_bytes(config, phase, kind)), 1)


def row_bytes(config: ExperimentConfig, phase: PhaseConfig, kind: str) -> float:
    """Estimates the memory that a row takes in a step."""
    model, length = config.model, phase.sequence_length
    token = model.hidden_size * ACTIVATION_BYTES
    if kind.startswith("NVIDIA") and kind not in HAVE_KERNELS:
        token += model.num_attention_heads * length * SCORE_BYTES
    return model.num_hidden_layers * token * length


def gain(flops: float) -> tuple[float, float] | None:
    """Estimates how far the held-out loss will be below the unigram entropy, in nats.

    Interpolates two measured runs by the logarithm of their FLOPs. Beyond them, the
    range is from half of that slope to all of it; below them, it is unknown.
    """
    (low, low_gain), (high, high_gain) = LAPTOP, GPU
    if flops < low:
        return None
    decades = math.log10(flops / high)
    line = (high_gain - low_gain) / math.log10(high / low) * decades
    return high_gain + (line / 2 if decades > 0 else line), high_gain + line
