"""Tests of bert_jax.monitoring.throughput."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.distributed import chips
from bert_jax.model import bert
from bert_jax.monitoring import throughput
from bert_jax.training import losses
from bert_jax.training import step as step_lib
from tests.conftest import make_batch, make_config


def count_products(jaxpr) -> int:
    """Returns the FLOPs of every dot_general in a jaxpr and the jaxprs inside it."""
    flops = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            lhs = equation.invars[0].aval.shape
            size = int(np.prod([lhs[dim] for dim in contracted]))
            flops += 2 * size * int(np.prod(equation.outvars[0].aval.shape))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                flops += count_products(inner)
    return flops


def test_flops_equal_those_of_the_matrix_products_in_the_program():
    config = make_config(model__num_hidden_layers=3)
    phase = config.phases[0]
    graphdef, _ = step_lib.init_state(config)
    key = jax.random.key(0)
    _, params = bert.build(config.model, config.tokenizer.vocab_size, key)
    batch = {name: jnp.asarray(rows) for name, rows in make_batch(config).items()}
    jaxpr = jax.make_jaxpr(
        lambda p, b: losses.loss_sums(
            graphdef,
            p,
            b,
            dropout_key=None,
            dtype=jnp.dtype(jnp.float32),
            next_sentence=True,
        )
    )(params, batch)
    B, T, D = phase.global_batch_size, phase.sequence_length, config.model.hidden_size
    # The segment embedding is a product with one-hot rows, which MFU does not count.
    counted = count_products(jaxpr.jaxpr) / B - 2 * T * 2 * D
    formula = throughput.train_flops_per_sequence(config, phase)
    assert formula / 3 == pytest.approx(counted, rel=1e-6)


def test_rates_have_the_mfu_of_a_device_with_a_data_sheet(monkeypatch):
    config = make_config()
    (phase,) = config.phases
    B, T = phase.global_batch_size, phase.sequence_length
    expected = {"sequences_per_sec": 2.0 * B, "tokens_per_sec": 2.0 * B * T}
    assert throughput.rates(config, 0, 2.0) == expected  # of a CPU
    chip = chips.CHIPS["TPU v4"]
    monkeypatch.setattr(chips, "chip_of", lambda device_kind: chip)
    mfu = 2.0 * throughput.step_flops(config, phase) / 275e12 / jax.device_count()
    assert throughput.rates(config, 0, 2.0) == expected | {"mfu": pytest.approx(mfu)}
