"""Tests of bert_jax.finetuning.run."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.errors import Interrupted
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import results
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning.setup import Setup
from bert_jax.model import parameters
from tests.conftest import slow
from tests.finetuning import labelled
from tests.finetuning.test_config import change
from tests.runs import assert_same_metrics, lines


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The directory and the result of an uninterrupted run of 24 steps."""
    directory = tmp_path_factory.mktemp("straight")
    setup = labelled.make_setup(directory)
    return directory, tuning.tune(setup, 3e-3, 0, str(directory / "run"))


def weights_of(setup, result, workdir):
    return parameters.by_name(tuning.best_params(setup, result, str(workdir)))


def test_a_run_learns_and_logs_its_metrics(straight):
    directory, result = straight
    assert [line["step"] for line in result.history] == [8, 16, 24]
    assert result.metrics["accuracy"] >= 0.8 and not result.diverged
    assert result.metrics["accuracy"] == max(x["accuracy"] for x in result.history)
    logged = lines(directory / "run")
    assert [x["step"] for x in logged if "loss" in x] == [5, 8, 10, 15, 16, 20, 24]
    assert not (directory / "run" / "checkpoints").exists()
    assert results.read(str(directory / "run")) == result


@pytest.mark.parametrize("stop", [8, *(slow(n) for n in (1, 11, 24))])
def test_an_interrupted_run_resumes_bit_identically(
    stop, straight, tmp_path, monkeypatch
):
    """It may stop at a step whose evaluation is due but not done."""
    directory, expected = straight
    setup = labelled.make_setup(tmp_path)
    calls = []

    def interrupted():
        calls.append(None)
        return len(calls) == stop

    monkeypatch.setattr(tuning.preemption, "interrupted", interrupted)
    run = str(tmp_path / "run")
    message = "is complete" if stop == 24 else f"step {stop} is saved"
    with pytest.raises(Interrupted, match=message):
        tuning.tune(setup, 3e-3, 0, run)
    result = tuning.tune(setup, 3e-3, 0, run)
    assert result == expected
    assert_same_metrics(tmp_path / "run", directory / "run")
    found = weights_of(setup, result, run)
    for name, array in weights_of(setup, expected, directory / "run").items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.slow
def test_a_run_killed_before_it_kept_the_best_keeps_it_later(straight, tmp_path):
    """The checkpoint of step 8 is saved, and the best parameters are not."""
    directory, expected = straight
    setup = labelled.make_setup(tmp_path)
    run = str(tmp_path / "run")

    class Killed(Exception):
        pass

    def kill(*_):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning.Checkpoints, "save", _calling_at_the_second_save(kill))
        with pytest.raises(Killed):
            tuning.tune(setup, 3e-3, 0, run)
    assert tuning.tune(setup, 3e-3, 0, run) == expected
    assert weights_of(setup, expected, run).keys()


def _calling_at_the_second_save(kill):
    save, count = tuning.Checkpoints.save, []

    def counted(self, *arguments):
        count.append(None)
        return kill() if len(count) == 2 else save(self, *arguments)

    return counted


