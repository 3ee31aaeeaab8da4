"""The shared state of a sweep: model config, number of steps, predictions, metrics."""

import jax
import pytest

from tests.finetuning import labelled


def test_the_model_has_the_encoders_sizes_and_the_configs_dropout(tmp_path):
    setup = labelled.make_setup(
        tmp_path, dropout__hidden_prob=0.25, dropout__attention_prob=0.5
    )
    model, encoder = setup.model, setup.encoder.config
    assert model.hidden_size == encoder.hidden_size
    assert (model.hidden_dropout_prob, model.attention_probs_dropout_prob) == (
        0.25,
        0.5,
    )
    assert setup.head.labels == setup.datasets.names


def test_num_steps_counts_whole_batches_over_all_epochs(tmp_path):
    setup = labelled.make_setup(
        tmp_path, recipe__num_epochs=3, recipe__global_batch_size=8
    )
    assert setup.num_steps == len(setup.datasets.train.features) * 3 // 8


def test_any_parameters_are_evaluated_on_any_set(tmp_path):
    setup = labelled.make_setup(tmp_path)
    _, params = setup.build(jax.random.key(0))
    for split in (setup.datasets.train, setup.datasets.dev[0]):
        right = setup.predict(params, split) == split.examples.labels
        found = setup.evaluate(params, split)
        assert 0 < right.mean() < 1  # otherwise the test could not fail
        assert found["accuracy"] == pytest.approx(right.mean())
