"""Tests of BERT: sizes, attention, dropout and parity with transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax import config as config_lib
from bert_jax.configs import base, large
from bert_jax.distributed import sharding
from bert_jax.model import attention, layers, ops, parameters
from bert_jax.model import bert as bert_lib
from bert_jax.model.dropout import DropoutKey, row_indices
from bert_jax.training import losses
from tests.conftest import make_batch, make_config, use_mesh

F32 = jnp.dtype(jnp.float32)


def build(config, seed=0):
    graphdef, params = bert_lib.build(
        config.model, config.tokenizer.vocab_size, jax.random.key(seed)
    )
    return nnx.merge(graphdef, params)


def with_random_vectors(bert, seed=1):
    """Adds noise to all parameters.

    Biases start at 0 and scales at 1, so that a swapped or missing one would not show.
    """
    graphdef, params = nnx.split(bert)
    random = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda x: x + jnp.asarray(random.normal(0, 0.05, x.shape), F32), params
    )
    return nnx.merge(graphdef, params)


@pytest.mark.parametrize(
    ("module", "count"), [(base, 110_106_428), (large, 336_226_108)]
)
def test_number_of_parameters_equals_the_released_models(module, count):
    config = config_lib.from_config_dict(module.get_config())
    key = jax.random.key(0)
    params = jax.eval_shape(lambda: bert_lib.build(config.model, 30522, key)[1])
    assert sum(x.size for x in jax.tree.leaves(params)) == count


def test_initial_weights_have_the_distribution_of_the_released_code():
    config = make_config(model__hidden_size=768, model__max_position_embeddings=512)
    _, params = bert_lib.build(config.model, 97, jax.random.key(0))
    first_values = set()
    for name, leaf in parameters.leaves(params).items():
        array = np.asarray(leaf, np.float64)
        if array.ndim == 1:
            assert np.all(array == (1 if name.endswith(".scale") else 0)), name
            continue
        # A normal with deviation 0.02, truncated at two deviations and not rescaled,
        # has 0.8796 of that deviation. Allow four standard errors of its estimate.
        allowed = 4 * 0.0176 * np.sqrt(0.35 / array.size)
        assert abs(array.std() - 0.8796 * 0.02) < allowed, name
        assert abs(array.mean()) < 4 * 0.0176 / np.sqrt(array.size), name
        assert 0.038 < np.abs(array).max() <= 0.04 + 1e-6, name
        first_values.add(array.flat[0])
    # Every matrix is drawn with a key of its own.
    assert len(first_values) == sum(x.ndim == 2 for x in jax.tree.leaves(params))


def encode(bert, batch, positions_BQ=None):
    return np.asarray(last_states(*nnx.split(bert.bert), batch, positions_BQ))


@functools.partial(jax.jit, static_argnames="graphdef")
def last_states(graphdef, params, batch, positions_BQ):
    encoder, key = nnx.merge(graphdef, params), None
    return encoder.states(batch, positions_BQ=positions_BQ, dropout_key=key, dtype=F32)[
        -1
    ]


def test_padding_does_not_change_real_tokens():
    config = make_config()
    bert = build(config)
    batch = make_batch(config)
    expected = encode(bert, batch)
    padding = batch["sequence_ids"] == 0
    changed = batch | {"input_ids": np.where(padding, 11, batch["input_ids"])}
    np.testing.assert_allclose(
        encode(bert, changed)[~padding], expected[~padding], atol=1e-6
    )


def test_pairs_of_one_row_do_not_attend_to_each_other():
    """Two pairs packed in a row have the logits of each in a row of its own."""
    config = make_config(phase={"global_batch_size": 2})
    bert = with_random_vectors(build(config))
    alone = make_batch(config)
    T = config.phases[0].sequence_length
    alone["sequence_ids"] = (np.arange(T)[None] < T // 2).astype(np.int32).repeat(2, 0)
    half = slice(0, T // 2)
    packed = {
        name: np.concatenate([alone[name][:1, half], alone[name][1:, half]], axis=1)
        for name in ("input_ids", "segment_ids", "position_ids")
    }
    packed["sequence_ids"] = np.repeat([[1, 2]], T // 2, axis=1).astype(np.int32)
    first, second = alone["masked_lm_positions"]
    packed["masked_lm_positions"] = np.concatenate([first, second + T // 2])[None]
    packed["next_sentence_positions"] = np.array([[0, T // 2]], np.int32)

    @jax.jit
    def logits(batch):
        found = bert(batch, dropout_key=None, dtype=F32)
        return [x.reshape(-1, x.shape[-1]) for x in found]

    for together, apart in zip(logits(packed), logits(alone), strict=True):
        np.testing.assert_allclose(together, apart, atol=1e-5)


@pytest.mark.slow
def test_states_at_positions_equal_those_of_the_whole_row():
    config = make_config()
    bert = with_random_vectors(build(config))
    batch = make_batch(config)
    positions = batch["masked_lm_positions"]
    whole = np.take_along_axis(encode(bert, batch), positions[:, :, None], axis=1)
    some = encode(bert, batch, positions_BQ=jnp.asarray(positions))
    np.testing.assert_allclose(some, whole, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh_shape", [(1, 1, 1), (2, 2, 2)])
def test_gradients_are_the_same_with_the_code_of_every_platform(
    monkeypatch, mesh_shape
):
    """CPUs multiply flattened rows, other platforms [B, T, D]; GPUs have own gradients.

    All three programs run on the CPU.
    """
    mesh = use_mesh(*mesh_shape)
    config = make_config(model__num_attention_heads=2, model__hidden_size=16)
    graphdef, params = nnx.split(with_random_vectors(build(config)))
    batch = sharding.place_batch(make_batch(config), mesh)

    @jax.jit
    def gradient(params):
        def loss(params):
            sums = losses.loss_sums(
                graphdef, params, batch, True, dropout_key=None, dtype=F32
            )
            return sums["masked_lm_loss"] + sums["next_sentence_loss"], None

        return jax.grad(loss, has_aux=True)(params)[0]

    programs, found = [], []
    # The word table is larger than this, the position table smaller.
    monkeypatch.setattr(ops, "_SMALL", 50)
    for platform in ("cpu", "tpu", "gpu"):
        monkeypatch.setattr(sharding, "platform", lambda name=platform: name)
        gradient.clear_cache()
        programs.append(gradient.lower(params).as_text())
        found.append(jax.device_get(gradient(params)))
    assert len(set(programs)) == 3
    for others in found[1:]:
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
            found[0],
            others,
        )


def test_layer_norm_matches_float64_when_the_mean_is_large():
    norm = layers.LayerNorm(64, 1e-12)
    x = np.random.default_rng(0).normal(100.0, 0.1, (4, 64)).astype(np.float32)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(norm(jnp.asarray(x)), exact, atol=2e-3)


@pytest.mark.parametrize("mean", [0.0, 10.0, 100.0])
def test_bfloat16_layer_norm_is_as_accurate_as_its_input(mean):
    norm = layers.LayerNorm(768, 1e-12)
    x = np.random.default_rng(0).normal(mean, 1.0, size=(16, 768)).astype(np.float32)
    x = jnp.asarray(x, jnp.bfloat16)
    found = np.asarray(norm(x), np.float64)
    exact = np.asarray(x, np.float64)
    exact -= exact.mean(axis=1, keepdims=True)
    exact /= exact.std(axis=1, keepdims=True)
    # Half a unit in the last of 8 bits, and a little for the one pass over x.
    np.testing.assert_allclose(found, exact, rtol=2**-8, atol=1e-3)


def test_bfloat16_layer_norm_of_a_constant_row_is_finite():
    norm = layers.LayerNorm(768, 1e-12)
    x = jnp.full((1, 768), 3.3, jnp.bfloat16)
    gradient = jax.grad(lambda x: jnp.sum(norm(x).astype(jnp.float32) ** 2))(x)
    assert np.isfinite(np.asarray(gradient, np.float32)).all()


def with_dropout(hidden=0.0, attention=0.0, **changes):
    return make_config(
        model__hidden_dropout_prob=hidden,
        model__attention_probs_dropout_prob=attention,
        **changes,
    )


def key_of(seed):
    """Returns the dropout key of a batch of `make_batch`."""
    return DropoutKey(jax.random.key(seed), row_indices(8))


@pytest.mark.slow
def test_dropout_is_applied_after_embeddings_and_three_times_in_each_layer(monkeypatch):
    """Compares the calls in order; the last layer queries the masks and [CLS] only."""
    config = with_dropout(0.25, 0.5)
    bert, calls = build(config), []
    drop, attend, seeds = bert_lib.dropout, attention.by_einsums, set()

    def record(shape, rate, seed):
        calls.append((shape, rate))
        seeds.add(tuple(np.asarray(seed.words).tolist()))

    def record_drop(x, rate, seed):
        record(x.shape, rate, seed)
        return drop(x, rate, seed)

    def record_attend(q, k, v, mask_B1TS, num_heads, rate, seed):
        B, _, T, S = mask_B1TS.shape
        record((B, num_heads, T, S), rate, seed)
        return attend(q, k, v, mask_B1TS, num_heads, rate, seed)

    for module in (bert_lib, layers):
        monkeypatch.setattr(module, "dropout", record_drop)
    monkeypatch.setattr(attention, "by_einsums", record_attend)
    batch = {name: jnp.asarray(rows) for name, rows in make_batch(config).items()}
    bert(batch, dropout_key=key_of(0), dtype=F32)
    B, T, Q, N, D = 8, 16, 4 + 1, 4, 32
    assert calls == [
        ((B, T, D), 0.25),
        ((B, N, T, T), 0.5),
        ((B, T, D), 0.25),
        ((B, T, D), 0.25),
        ((B, N, Q, T), 0.5),
        ((B, Q, D), 0.25),
        ((B, Q, D), 0.25),
    ]
    assert len(seeds) == len(calls)


def seeds_of(num_rows):
    return DropoutKey(jax.random.key(0), row_indices(num_rows)).seeds(3)


def assert_dropped(found, whole, rate):
    """Asserts that a fraction `rate` of `found` is 0 and the rest is `whole` scaled."""
    found, whole = np.asarray(found), np.asarray(whole)
    is_dropped = found == 0
    assert np.all(whole != 0)
    error = np.sqrt(rate * (1 - rate) / whole.size)
    assert abs(is_dropped.mean() - rate) < 5 * error
    np.testing.assert_allclose(
        found[~is_dropped], whole[~is_dropped] / (1 - rate), rtol=1e-5, atol=1e-6
    )


def test_embedding_dropout_follows_layer_norm():
    config = with_dropout(hidden=0.25)
    embeddings = with_random_vectors(build(config)).bert.embeddings
    batch = {name: jnp.asarray(rows) for name, rows in make_batch(config).items()}
    whole = embeddings(batch, None, F32)
    seed = seeds_of(len(batch["input_ids"]))[0]
    assert_dropped(embeddings(batch, seed, F32), whole, 0.25)


def test_attention_dropout_applies_to_the_probabilities():
    """Sets values to one-hot vectors by token, so that the output is the probabilities.

    Each probability is in the output twice. Both are dropped together, which shows that
    nothing after the probabilities is dropped.
    """
    config = with_dropout(hidden=0.5, attention=0.25)
    layer = with_random_vectors(build(config)).bert.layers[0].attention
    B, T, N, D = 32, 4, 4, 32
    x_TD = np.random.default_rng(0).normal(size=(T, D)).astype(np.float32)
    one_hot_TD = np.tile(np.eye(T, dtype=np.float32), (1, 2 * N))
    layer.value.kernel[...] = jnp.asarray(np.linalg.pinv(x_TD) @ one_hot_TD)
    layer.output.kernel[...] = jnp.eye(D)
    for linear in (layer.value, layer.output):
        linear.bias[...] = jnp.zeros(D)
    x_BTD = jnp.tile(x_TD, (B, 1, 1))
    ids_BT = jnp.ones((B, T), jnp.int32)

    def probabilities(seed):
        x_BTN2T = layer(x_BTD, x_BTD, (ids_BT, ids_BT), seed).reshape(B, T, N, 2, T)
        np.testing.assert_allclose(x_BTN2T[..., 0, :], x_BTN2T[..., 1, :], atol=1e-6)
        # Dropped values are not 0 but the rounding error of the pseudo-inverse.
        return np.where(np.abs(x_BTN2T) < 1e-6, 0, x_BTN2T)[..., 0, :]

    whole = probabilities(None)
    np.testing.assert_allclose(whole.sum(axis=-1), np.ones((B, T, N)), rtol=1e-5)
    assert_dropped(probabilities(seeds_of(B)[0]), whole, 0.25)


@pytest.mark.parametrize(
    "zeroed",
    [lambda layer: layer.output, lambda layer: layer.attention.output],
    ids=["attention", "feed_forward"],
)
def test_hidden_dropout_applies_before_the_residual_sum(zeroed):
    """Removes the norms and one of the two branches, so that the other is the sum."""
    layer = with_random_vectors(build(with_dropout(hidden=0.25))).bert.layers[1]
    layer.attention_norm = layer.output_norm = lambda x: x
    zeroed(layer).kernel[...] *= 0
    zeroed(layer).bias[...] *= 0
    B, T, D = 16, 8, 32
    ones_BTD = jnp.ones((B, T, D))
    x_BTD = jax.random.normal(jax.random.key(1), (B, T, D))
    ids_BT = jnp.ones((B, T), jnp.int32)
    whole = layer(ones_BTD, x_BTD, (ids_BT, ids_BT), [None] * 3) - ones_BTD
    found = layer(ones_BTD, x_BTD, (ids_BT, ids_BT), seeds_of(B)) - ones_BTD
    assert_dropped(found, whole, 0.25)


@pytest.mark.slow
def test_pretraining_heads_have_no_dropout():
    """With dropout on, the logits are a function of the last states."""
    config = with_dropout(0.25, 0.25)
    bert = with_random_vectors(build(config))
    batch = {name: jnp.asarray(rows) for name, rows in make_batch(config).items()}
    names = ("masked_lm_positions", "next_sentence_positions")
    key = key_of(3)
    *_, last_BQD = bert.bert.states(
        batch,
        positions_BQ=jnp.concatenate([batch[name] for name in names], axis=1),
        dropout_key=key,
        dtype=F32,
    )
    masked_lm, next_sentence = bert(batch, dropout_key=key, dtype=F32)
    np.testing.assert_array_equal(masked_lm, bert.masked_lm(last_BQD[:, :-1]))
    pooled_BKD = jnp.tanh(bert.bert.pooler(last_BQD[:, -1:]))
    np.testing.assert_array_equal(next_sentence, bert.next_sentence(pooled_BKD))


def test_gradient_is_determined_by_the_dropout_key():
    config = with_dropout(0.25, 0.25, model__num_hidden_layers=1)
    graphdef, params = nnx.split(build(config))
    batch = {name: jnp.asarray(rows) for name, rows in make_batch(config).items()}

    def loss(params, key):
        sums = losses.loss_sums(
            graphdef, params, batch, True, dropout_key=key, dtype=F32
        )
        return sums["masked_lm_loss"] + sums["next_sentence_loss"]

    gradient = jax.jit(jax.grad(loss))
    found = (jax.tree.leaves(gradient(params, key_of(seed))) for seed in (0, 0, 1))
    for first, again, other in zip(*found, strict=True):
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
