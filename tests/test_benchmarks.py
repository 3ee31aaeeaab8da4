"""Benchmarks run and print rows; their numbers are not checked."""

import argparse
import importlib.util
import itertools
import json
import shlex

import numpy as np
import pytest

from benchmarks import rows, time_to_loss, time_to_loss_peer, train_step
from bert_jax.data.batches import pipeline
from tests import probe_data
from tests.commands import ONE_PHASE, run, run_well, small_run, write_text
from tests.conftest import make_config

ROW = {"benchmark", "case", "value", "unit", "peer", "peer_value", "ratio", "spread"}


def test_a_peer_that_scores_zero_has_no_ratio(capsys):
    rows.print_row("a", "case 1", "matthews", [0.1, 0.2], "a peer", [0.0, 0.1])
    row = json.loads(capsys.readouterr().out)
    assert (row["peer_value"], row["ratio"]) == (0.05, None)


@pytest.mark.parametrize("has_pairs", [False, True])
def test_train_step_batch_has_pairs_of_equal_length(has_pairs):
    args = argparse.Namespace(
        size="base",
        batch=3,
        length=16,
        dtype="auto",
        packed=has_pairs,
        layers=1,
        dropout=0.1,
    )
    config = train_step.make_config(args)
    batch = train_step.make_batch(config)
    starts = [0, 8] if has_pairs else [0]
    assert batch["next_sentence_positions"].tolist() == [starts] * 3
    assert not np.isin(batch["masked_lm_positions"], starts).any()  # as in a corpus
    for name, (shape, dtype) in pipeline.batch_shapes(config.phases[0]).items():
        assert (batch[name].shape, batch[name].dtype) == (shape, dtype), name
    assert batch["position_ids"].max() == 16 // len(starts) - 1
    assert (np.unique(batch["sequence_ids"]) == np.arange(len(starts)) + 1).all()


@pytest.mark.slow
def test_gpu_prints_a_row_for_each_batch_and_continues_after_a_failure():
    arguments = ["benchmarks.gpu", "--length=16", "--layers=1", "--repeats=1"]
    done = run(*arguments, "--packed", "--batches=2,-1", "--no_peer")
    row = json.loads(done.stdout)
    assert row.keys() >= ROW and row["value"] > 0 and row["mfu"] is None
    assert row["case"] == "base 2x16 packed float32, 1 layers"
    assert "--batch=-1" in done.stderr and "failed, see above" in done.stderr
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "the kernels are not profiled: this is a cpu",
    )


@pytest.mark.slow
def test_input_pipeline_prints_a_row_for_each_case():
    """Also checks the bound on memory, which holds on any machine."""
    stdout = run_well(
        "benchmarks.input_pipeline",
        *("--seconds=0.2", "--repeats=1", "--megabytes=8", "--shards=20"),
    )
    *rates, first_batch = map(json.loads, stdout.splitlines())
    assert [row["case"] for row in rates] == [
        f"{case}, batch 256"
        for case in (
            *("128", "128 whole words", "512 packed", "512 packed whole words"),
        )
    ]
    for row in rates:
        assert row.keys() >= ROW and row["value"] > 0
        assert row["versions"]["jax"]
        assert row["peak_memory_bytes"] < 2 * 10**9
    has_peer = importlib.util.find_spec("transformers") is not None
    assert (rates[0]["ratio"] is not None) == has_peer
    assert rates[-1]["text_share"] > 0.95
    assert first_batch["unit"] == "s" and first_batch["value"] > 0


@pytest.mark.slow
def test_tokenize_prints_a_row_for_each_text():
    stdout = run_well("benchmarks.tokenize", "--megabytes=0.1", "--repeats=1")
    for row in map(json.loads, stdout.splitlines()):
        assert row.keys() >= ROW and row["ratio"] > 0 and row["megabytes"] > 0
    assert stdout.count("\n") == 2


@pytest.mark.slow
def test_startup_prints_a_row_for_a_cold_and_a_warm_start(trained, tmp_path):
    arguments = shlex.join(small_run(trained)[1:])
    stdout = run_well(
        "benchmarks.startup",
        ONE_PHASE,
        f"--corpus={trained / 'corpus'}",
        f"--arguments={arguments}",
        "--repeats=1",
        JAX_COMPILATION_CACHE_DIR=str(tmp_path),
    )
    assert not list(tmp_path.iterdir())  # the runs used their own cache
    cold, warm = map(json.loads, stdout.splitlines())
    assert cold.keys() >= ROW and warm.keys() >= ROW and warm["ratio"] > 0
    assert warm["cpu_seconds"] < cold["cpu_seconds"]
    assert {"import", "initializing", "data", "first step"} <= cold["stages"].keys()


@pytest.mark.slow
def test_checkpoint_prints_a_row_for_each_cost():
    stdout = run_well(
        *("benchmarks.checkpoint", "--layers=1", "--batch=1"),
        *("--steps=2", "--repeats=1"),
    )
    found = [json.loads(line) for line in stdout.splitlines()]
    assert all(row.keys() >= ROW and row["value"] > 0 for row in found)
    blocked, digests, verify, steps = found
    assert blocked["ratio"] < 1  # most of the save runs concurrently with steps
    assert (digests["unit"], verify["unit"], steps["unit"]) == ("s", "s", "steps/s")


