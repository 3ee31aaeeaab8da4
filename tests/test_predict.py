"""The predict command: lines in, one JSON object per line out."""

import json

import pytest

from bert_jax import inference
from tests.commands import error_of, run, run_well
from tests.conftest import slow
from tests.finetuning import tuned
from tests.inference.test_tuned import KIND_INPUTS


@pytest.mark.parametrize(
    "kind", [slow("tagging"), "question_answering", slow("similarity")]
)
def test_each_line_has_the_result_of_the_api(kind, tmp_path):
    tuned.write(tmp_path, kind)
    inputs = KIND_INPUTS[kind]
    lines = [" ||| ".join([x] if isinstance(x, str) else x) for x in inputs]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    flags = {"model": tmp_path, "input": tmp_path / "lines.txt", "num_best": 2}
    if kind == "question_answering":
        flags |= {"max_query_length": 8, "stride": 4}
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    rows = [
        json.loads(x) for x in run_well("bert_jax.predict", *arguments).splitlines()
    ]
    del flags["input"]
    expected = inference.load_tuned(flags.pop("model"), **flags).predict(inputs)
    for row, result, line in zip(rows, expected, lines, strict=True):
        if kind == "similarity":
            assert row == {"text": line, "similarity": round(result["similarity"], 6)}
        elif kind == "tagging":
            assert row == result
        else:
            assert row["question"] == line.split(" |||")[0]
            assert row["answer"] == result["answer"]
            for found, best in zip(row["best"], result["best"], strict=True):
                assert found["text"] == best["text"]
                assert found["probability"] == pytest.approx(best["probability"], 1e-3)


def test_the_command_writes_a_file_or_standard_output(tmp_path):
    """A model tuned on single texts counts lines that look like pairs."""
    tuned.write(tmp_path, "classification")
    (tmp_path / "decisions.json").write_text('{"num_texts": 1}')
    (tmp_path / "lines.txt").write_text("w1 w2 ||| w3\nw3\n")
    arguments = [f"--model={tmp_path}", f"--input={tmp_path / 'lines.txt'}"]
    result = run("bert_jax.predict", *arguments)
    assert result.returncode == 0, result.stderr
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["w1 w2 ||| w3", "w3"]
    assert "; 1 lines with ' ||| ', read as single texts" in result.stderr
    output = tmp_path / "results.jsonl"
    assert not run_well("bert_jax.predict", *arguments, f"--output={output}")
    assert output.read_text() == result.stdout


def test_truncated_words_are_reported(tmp_path):
    tuned.write(tmp_path, "tagging")
    (tmp_path / "lines.txt").write_text("w1 " * 40 + "\nw2\n")
    arguments = [f"--model={tmp_path}", f"--input={tmp_path / 'lines.txt'}"]
    result = run("bert_jax.predict", *arguments)
    assert result.returncode == 0
    assert "; 10 words beyond --max_length, predicted as O" in result.stderr


@pytest.mark.slow
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path):
    tuned.write(tmp_path, "classification")
    (tmp_path / "empty.txt").touch()
    for arguments, message in (
        ([f"--model={tmp_path}"], "--input is missing; give --input=VALUE: file with"),
        ([f"--model={tmp_path}", f"--input={tmp_path / 'empty.txt'}"], "has no lines"),
        ([f"--model={tmp_path}", "--input=x", "--max_length=33"], "32 positions"),
        (
            [f"--model={tmp_path}", f"--input={tmp_path / 'results.jsonl'}"],
            "is the input file; give another file",
        ),
    ):
        output = tmp_path / "results.jsonl"
        arguments = [*arguments, f"--output={output}"]
        assert message in error_of("bert_jax.predict", *arguments)
        assert not list(tmp_path.glob("results*"))
