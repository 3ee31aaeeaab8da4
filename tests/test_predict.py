"""Lines come back with what a tuned model says, in the order and form of its kind."""

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.special

from bert_jax.errors import ConfigError
from bert_jax.finetuning import task
from bert_jax.finetuning.config import (
    ChoiceTask,
    QuestionTask,
    SimilarityTask,
    TaggingTask,
    TextTask,
)
from bert_jax.finetuning.predictor import Predictor
from bert_jax.inference import answers, line_input
from bert_jax.interop import huggingface_write
from bert_jax.loading import model as model_lib
from tests.commands import ENV, ROOT, run, run_well
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER, change_json

LINES = {
    "classification": [("w1 w2 w3", "w4"), ("w5", "w6")],
    "regression": [("w1 w2",), ("w3 w4",)],
    "multi_label": [("w1 w2",), ("w3",)],
    "tagging": [("w1 w2 nowhere",), ("w3",), ("",)],
    "question_answering": [("w1 w2", "w3 w4 w5"), ("w1", "w7 w8")],
    "multiple_choice": [("w1", "w2 w3", "w4"), ("w5", "w6", "w7")],
    "similarity": [("w1 w2 w3", "w4"), ("w5", "w5")],
}


def write(directory, kind):
    config, _, params = tuned.build(kind)
    huggingface_write.write_tuned(
        directory, params, config, tuned.HEADS[kind], TOKENIZER, 32
    )


def task_of(head, null_threshold=0.0):
    if head.kind == "question_answering":
        return QuestionTask(
            kind=head.kind,
            stride=4,
            max_query_length=8,
            max_answer_length=3,
            num_best=2,
            null_threshold=null_threshold,
            answer_units="words",
        )
    if head.kind == "tagging":
        return TaggingTask(kind=head.kind, words="", tags="", labels=head.labels)
    if head.kind == "similarity":
        return SimilarityTask(kind=head.kind, text=("", ""), label="", max_label=1.0)
    if head.kind == "multiple_choice":
        return ChoiceTask(kind=head.kind, text=(), choices=(), label="")
    rest = {"text": (), "label": "", "glue": (), "index": "", "threshold": 0.5}
    return TextTask(kind=head.kind, labels=head.labels, **rest)


def tell(
    directory, kind, lines, batch_size=2, has_impossible=False, null_threshold=0.0
):
    mesh = use_mesh(1, 1, 1)
    model = model_lib.read_tuned(str(directory))
    predictor = Predictor(
        model.graphdef,
        length=32,
        batch_size=batch_size,
        dtype=np.dtype("f4"),
        mesh=mesh,
    )
    asked = task_of(tuned.HEADS[kind], null_threshold)
    tell = answers.LinePredictor(
        model, asked, predictor, length=32, has_impossible=has_impossible
    )
    return tell(lines)


@pytest.mark.parametrize("kind", LINES)
def test_each_kind_says_what_its_logits_say(kind, tmp_path):
    write(tmp_path, kind)
    lines = LINES[kind]
    rows = tell(tmp_path, kind, lines)
    # Each alone, in a batch of one: the same.
    alone = [tell(tmp_path, kind, [line], batch_size=1)[0] for line in lines]
    assert len(rows) == len(lines)
    for row, other, line in zip(rows, alone, lines, strict=True):
        assert row.keys() == other.keys()
        if "probabilities" in row:
            assert row["text"] == " ||| ".join(line)
            for name, share in row["probabilities"].items():
                assert other["probabilities"][name] == pytest.approx(share, abs=1e-5)
    first = rows[0]
    if kind == "classification":
        assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        best = max(first["probabilities"], key=first["probabilities"].get)
        assert first["label"] == best and set(first["probabilities"]) == {*tuned.NAMES}
    elif kind == "multi_label":
        expected = [n for n, p in first["probabilities"].items() if p > 0.5]
        assert first["labels"] == expected
    elif kind == "tagging":
        assert first["words"] == ["w1", "w2", "nowhere"] and len(first["tags"]) == 3
        assert rows[2] == {"words": [], "tags": []}
    elif kind == "question_answering":
        assert first["answer"] in ("w3", "w4", "w5", "w3 w4", "w4 w5", "w3 w4 w5")
        assert first["best"][0]["text"] == first["answer"] and len(first["best"]) == 2
    elif kind == "multiple_choice":
        assert first["choice"] in (0, 1)
        assert set(first["probabilities"]) == {"0", "1"}
    elif kind == "similarity":
        assert -1 <= first["similarity"] < 0.999
        assert rows[1]["similarity"] == pytest.approx(1, abs=1e-5)  # of a text and it
    else:
        assert isinstance(first["score"], float)


def test_logits_are_the_models(tmp_path):
    """Rows of several lengths, of which most do not fill their batch."""
    write(tmp_path, "classification")
    lines = [(" ".join(["w1"] * n),) for n in (1, 20, 3, 29, 5)]
    rows = tell(tmp_path, "classification", lines, batch_size=2)
    for line, row in zip(lines, rows, strict=True):
        (alone,) = tell(tmp_path, "classification", [line], batch_size=1)
        found = scipy.special.logit([*row["probabilities"].values()])
        expected = scipy.special.logit([*alone["probabilities"].values()])
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_lines_that_come_later_have_the_parts_of_the_first(tmp_path):
    write(tmp_path, "classification")
    mesh = use_mesh(1, 1, 1)
    model = model_lib.read_tuned(str(tmp_path))
    dtype = np.dtype("f4")
    predictor = Predictor(
        model.graphdef, length=32, batch_size=2, dtype=dtype, mesh=mesh
    )
    asked = task_of(tuned.HEADS["classification"])
    say = answers.LinePredictor(
        model, asked, predictor, length=32, has_impossible=False
    )
    assert len(say([("w1", "w2")])) == 1
    with pytest.raises(ConfigError, match="as many parts as the first"):
        say([("w1",)])