@pytest.mark.slow
def test_blimp_prints_a_row_with_each_term(source, tmp_path):
    probe_data.write_blimp(tmp_path / "data", words=[f"w{i}" for i in range(10)])
    tie = '{"sentence_good": "w1", "sentence_bad": "w1"}\n'
    (tmp_path / "data/ties.jsonl").write_text(tie)
    command = ["benchmarks.blimp", f"--model={source[0]}"]
    stdout = run_well(*command, f"--data={tmp_path / 'data'}", "--limit=4")
    row = json.loads(stdout)
    assert row.keys() >= ROW | {"terms"} and row["case"] == "source, 9 pairs"
    assert 0 < row["value"] <= 100 and (row["peer"], row["peer_value"]) == (
        "chance",
        50,
    )
    assert row["with_ties"] == pytest.approx(row["value"] + 100 / 9, abs=0.01)
    terms = row["terms"]
    assert terms.keys() == {"order", "agreement", "ties"} and terms["ties"] == 0
    mean = 4 * (terms["order"] + terms["agreement"]) / 9
    assert mean == pytest.approx(row["value"], abs=0.1)
    empty = run("benchmarks.blimp", *command[1:], f"--data={tmp_path}")
    assert empty.returncode != 0 and "has no .jsonl files" in empty.stderr


@pytest.mark.slow
def test_tuning_parity_prints_rows_of_both_sides(source, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    directory = tmp_path / "data/glue/SST-2"
    directory.mkdir(parents=True)
    for name in ("train", "dev"):
        lines = [f"w{i % 40} w{1 + i % 2} w{i % 7}\t{i % 2}" for i in range(320)]
        (directory / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]))
    work = tmp_path / "work"
    command = [
        "benchmarks.tuning_parity",
        f"--model={source[0]}",
        f"--data={tmp_path / 'data'}",
        f"--workdir={work}",
        "--tasks=sst2",
        "--length=16",
    ]
    losses, scores = map(json.loads, run_well(*command, "--seeds=0").splitlines())
    assert losses.keys() >= ROW and scores.keys() >= ROW
    assert losses["value"] == max(losses["by_step"]) < 1e-5
    assert len(losses["by_step"]) == 20
    assert scores["value"] > 0 and len(scores["peer_scores"]) == 1


@pytest.mark.slow
def test_time_to_loss_prints_rows_and_its_peer_learns_alike(tmp_path):
    """Without dropout and with one optimizer, both sides take the same steps."""
    pytest.importorskip("torch")
    write_text(tmp_path / "a.txt")
    changes = {
        "tokenizer.vocab_size": 120,
        "model.hidden_size": 32,
        "model.intermediate_size": 64,
        "model.hidden_dropout_prob": 0.0,
        "model.attention_probs_dropout_prob": 0.0,
        "optimizer.name": "adamw",
        "optimizer.warmup_steps": 5,
        "data.validation_fraction": 0.1,
        "eval.num_sequences": 64,
        "phases[0].num_steps": 20,
        "phases[0].global_batch_size": 32,
    }
    stdout = run_well(
        "benchmarks.time_to_loss",
        f"--sources=text:{tmp_path}/*.txt",
        f"--workdir={tmp_path / 'work'}",
        "--variants=torch,faithful",
        "--every=10",
        "--repeats=1",
        "--start_steps=10,10",
        *(f"--config.{key}={value}" for key, value in changes.items()),
    )
    theirs, ours, seconds = map(json.loads, stdout.splitlines())
    assert [row["benchmark"] for row in (ours, seconds)] == [
        "loss_curve",
        "time_to_loss",
    ]
    assert seconds.keys() >= ROW and seconds["value"] > 0 and seconds["ratio"] > 0
    (our_curve,), (their_curve,) = ours["curves"], theirs["curves"]
    assert our_curve["steps"] == their_curve["steps"] == [10, 20]
    for name in time_to_loss.NAMES:
        np.testing.assert_allclose(our_curve[name], their_curve[name], atol=2e-3)
    assert our_curve["masked_lm_loss"][1] < our_curve["masked_lm_loss"][0]


def test_a_peer_can_take_more_steps_than_its_run():
    config = make_config(phase={"num_steps": 5})
    rates = list(itertools.islice(time_to_loss_peer.learning_rates(config), 7))
    assert rates[:2] == rates[5:] and len({*rates}) == 5


CURVE = {"steps": [10, 20, 30], "masked_lm_loss": [6.0, 5.0, 5.5]}


def test_steps_to_a_loss_are_interpolated_to_its_first_crossing():
    steps = {loss: time_to_loss.steps_to(loss, CURVE) for loss in (6.5, 5.25, 5.0)}
    assert steps == {6.5: 10, 5.25: 17.5, 5.0: 20}
