"""The inputs of a sweep: data sets with digests, and predictions of any parameters."""

import dataclasses
import json
import re

import jax
import pytest

from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import setup as setup_lib
from bert_jax.finetuning import sweep
from tests.finetuning import labelled
from tests.finetuning.test_config import change
from tests.models import TOKENIZER


def test_the_model_has_the_encoders_sizes_and_the_configs_dropout(tmp_path):
    setup = labelled.make_setup(
        tmp_path, dropout__hidden_prob=0.25, dropout__attention_prob=0.5
    )
    model = setup.model
    assert model.hidden_size == setup.encoder.config.hidden_size
    assert model.hidden_dropout_prob == 0.25
    assert model.attention_probs_dropout_prob == 0.5
    assert setup.num_steps == len(setup.datasets.train.features) * 3 // 8 == 24
    assert labelled.make_setup(tmp_path, recipe__global_batch_size=512).num_steps == 1


def test_any_parameters_are_evaluated_on_any_set(tmp_path):
    setup = labelled.make_setup(tmp_path)
    _, params = setup.build(jax.random.key(0))
    for split in (setup.datasets.train, setup.datasets.dev[0]):
        right = setup.predict(params, split) == split.examples.labels
        found = setup.evaluate(params, split)
        assert 0 < right.mean() < 1  # otherwise the test could not fail
        assert found["accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(
    "old, new",
    [("for", "against"), ("w31", "w32"), ("against\n", "against\nw1\tfor\n")],
)
def test_the_digest_covers_the_content_that_training_reads(old, new, tmp_path):
    setup = labelled.make_setup(tmp_path)
    assert setup_lib.read_datasets(setup.config, TOKENIZER).sha256() == setup.sha256
    path = tmp_path / "dev.txt"
    path.write_text(path.read_text().replace("w1", "w2"))
    found = setup_lib.read_datasets(setup.config, TOKENIZER).sha256()
    assert found["train"] == setup.sha256["train"]
    assert found["dev"] != setup.sha256["dev"]
    path = tmp_path / "train.txt"
    head, _, rest = path.read_text().partition("\n")
    assert old in rest
    path.write_text(f"{head}\n{rest.replace(old, new, 1)}")
    found = setup_lib.read_datasets(setup.config, TOKENIZER).sha256()
    assert found["train"] != setup.sha256["train"]


@pytest.mark.parametrize(
    ("kind", "name", "pattern", "new", "message"),
    [
        (
            "tagging",
            "train.txt",
            r"\t\S+",
            "",
            "^config.data.train: .* has no labels, wh",
        ),
        ("classification", "dev.txt", "(?s).+", "", "data.dev: .*dev.txt has no ro"),
        ("classification", "dev.txt", r"\t\w+\n", "\t-1\n", "examples has a label"),
        ("multiple_choice", "dev.txt", r"\t\w+\n", "\t-1\n", "examples has a label"),
        (
            "question_answering",
            "train.txt",
            r'"text": "[^"]*"',
            '"text": "tunnel"',
            r"train.txt has no examples; none of its \d+ questions has an answer",
        ),
        (
            "question_answering",
            "dev.txt",
            '"id": "7"',
            '"id": "8"',
            "has 2 questions with the id '8'",
        ),
    ],
)
def test_a_set_that_cannot_be_used_is_an_error(
    kind, name, pattern, new, message, tmp_path
):
    setup = labelled.make_setup(tmp_path, kind=kind)
    head, _, rest = (tmp_path / name).read_text().partition("label\n")
    changed = re.sub(pattern, new, rest or head)
    (tmp_path / name).write_text(f"{head}label\n{changed}" if rest else changed)
    with pytest.raises(ConfigError, match=message):
        setup_lib.read_datasets(setup.config, TOKENIZER)


def test_dropped_lines_are_counted_and_an_error_in_a_test_set(tmp_path):
    setup = labelled.make_setup(tmp_path)
    spec = labelled.write_table(tmp_path / "train.tsv", 200, 0)
    path = tmp_path / "train.tsv"
    path.write_text(path.read_text() + "one column\n")
    data = dataclasses.replace(setup.config.data, train=spec)
    config = dataclasses.replace(setup.config, data=data)
    found = setup_lib.read_datasets(config, TOKENIZER)
    assert len(found.train.features) == 200
    assert sweep.losses(found) == [f"{spec}: 1 lines skipped, wrong number of columns"]
    data = dataclasses.replace(data, test=(spec,))
    with pytest.raises(ConfigError, match="train.tsv: line 202 has a different num"):
        setup_lib.read_datasets(dataclasses.replace(config, data=data), TOKENIZER)


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
        (test,) = setup_lib.read_datasets(config, TOKENIZER).test
        assert test.examples.has_impossible == is_impossible


def test_a_test_set_may_have_tags_that_training_has_not(tmp_path):
    setup = labelled.make_setup(tmp_path, kind="tagging")
    (tmp_path / "test.conll").write_text("w1 O\nw2 B-other\n")
    test = f"conll:{tmp_path / 'test.conll'}"
    data = dataclasses.replace(setup.config.data, test=(test,))
    config = dataclasses.replace(setup.config, data=data)
    (split,) = setup_lib.read_datasets(config, TOKENIZER).test
    assert split.examples.tags == [["O", "B-other"]]  # written beside the predictions
