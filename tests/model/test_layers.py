"""Tests of bert_jax.model.layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from bert_jax.model import layers


@pytest.mark.parametrize("approximate", [False, True])
def test_the_gelu_and_its_slope_are_rounded_once(approximate):
    x = jnp.linspace(-30.0, 30.0, 4001).astype(jnp.bfloat16)
    both = jax.jit(jax.vmap(jax.value_and_grad(lambda x: layers.gelu(x, approximate))))
    exact = np.asarray(x, np.float64)
    cdf = special.ndtr(exact)
    expected = exact * cdf, cdf + exact * stats.norm.pdf(exact)
    tolerance = 2e-3 if approximate else 2e-6  # the tanh form is an approximation
    rows = both(x), both(x.astype(jnp.float32)), expected
    for rounded, single, double in zip(*rows, strict=True):
        np.testing.assert_array_equal(rounded, single.astype(jnp.bfloat16))
        np.testing.assert_allclose(single, double, atol=tolerance)
