"""Sets are read once, and what training reads of them has a digest."""

import pytest

from bert_jax.config import ConfigError
from bert_jax.tasks import config as tasks_config
from bert_jax.tasks import datasets
from tests.models import TOKENIZER
from tests.tasks import labelled
from tests.tasks.test_config import change


def test_every_set_of_a_config(tmp_path):
    setup = labelled.make_setup(tmp_path)
    found = setup.datasets
    assert found.names == ("against", "for")
    assert len(found.train.features) == 64 and not found.test
    assert [len(split.features) for split in found.dev] == [30]


@pytest.mark.parametrize(
    "old, new",
    [("for", "against"), ("w31", "w32"), ("against\n", "against\nw1\tfor\n")],
)
def test_the_digest_is_that_of_what_training_reads(old, new, tmp_path):
    setup = labelled.make_setup(tmp_path)
    assert datasets.read(setup.config, TOKENIZER).sha256() == setup.sha256
    path = tmp_path / "dev.tsv"
    path.write_text(path.read_text().replace("w1", "w2"))
    found = datasets.read(setup.config, TOKENIZER).sha256()
    assert found["train"] == setup.sha256["train"]
    assert found["others"] != setup.sha256["others"]
    path = tmp_path / "train.tsv"
    head, _, rest = path.read_text().partition("\n")
    assert old in rest
    path.write_text(f"{head}\n{rest.replace(old, new, 1)}")
    found = datasets.read(setup.config, TOKENIZER).sha256()
    assert found["train"] != setup.sha256["train"]


@pytest.mark.parametrize(
    "name, text, kind",
    [
        ("wnut17", "a\nb\n\nc\n", "conll"),
        ("squad2", '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1",'
         ' "question": "c", "answers": []}]}]}]}', "squad"),
    ],
)  # fmt: skip
def test_a_set_without_labels_is_told(name, text, kind, tmp_path):
    (tmp_path / "data").write_text(text)
    spec = f"{kind}:{tmp_path / 'data'}"
    config = tasks_config.from_config_dict(
        change(name, data__train=spec, data__dev=(spec,), data__test=())
    )
    with pytest.raises(ConfigError, match="data"):
        datasets.read(config, TOKENIZER)


def test_a_set_without_examples_is_told(tmp_path):
    setup = labelled.make_setup(tmp_path)
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(ConfigError, match="dev.tsv"):
        datasets.read(setup.config, TOKENIZER)
