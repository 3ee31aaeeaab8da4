"""Converts steps per second to sequences per second, tokens per second and MFU.

MFU is the share of the devices' peak matrix throughput that the model's own matrix
products use. They are counted once for the forward pass and twice for the backward
pass, and only where a step computes them. The peak is the data sheet's for bfloat16,
whatever the compute dtype. The peak of an unknown device, in practice a CPU, is that of
a float32 product, measured at the start, and again when a run exceeds it.
"""

import time

import jax
import jax.numpy as jnp

from bert_jax.config import ExperimentConfig, ModelConfig, PhaseConfig
from bert_jax.distributed import chips


def peak_flops() -> float:
    """Returns the peak FLOP/s of one device, from its data sheet or measured."""
    chip = chips.chip_of(jax.devices()[0].device_kind)
    return chip.peak_flops if chip else _measured_flops()


def _measured_flops() -> float:
    """Returns the FLOP/s of the fastest 1024-cubed float32 product in half a second.

    The fastest is taken because other work on the machine only slows products down.
    """
    n = 1024
    x = jnp.ones((n, n), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    seconds = []
    end = time.perf_counter() + 0.5
    while not seconds or time.perf_counter() < end:
        start = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds)


def train_flops_per_sequence(
    model: ModelConfig, vocab_size: int, phase: PhaseConfig
) -> float:
    """Returns the FLOPs of the matrix products of one row's forward and backward pass.

    Each token and layer takes 8 D^2 for query, key, value and output, 4 D F for the
    feed-forward layer, and 4 T D for attention scores and context. The last layer
    computes keys and values for every token, and the rest only for the P + K positions
    that the heads read. A packed row counts its full T x T attention, although the
    kernels for GPUs skip blocks of it.
    """
    D, F, L = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    T, P = phase.sequence_length, phase.max_predictions
    K = phase.max_sequences_per_row
    Q = P + K
    layer = T * (8 * D**2 + 4 * D * F + 4 * T * D)
    last_layer = T * 4 * D**2 + Q * (4 * D**2 + 4 * D * F + 4 * T * D)
    heads = P * (2 * D**2 + 2 * D * vocab_size) + K * (2 * D**2 + 4 * D)
    return 3.0 * ((L - 1) * layer + last_layer + heads)


class Throughput:
    """Computes the throughput metrics of a log line."""

    def __init__(self, config: ExperimentConfig):
        self._config = config
        self._peak_flops = peak_flops() * jax.device_count()

    def __call__(self, phase_index: int, steps_per_sec: float) -> dict[str, float]:
        config, phase = self._config, self._config.phases[phase_index]
        rate = phase.global_batch_size * steps_per_sec
        flops = train_flops_per_sequence(
            config.model, config.tokenizer.vocab_size, phase
        )
        # Other work may have slowed the measurement on a CPU, so measure again.
        if rate * flops > self._peak_flops and jax.default_backend() == "cpu":
            again = peak_flops() * jax.device_count()
            self._peak_flops = max(self._peak_flops, again)
        return {
            "sequences_per_sec": rate,
            "tokens_per_sec": rate * phase.sequence_length,
            "mfu": rate * flops / self._peak_flops,
        }
