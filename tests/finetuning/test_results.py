"""Results of runs are stored, read back and ranked."""

import json
import math
import pathlib

import pytest

from bert_jax.errors import CorruptError
from bert_jax.finetuning import results
from bert_jax.finetuning.results import Result


def make(learning_rate, seed):
    history = ({"step": 5, "f1": 0.1}, {"step": 10, "f1": 0.3})
    return Result(learning_rate, seed, "", 10, {"f1": 0.3}, history)


def test_results_of_a_sweep_are_read_by_learning_rate_and_seed(tmp_path):
    expected = [make(3e-3, 0), make(3e-3, 1), make(1e-3, 0)]
    for result in reversed(expected):
        directory = results.directory_of(
            str(tmp_path), result.learning_rate, result.seed
        )
        assert results.read(directory) is None
        pathlib.Path(directory).mkdir(parents=True)
        results.write(directory, result)
    (tmp_path / "runs" / "lr0.001_seed1").mkdir()  # not complete
    assert results.read_all(results.runs_directory(str(tmp_path))) == expected


@pytest.mark.parametrize("content", [{"seed": 0}, {"history": []}, 0, []])
def test_a_corrupt_result_is_an_error(tmp_path, content):
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(CorruptError, match="result.json is .*; remove .* to repeat"):
        results.read(str(tmp_path))


@pytest.mark.parametrize("missing", [math.nan, None])
def test_the_first_highest_metric_is_the_best_and_nan_ranks_last(missing):
    history = [
        {"step": step, "f1": f1} for step, f1 in enumerate([missing, -1.0, 0.5, 0.5])
    ]
    assert results.best(history, "f1")["step"] == 2
    assert results.best([], "f1") == {}
    assert results.worth({"f1": missing}, "f1") == -math.inf
