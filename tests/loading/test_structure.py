"""The names and shapes of parameters do not depend on the other heads of a model."""

import pytest

from bert_jax.loading import structure
from tests.conftest import make_config
from tests.finetuning import tuned

MODEL = make_config().model


def test_a_masked_lm_has_the_parameters_that_its_head_reads():
    encoder = structure.shapes(MODEL, 97, None, False)
    found = structure.shapes(MODEL, 97, None, True)
    pooler = {name for name in encoder if name.startswith("bert.pooler.")}
    assert len(pooler) == 2 and not pooler & found.keys()
    head = found.keys() - encoder.keys()
    assert head == {
        "transform.kernel",
        "transform.bias",
        "transform_norm.scale",
        "transform_norm.bias",
        "decoder_bias",
    }
    assert all(found[name] == encoder[name] for name in encoder.keys() - pooler)
    assert found["decoder_bias"] == (97,)


@pytest.mark.parametrize("has_pooler", [False, True])
def test_an_encoder_has_its_pooler_on_request(has_pooler):
    _, params = structure.build(MODEL, 97, None, False, has_pooler=has_pooler)
    names = [name for name, _ in structure.named(params, None, False)]
    assert all(name.startswith("bert.") for name in names)
    assert any(name.startswith("bert.pooler.") for name in names) == has_pooler


def test_parameters_of_a_task_head_have_their_own_names():
    found = structure.shapes(MODEL, 97, tuned.HEADS["classification"], False)
    assert found["classifier.kernel"] == (MODEL.hidden_size, 3)