@pytest.mark.parametrize("threshold, is_empty", [(-1e9, True), (1e9, False)])
def test_a_question_may_have_no_answer(threshold, is_empty, tmp_path):
    write(tmp_path, "question_answering")
    rows = tell(
        tmp_path,
        "question_answering",
        LINES["question_answering"],
        has_impossible=True,
        null_threshold=threshold,
    )
    assert [row["answer"] == "" for row in rows] == [is_empty] * 2


def test_the_command_writes_a_file_or_standard_output(tmp_path):
    write(tmp_path, "classification")
    (tmp_path / "lines.txt").write_text("w1 w2\nw3\n")
    arguments = [f"--model={tmp_path}", f"--input={tmp_path / 'lines.txt'}"]
    stdout = run_well("bert_jax.predict", *arguments)
    output = tmp_path / "said.jsonl"
    assert not run_well("bert_jax.predict", *arguments, f"--output={output}")
    assert output.read_text() == stdout
    assert [json.loads(line)["text"] for line in stdout.splitlines()] == ["w1 w2", "w3"]


def test_a_model_tuned_on_pairs_refuses_a_single_text(tmp_path):
    write(tmp_path, "classification")
    (tmp_path / "decisions.json").write_text('{"num_texts": 2}')
    (tmp_path / "lines.txt").write_text("w1 w2 ||| w3\nw3\n")
    arguments = [f"--model={tmp_path}", f"--input={tmp_path / 'lines.txt'}"]
    result = run("bert_jax.predict", *arguments)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "--input has the line 'w3' with 1 part; each line must be text ||| text" in (
        result.stderr
    )


def test_a_model_tuned_on_single_texts_counts_lines_that_look_like_pairs(tmp_path):
    write(tmp_path, "classification")
    (tmp_path / "decisions.json").write_text('{"num_texts": 1}')
    (tmp_path / "lines.txt").write_text("w1 w2 ||| w3\nw3\n")
    arguments = [f"--model={tmp_path}", f"--input={tmp_path / 'lines.txt'}"]
    result = run("bert_jax.predict", *arguments)
    assert result.returncode == 0, result.stderr
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["w1 w2 ||| w3", "w3"]
    assert "; 1 lines with ' ||| ', read as single texts" in result.stderr


@pytest.mark.slow
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path):
    write(tmp_path, "classification")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "asked").mkdir()
    write(tmp_path / "asked", "question_answering")
    asked = [f"--model={tmp_path / 'asked'}", f"--input={tmp_path / 'empty.txt'}"]
    for arguments, message in (
        ([], "--model is missing"),
        ([f"--model={tmp_path}"], "--input is missing; give --input=VALUE: file, an"),
        ([f"--model={tmp_path}", "--input=/nowhere"], "/nowhere"),
        ([f"--model={tmp_path}", f"--input={tmp_path / 'empty.txt'}"], "has no lines"),
        ([f"--model={tmp_path}", "--input=x", "--max_length=33"], "32 positions"),
        ([f"--model={tmp_path}", f"--input={tmp_path / 'said.jsonl'}"], "is --input"),
        ([*asked, "--max_query_length=29"], "=29 leaves no room in rows of 32 tokens"),
        (
            [*asked, "--max_query_length=9", "--stride=21"],
            "--stride=21 leaves gaps between windows of 20 tokens",
        ),
    ):
        output = tmp_path / "said.jsonl"
        result = run("bert_jax.predict", *arguments, f"--output={output}")
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert message in result.stderr
        assert not list(tmp_path.glob("said*"))


def test_classes_of_words_that_are_no_names_stay_as_they_are(tmp_path):
    write(tmp_path, "tagging")
    change_json(tmp_path, "config.json", id2label={"0": "NOUN", "1": "DET", "2": "O"})
    head = model_lib.read_tuned(str(tmp_path)).head
    asked = task_of(head)
    logits = np.eye(3, dtype=np.float32)[None, [2, 0, 1, 0]]
    found = line_input.examples_of(asked, [("w1 w2",)], 1, False)
    features = task.featurize(
        asked, found, head.labels, TOKENIZER, 4, is_training=False
    )
    predicted = task.predict(asked, found, features, logits, head.labels)
    assert predicted == [["NOUN", "DET"]]


def test_what_is_cut_is_told(tmp_path):
    write(tmp_path, "tagging")
    (tmp_path / "lines.txt").write_text("w1 " * 40 + "\nw2\n")
    arguments = [f"--model={tmp_path}", f"--input={tmp_path / 'lines.txt'}"]
    result = run("bert_jax.predict", *arguments)
    assert result.returncode == 0
    assert "; 10 words beyond --max_length, predicted as O" in result.stderr


@pytest.mark.slow
def test_who_reads_no_more_ends_it_without_a_word(tmp_path):
    write(tmp_path, "classification")
    (tmp_path / "lines.txt").write_text("w1 w2\n" * 5000)
    command = [sys.executable, "-m", "bert_jax.predict", f"--model={tmp_path}"]
    command.append(f"--input={tmp_path / 'lines.txt'}")
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 141
    assert b"Traceback" not in process.stderr.read()
