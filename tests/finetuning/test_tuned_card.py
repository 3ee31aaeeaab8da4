"""The model card has the metrics, labels, config and loading instructions."""

import json

import pytest

from bert_jax.finetuning import tuned_card
from bert_jax.finetuning.config import TASKS
from tests.finetuning import labelled


def write(tmp_path, kind, **more):
    setup = labelled.make_setup(tmp_path, kind=kind, **more)
    tuned_card.write(tmp_path, setup, {"tsv:dev.tsv": {"accuracy": 0.87654}})
    return (tmp_path / "README.md").read_text(), setup


def test_the_card_has_metrics_labels_and_config(tmp_path):
    card, setup = write(tmp_path, "classification")
    metadata = card.split("---\n")[1].splitlines()
    assert "library_name: transformers" in metadata
    assert "pipeline_tag: text-classification" in metadata
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "| `tsv:dev.tsv` | accuracy | 0.8765 |" in card
    assert "`against`, `for`" in card and "rows of up to 24 tokens" in card
    block = card.split("```json\n")[1].split("```")[0]
    assert json.loads(block) == json.loads(setup.config.to_json())


@pytest.mark.parametrize(
    ("kind", "has_pairs"),
    [
        ("classification", False),
        ("regression", True),
        ("multiple_choice", True),
        ("similarity", False),
    ],
)
def test_truncation_of_pairs_is_described_if_rows_are_pairs(kind, has_pairs, tmp_path):
    card, _ = write(tmp_path, kind)
    assert ("longest_first" in card) == has_pairs


def test_every_kind_has_a_transformers_class():
    transformers = pytest.importorskip("transformers")
    assert tuned_card.CLASSES.keys() == TASKS.keys()
    for _, name in tuned_card.CLASSES.values():
        assert hasattr(transformers, name)
