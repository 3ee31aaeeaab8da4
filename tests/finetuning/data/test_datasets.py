"""Data sets are read and converted, and their content has digests."""

import dataclasses
import json
import re

import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import setup as setup_lib
from bert_jax.finetuning.data import datasets
from tests.finetuning import labelled
from tests.finetuning.test_config import change
from tests.models import TOKENIZER


@pytest.mark.parametrize(
    "old, new",
    [("for", "against"), ("w31", "w32"), ("against\n", "against\nw1\tfor\n")],
)
def test_the_digest_covers_the_content_that_training_reads(old, new, tmp_path):
    setup = labelled.make_setup(tmp_path)
    assert datasets.read(setup.config, TOKENIZER).sha256() == setup.sha256
    path = tmp_path / "dev.tsv"
    path.write_text(path.read_text().replace("w1", "w2"))
    found = datasets.read(setup.config, TOKENIZER).sha256()
    assert found["train"] == setup.sha256["train"]
    assert found["dev"] != setup.sha256["dev"]
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
def test_a_set_without_labels_is_an_error(name, text, kind, tmp_path):
    (tmp_path / "data").write_text(text)
    spec = f"{kind}:{tmp_path / 'data'}"
    config = tasks_config.from_config_dict(
        change(name, data__train=spec, data__dev=(spec,), data__test=())
    )
    with pytest.raises(ConfigError, match="data"):
        datasets.read(config, TOKENIZER)


def test_a_set_without_examples_is_an_error(tmp_path):
    setup = labelled.make_setup(tmp_path)
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(ConfigError, match="dev.tsv"):
        datasets.read(setup.config, TOKENIZER)


def test_a_set_whose_answers_are_not_found_is_an_error(tmp_path):
    setup = labelled.make_setup(tmp_path, kind="question_answering")
    path = tmp_path / "train.txt"
    path.write_text(re.sub(r'"text": "[^"]*"', '"text": "tunnel"', path.read_text()))
    with pytest.raises(
        ConfigError, match=r"train.txt has no examples; none of its \d+"
    ):
        datasets.read(setup.config, TOKENIZER)


def test_a_set_without_any_label_is_an_error(tmp_path):
    setup = labelled.make_setup(tmp_path)
    path = tmp_path / "dev.tsv"
    path.write_text("sentence\tlabel\nw1\t-1\nw2\t-1\n")
    with pytest.raises(ConfigError, match="none of its 2 examples has a label"):
        datasets.read(setup.config, TOKENIZER)


def test_dropped_lines_are_counted_and_an_error_in_a_test_set(tmp_path):
    setup = labelled.make_setup(tmp_path)
    spec = labelled.write_table(tmp_path / "train.tsv", 200, 0)
    path = tmp_path / "train.tsv"
    path.write_text(path.read_text() + "one column\n")
    data = dataclasses.replace(setup.config.data, train=spec)
    config = dataclasses.replace(setup.config, data=data)
    found = datasets.read(config, TOKENIZER)
    assert len(found.train.features) == 200
    assert setup_lib.losses(found) == [
        f"{spec}: 1 lines skipped, wrong number of columns"
    ]
    data = dataclasses.replace(data, test=(spec,))
    with pytest.raises(ConfigError, match="train.tsv: line 202 has a different num"):
        datasets.read(dataclasses.replace(config, data=data), TOKENIZER)


def test_a_test_set_may_have_no_answer_if_the_training_set_has_some(tmp_path):
    def write(name, **more):
        entry = {"id": "1", "question": "w1", **more}
        data = [{"paragraphs": [{"context": "w2 w3", "qas": [entry]}]}]
        (tmp_path / name).write_text(json.dumps({"data": data}))
        return f"squad:{tmp_path / name}"

    answers = [{"text": "w2", "answer_start": 0}]
    unlabelled = write("test.json")
    for is_impossible in (True, False):
        more = {"is_impossible": True} if is_impossible else {"answers": answers}
        spec = write("train.json", **more)
        sets = {"data__train": spec, "data__dev": (spec,), "data__test": (unlabelled,)}
        config = tasks_config.from_config_dict(change("squad2", **sets))
        (test,) = datasets.read(config, TOKENIZER).test
        assert test.examples.has_impossible == is_impossible


def test_a_test_set_may_have_tags_that_training_has_not(tmp_path):
    setup = labelled.make_setup(tmp_path, kind="tagging")
    (tmp_path / "test.conll").write_text("w1 O\nw2 B-other\n")
    test = f"conll:{tmp_path / 'test.conll'}"
    data = dataclasses.replace(setup.config.data, test=(test,))
    config = dataclasses.replace(setup.config, data=data)
    (split,) = datasets.read(config, TOKENIZER).test
    assert split.examples.tags == [["O", "B-other"]]  # written beside the predictions


def test_duplicate_question_ids_in_a_dev_set_are_an_error(tmp_path):
    setup = labelled.make_setup(tmp_path, kind="question_answering")
    path = tmp_path / "dev.txt"
    path.write_text(path.read_text().replace('"id": "7"', '"id": "8"'))
    with pytest.raises(ConfigError, match="has 2 questions with the id '8'"):
        datasets.read(setup.config, TOKENIZER)