@pytest.mark.slow
def test_a_tracked_run_has_the_curves(straight, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read by the import
    pytest.importorskip("trackio", reason="requirements-trackers.txt is not installed")
    from trackio.sqlite_storage import SQLiteStorage

    setup = labelled.make_setup(tmp_path, trackers=("trackio",))
    workdir = tmp_path / "run"
    assert tuning.tune(setup, 3e-3, 0, str(workdir)) == straight[1]
    (name,) = SQLiteStorage.get_runs("bert_jax")
    rows = SQLiteStorage.get_logs("bert_jax", name)
    for name in ("loss", "dev_accuracy"):
        found, expected = (
            [(row["step"], row[name]) for row in some if name in row]
            for some in (rows, lines(workdir))
        )
        assert len(expected) >= 3
        assert sorted(found) == expected


@pytest.mark.slow
def test_a_run_without_improvement_stops_early(tmp_path, monkeypatch):
    setup = labelled.make_setup(tmp_path, early_stop_evals=2, eval_every_steps=4)
    scores = iter([0.5, 0.7, 0.6, 0.7])
    monkeypatch.setattr(Setup, "evaluate", lambda *_: {"accuracy": next(scores)})
    result = tuning.tune(setup, 3e-3, 0, str(tmp_path / "run"))
    assert [line["step"] for line in result.history] == [4, 8, 12, 16]
    assert result.best_step == 8


def test_a_metric_of_an_earlier_call_may_be_nan(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 8, "dev_pearson": null}\n')
    assert np.isnan(tuning._read_history(str(tmp_path))[0]["pearson"])


@pytest.mark.slow
def test_a_diverged_run_ends_and_is_reported(tmp_path, capsys):
    setup = labelled.make_setup(tmp_path, max_bad_steps=3)
    bad = setup.encoder.arrays["bert.embeddings.word"].copy()
    bad[5:] = np.inf
    arrays = setup.encoder.arrays | {"bert.embeddings.word": bad}
    encoder = dataclasses.replace(setup.encoder, arrays=arrays)
    setup = dataclasses.replace(setup, encoder=encoder)
    result = tuning.tune(setup, 3e-3, 0, str(tmp_path / "run"))
    assert "not finite in 5 steps in a row" in result.diverged
    assert result.best_step == 0 and not result.history
    assert "update skipped" in capsys.readouterr().out


@pytest.mark.slow
def test_seeds_differ_and_from_scratch_is_random(tmp_path):
    setup = labelled.make_setup(tmp_path, recipe__num_epochs=1)
    start = dataclasses.replace(setup.start, is_from_scratch=True)
    scratch = dataclasses.replace(setup, start=start)
    runs = [
        (setup, tuning.tune(setup, 1e-9, 0, str(tmp_path / "a")), tmp_path / "a"),
        (setup, tuning.tune(setup, 1e-9, 1, str(tmp_path / "b")), tmp_path / "b"),
        (scratch, tuning.tune(scratch, 1e-9, 0, str(tmp_path / "c")), tmp_path / "c"),
    ]
    a, b, c = (weights_of(*run) for run in runs)
    name = "bert.layers.1.output.kernel"
    np.testing.assert_allclose(a[name], setup.encoder.arrays[name], atol=1e-6)
    assert np.abs(a[name] - c[name]).max() > 0.01
    assert np.abs(a["classifier.kernel"] - b["classifier.kernel"]).max() > 0.01


@pytest.mark.parametrize(
    "every, epochs, num_steps, expected",
    [
        (0, 3, 24, {8, 16, 24}),
        (0, 3, 25, {8, 16, 25}),
        (10, 3, 25, {10, 20, 25}),
        (0, 3, 2, {1, 2}),
    ],
)
def test_steps_of_the_dev_evaluations(every, epochs, num_steps, expected):
    changes = {"eval_every_steps": every, "recipe__num_epochs": epochs}
    config = tasks_config.from_config_dict(change("sst2", **changes))
    assert tuning.dev_steps(config, num_steps) == expected


@pytest.mark.slow
def test_sharded_equals_unsharded(straight, tmp_path):
    directory, expected = straight
    setup = labelled.make_setup(tmp_path, mesh=(2, 2, 2))
    result = tuning.tune(setup, 3e-3, 0, str(tmp_path / "run"))
    params = tuning.best_params(setup, result, str(tmp_path / "run"))
    specs = {x.sharding.spec for x in jax.tree.leaves(params)}
    assert jax.P("tensor", "fsdp") in specs
    found, straight_lines = lines(tmp_path / "run"), lines(directory / "run")
    for a, b in zip(found, straight_lines, strict=True):
        assert a["step"] == b["step"]
        if "loss" in b:
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-2, abs=1e-3)
    assert result.best_step == expected.best_step
