"""Converts steps per second to sequences, tokens and FLOP/s."""

import time

import jax
import jax.numpy as jnp

from bert_jax.config import ExperimentConfig, ModelConfig, PhaseConfig
from bert_jax.distributed import chips


def peak_flops() -> float:
    """Returns the FLOP/s of one device: a data sheet's, else a measured product's."""
    chip = chips.chip_of(jax.devices()[0].device_kind)
    return chip.peak_flops if chip else _measured_flops()


def _measured_flops() -> float:
    """Returns the FLOP/s of a 1024-cubed float32 product, the best in half a second.

    The best: whatever else the machine does at that moment only takes away.
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

    Per token and layer 8 D^2 (q, k, v, output) + 4 D F (feed-forward), 4 T D for the
    scores and the context. The last layer has keys and values for every token and the
    rest only for the P + K positions that the heads read. Of a row of K pairs the whole
    attention is counted, as it is computed.
    """
    D, F, L = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    T, P = phase.sequence_length, phase.max_predictions
    K = phase.max_sequences_per_row
    Q = P + K
    layer = T * (8 * D**2 + 4 * D * F + 4 * T * D)
    last_layer = T * 4 * D**2 + Q * (4 * D**2 + 4 * D * F + 4 * T * D)
    heads = P * (2 * D**2 + 2 * D * vocab_size) + K * (2 * D**2 + 4 * D)
    return 3.0 * ((L - 1) * layer + last_layer + heads)


class Rates:
    """What a run's steps a second amount to."""

    def __init__(self, config: ExperimentConfig):
        self._config = config
        self._peak_flops = peak_flops() * jax.device_count()

    def __call__(self, phase_index: int, steps_per_sec: float) -> dict[str, float]:
        """Returns sequences and tokens a second, and the MFU."""
        config, phase = self._config, self._config.phases[phase_index]
        rate = phase.global_batch_size * steps_per_sec
        flops = train_flops_per_sequence(
            config.model, config.tokenizer.vocab_size, phase
        )
        return {
            "sequences_per_sec": rate,
            "tokens_per_sec": rate * phase.sequence_length,
            "mfu": self._mfu(rate * flops),
        }

    def _mfu(self, flops: float) -> float:
        # A CPU's was measured beside other work, so it is measured again.
        if flops > self._peak_flops and jax.default_backend() == "cpu":
            again = peak_flops() * jax.device_count()
            self._peak_flops = max(self._peak_flops, again)
        return flops / self._peak_flops
