"""Benchmarks run and print rows; their numbers are not checked."""

import argparse
import concurrent.futures
import importlib.util
import json
import multiprocessing
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    blimp,
    gpu_profile,
    gpu_sweep,
    rows,
    time_to_loss,
    time_to_loss_keras,
    time_to_loss_torch,
    train_step,
    tuning,
    variants,
)
from bert_jax.configs import base, base_modern
from bert_jax.data.batches import pipeline
from bert_jax.errors import ConfigError
from bert_jax.model import parameters
from bert_jax.training import losses, optimizer, step
from tests import models
from tests.commands import ONE_PHASE, run, run_well, small_run, write_text
from tests.conftest import make_batch, make_config
from tests.probes import tasks

ROW = {"benchmark", "case", "value", "unit", "peer", "peer_value", "ratio", "spread"}


def test_a_peer_that_scores_zero_has_no_ratio(capsys):
    rows.print_row("a", "case 1", "matthews", [0.1, 0.2], "a peer", [0.0, 0.1])
    row = json.loads(capsys.readouterr().out)
    assert (row["peer_value"], row["ratio"]) == (0.05, None)


@pytest.mark.slow
def test_train_step_prints_a_row():
    stdout = run_well(
        "benchmarks.train_step",
        "--batch=2",
        "--length=16",
        "--repeats=2",
        "--peer=none",
    )
    row = json.loads(stdout)
    assert row.keys() >= ROW and row["value"] > 0 and row["mfu"] is None


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


def test_gpu_profile_adds_up_kernels_by_kind():
    found = [
        gpu_profile.Kernel("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_bias_NNT", 30.4),
        gpu_profile.Kernel("void cublasLt::splitKreduce_kernel<32, 16>", 9.4),
        gpu_profile.Kernel("_attention_backward", 8.0),
        gpu_profile.Kernel("_norm_forward", 2.0),
        gpu_profile.Kernel("loop_select_fusion_44", 1.0),
    ]
    assert gpu_profile.by_kind(found) == {
        "products": 40,
        "attention": 8,
        "dropout, sum and norm": 2,
        gpu_profile.OTHER: 1,
    }


def test_gpu_profile_needs_a_gpu():
    done = run("benchmarks.gpu_profile")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() == "gpu_profile needs a GPU; this is a cpu"


@pytest.mark.slow
def test_gpu_sweep_prints_a_row_for_each_set_of_flags_and_batch():
    stdout = run_well(
        "benchmarks.gpu_sweep",
        "--cases=base 16 packed",
        "--batches=2,4",
        "--layers=1",
        "--repeats=1",
        "--no_peer",
    )
    found = [json.loads(line) for line in stdout.splitlines()]
    assert len(found) == 5 and all(row.keys() >= ROW for row in found)
    flags = [row["xla_flags"] for row in found]
    assert flags[:4] == list(gpu_sweep.FLAGS.values()) and flags[4] in flags[:4]
    assert [row["case"].split()[1] for row in found] == ["2x16"] * 4 + ["4x16"]


def test_gpu_sweep_continues_after_a_measurement_that_fails():
    done = run(
        "benchmarks.gpu_sweep", "--cases=base 16", "--batches=2", "--case_minutes=0.001"
    )
    assert done.returncode == 0 and not done.stdout
    lines = [line for line in done.stderr.splitlines() if "took more than" in line]
    assert len(lines) == len(gpu_sweep.FLAGS) + 1  # and the peer


def test_gpu_sweep_compares_the_best_rates():
    ours = {"benchmark": "train_step", "case": "base 2x16 bfloat16", "value": 3.0}
    row = gpu_sweep.compared(ours, {"case": "base 4x16 bfloat16, peer", "value": 2.0})
    assert (row["case"], row["ratio"]) == ("base 2x16 bfloat16", 1.5)
    assert (row["peer"], row["peer_value"]) == ("base 4x16 bfloat16, peer", 2.0)


@pytest.mark.slow
def test_input_pipeline_prints_a_row_for_each_case():
    """Also checks the bound on memory, which holds on any machine."""
    stdout = run_well(
        "benchmarks.input_pipeline", "--seconds=0.5", "--repeats=2", "--megabytes=20"
    )
    found = [json.loads(line) for line in stdout.splitlines()]
    *rates, first_batch, streamed, first_streamed = found
    assert streamed["case"].startswith("128 streamed") and streamed["ratio"] > 0
    assert "step 900,000 streamed" in first_streamed["case"]
    assert {row["case"].rpartition(",")[0] for row in rates} == {
        "128",
        "128 whole words",
        "512 packed",
        "512 packed whole words",
    }
    for row in rates:
        assert row.keys() >= ROW and row["value"] > 0
        assert row["versions"]["jax"]
        assert row["peak_memory_bytes"] < 2 * 10**9
    assert "plain Python" in rates[0]["peer"] and rates[0]["ratio"] > 0
    assert rates[-1]["text_share"] > 0.95
    assert first_batch["unit"] == "s" and first_batch["value"] > 0


@pytest.mark.slow
def test_pretraining_prints_a_row_with_each_evaluation(trained):
    stdout = run_well("benchmarks.pretraining", f"--workdir={trained / 'run'}")
    row = json.loads(stdout)
    assert row.keys() >= ROW and row["case"] == "run" and 0 < row["ratio"]
    last = row["evaluations"][-1]
    assert row["value"] == last["masked_lm_loss"] == row["logged_loss"]
    assert last["step"] == 20 and last["tokens"] == 20 * 16 * 32
    assert 0 < last["seconds"] < 1_500 and last["flops"] > last["tokens"]
    none = run("benchmarks.pretraining", f"--workdir={trained}")
    assert none.returncode == 2 and str(trained) in none.stderr


@pytest.mark.slow
def test_tokenize_prints_a_row_for_each_text(tmp_path):
    arguments = ["--megabytes=0.1", "--repeats=2"]
    stdout = run_well("benchmarks.tokenize", *arguments)
    english, chinese = map(json.loads, stdout.splitlines())
    assert english.keys() >= ROW and english["ratio"] > 0 and chinese["ratio"] > 0
    write_text(tmp_path / "a.txt")
    stdout = run_well(
        "benchmarks.tokenize", *arguments, f"--source=text:{tmp_path}/*.txt"
    )
    assert json.loads(stdout)["megabytes"] > 0


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
    stdout = run_well("benchmarks.checkpoint", "--batch=1", "--steps=2", "--repeats=1")
    found = [json.loads(line) for line in stdout.splitlines()]
    assert all(row.keys() >= ROW and row["value"] > 0 for row in found)
    blocked, digests, verify, steps = found
    assert blocked["ratio"] < 1  # most of the save runs concurrently with steps
    assert (digests["unit"], verify["unit"], steps["unit"]) == ("s", "s", "steps/s")


def write_table(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in [columns, *rows]]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_tuning_prints_rows(source, tmp_path):
    """The tasks are easy with pretrained weights: one word determines the label."""
    sentences = [(f"w{i % 40} w{1 + i % 2} w{i % 7}", i % 2) for i in range(960)]
    scored = [(f"w{i} w1", f"w{i} w{1 + i % 2}", 5.0 * (i % 2)) for i in range(32)]
    glue = tmp_path / "data" / "glue"
    for name in ("train", "dev"):
        write_table(glue / "SST-2" / f"{name}.tsv", ("sentence", "label"), sentences)
    pairs = ("sentence1", "sentence2", "score")
    write_table(glue / "STS-B" / "train.tsv", pairs, scored)
    write_table(glue / "STS-B" / "dev.tsv", pairs, scored[:10])
    command = [
        f"--model={source[0]}",
        f"--data={tmp_path / 'data'}",
        f"--workdir={tmp_path / 'work'}",
        "--tasks=sst2,stsb",
        "--rates=1e-3,3e-3",
        "--length=16",
        "--epochs=3",
        "--compute_dtype=float32",
    ]
    stdout = run_well("benchmarks.tuning", *command)
    sst2, stsb = map(json.loads, stdout.splitlines())
    assert sst2.keys() >= ROW | {"floor", "rate", "peer_rate"}
    assert sst2["case"] == "sst2, 3 epochs, source"
    record = tmp_path / "work" / "sst2" / "pretrained" / "finetune.json"
    assert '"compute_dtype": "float32"' in record.read_text()
    assert (sst2["unit"], stsb["unit"]) == ("accuracy", "pearson")
    assert sst2["value"] > 0.9 and sst2["peer"] == "random weights"
    only_one_side = *command[:3], "--tasks=sst2", *command[4:], "--pretrained_only"
    row = json.loads(run_well("benchmarks.tuning", *only_one_side))
    assert (row["value"], row["peer"], row["peer_rate"]) == (sst2["value"], None, None)
    trained_on = (tmp_path / "work" / "data" / "stsb_train.tsv").read_text()
    assert trained_on.count("\n") == 1 + 22  # without the pairs of the dev set


@pytest.mark.slow
def test_blimp_prints_a_row_with_each_term(source, tmp_path):
    tasks.write_blimp(tmp_path / "data", words=[f"w{i}" for i in range(10)])
    command = ["benchmarks.blimp", f"--model={source[0]}"]
    stdout = run_well(*command, f"--data={tmp_path / 'data'}", "--limit=4")
    row = json.loads(stdout)
    assert row.keys() >= ROW | {"terms"} and row["case"] == "source, 8 pairs"
    assert 0 < row["value"] <= 100 and (row["peer"], row["peer_value"]) == (
        "chance",
        50,
    )
    assert row["terms"].keys() == {"order", "agreement"}
    assert sum(row["terms"].values()) / 2 == pytest.approx(row["value"], abs=0.1)
    empty = run("benchmarks.blimp", *command[1:], f"--data={tmp_path}")
    assert empty.returncode != 0 and "has no .jsonl files" in empty.stderr


def test_accuracy_is_counted_by_linguistic_term():
    correct_N = np.array([True, False, True, True])
    found = blimp.by_term(["b", "b", "a", "b"], correct_N)
    assert found == {"a": 100.0, "b": 66.7}


@pytest.mark.slow
def test_tuning_parity_prints_rows_of_both_sides(source, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    sentences = [(f"w{i % 40} w{1 + i % 2} w{i % 7}", i % 2) for i in range(320)]
    for name in ("train", "dev"):
        path = tmp_path / "data" / "glue" / "SST-2" / f"{name}.tsv"
        write_table(path, ("sentence", "label"), sentences)
    work = tmp_path / "work"
    command = [
        "benchmarks.tuning_parity",
        f"--model={source[0]}",
        f"--data={tmp_path / 'data'}",
        f"--workdir={work}",
        "--tasks=sst2",
        "--seeds=0,1",
        "--length=16",
    ]
    found = list(map(json.loads, run_well(*command, "--repeats=2").splitlines()))
    assert [row["benchmark"] for row in found] == [
        *("tuning_losses", "tuning_parity", "tuning_step")
    ]
    assert all(row.keys() >= ROW and row["value"] > 0 for row in found)
    losses, scores, steps = found
    assert losses["value"] == max(losses["by_step"]) < 1e-5
    assert len(losses["by_step"]) == 20 and steps["repeats"] == 2
    assert len(scores["scores"]) == len(scores["peer_scores"]) == 2
    (work / "sst2" / "seed1" / "peer.json").write_text('{"accuracy": 0.125}')
    _, resumed = map(json.loads, run_well(*command, "--repeats=0").splitlines())
    assert resumed["scores"] == scores["scores"]
    assert resumed["peer_scores"] == [scores["peer_scores"][0], 0.125]


def test_held_out_data_is_not_in_the_training_set(tmp_path):
    (tmp_path / "goemotions").mkdir()
    lines = [f"text {i}\t{i % 28}\tid{i}\n" for i in range(9)]
    (tmp_path / "goemotions" / "dev.tsv").write_text("".join(lines))
    train, dev = tuning.emotions(tmp_path, tmp_path, num_held_out=2)
    assert open(train.removeprefix("tsv:")).readlines() == lines[:7]
    assert open(dev.removeprefix("tsv:")).readlines() == lines[7:]

    (tmp_path / "squad").mkdir()
    found = [{"title": str(i), "paragraphs": []} for i in range(9)]
    path = tmp_path / "squad" / "squad11dev-train36.json"
    path.write_text(json.dumps({"version": "1.1", "data": found}))
    train, dev = tuning.articles(tmp_path, tmp_path, num_held_out=2)
    read = [json.load(open(spec.removeprefix("squad:"))) for spec in (train, dev)]
    assert [each["data"] for each in read] == [found[:7], found[7:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "peer, next_sentence, names",
    [
        ("torch", 1.0, time_to_loss.NAMES),
        ("keras", 0.0, time_to_loss.NAMES[:1]),  # it has the masked LM only
    ],
)
def test_time_to_loss_prints_rows_and_its_peer_learns_alike(
    tmp_path, peer, next_sentence, names
):
    """Without dropout and with one optimizer, both sides take the same steps."""
    pytest.importorskip(time_to_loss.PEERS[peer].PACKAGE)
    write_text(tmp_path / "a.txt")
    changes = {
        "tokenizer.vocab_size": 120,
        "model.hidden_size": 32,
        "model.intermediate_size": 64,
        "model.hidden_dropout_prob": 0.0,
        "model.attention_probs_dropout_prob": 0.0,
        "optimizer.name": "adamw",
        "loss_weights.next_sentence": next_sentence,
        "data.validation_fraction": 0.1,
        "eval.num_sequences": 64,
        "phases[0].num_steps": 20,
        "phases[0].global_batch_size": 32,
    }
    stdout = run_well(
        "benchmarks.time_to_loss",
        f"--sources=text:{tmp_path}/*.txt",
        f"--workdir={tmp_path / 'work'}",
        f"--variants={peer},faithful",
        "--every=10",
        "--repeats=2",
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
    for name in names:
        np.testing.assert_allclose(our_curve[name], their_curve[name], atol=2e-3)
    assert our_curve["masked_lm_loss"][1] < 0.5 * np.log(120)  # it learned


@pytest.mark.slow
def test_time_to_loss_starts_from_a_run_and_scores_its_last_checkpoint(
    trained, tmp_path
):
    probes = tasks.specs(tmp_path)
    changes = {
        "tokenizer.vocab_size": 120,
        "model.hidden_size": 32,
        "model.intermediate_size": 64,
        "model.max_position_embeddings": 32,
        "phases[0].num_steps": 20,
        "phases[0].sequence_length": 32,
        "phases[0].max_predictions": 7,
        "data.validation_fraction": 0.1,
        "eval.num_sequences": 32,
        "eval.probes": probes,
    }
    stdout = run_well(
        "benchmarks.time_to_loss",
        f"--sources=text:{trained}/*.txt",
        f"--workdir={tmp_path / 'work'}",
        f"--start={trained / 'run'}",
        "--variants=packed",
        "--every=10",
        "--repeats=1",
        *(f"--config.{key}={value}" for key, value in changes.items()),
    )
    (curve,) = json.loads(stdout)["curves"]
    assert curve["steps"] == [10, 20]
    lines = (tmp_path / "work/packed/seed0/metrics.jsonl").read_text().splitlines()
    (scored,) = [row for row in map(json.loads, lines) if "probe/blimp" in row]
    for name in ("probe/blimp", "probe/stsb"):  # those of the run's last evaluation
        assert curve[name] == [pytest.approx(scored[name], abs=0.006)]
    config = json.loads((tmp_path / "work/packed/seed0/config.json").read_text())
    assert config["init_from"] == str(trained / "run")


CURVE = {"steps": [10, 20, 30], "masked_lm_loss": [6.0, 5.0, 5.5]}


def test_steps_to_a_loss_are_interpolated_to_its_first_crossing():
    steps = {loss: time_to_loss.steps_to(loss, CURVE) for loss in (6.5, 5.25, 5.0, 4.0)}
    assert steps == {6.5: 10, 5.25: 17.5, 5.0: 20, 4.0: float("inf")}
    assert time_to_loss.loss_at(12, CURVE) == 5.8


def test_a_loss_that_a_run_does_not_reach_is_an_error():
    curves = {
        "faithful": [CURVE],
        "packed": [{**CURVE, "masked_lm_loss": [6, 5.314, 6]}],
    }
    flags = ["--sources=text:a", "--workdir=b"]
    parsed = time_to_loss.parse(flags)
    assert time_to_loss.targets(curves, parsed) == [5.32]
    parsed = time_to_loss.parse([*flags, "--losses=5.5,5.2"])
    with pytest.raises(ConfigError, match=r"--losses=5.5,5.2: .* 5.314; give losses"):
        time_to_loss.targets(curves, parsed)


@pytest.mark.parametrize(
    "flag, reason",
    [
        ("--variants=faithful,old", "'old' is not one of torch, keras, faithful"),
        ("--variants=start", "'start' is not one of torch, keras"),
        ("--seed=1", "--seed=1 is not a flag"),
    ],
)
def test_flags_of_time_to_loss_that_are_wrong(capsys, flag, reason):
    with pytest.raises(SystemExit) as end:
        time_to_loss.parse(["--sources=text:a", "--workdir=b", flag])
    assert end.value.code == 2 and reason in capsys.readouterr().err


def test_a_start_that_is_not_a_run_is_an_error(tmp_path):
    flags = [f"--{name}={tmp_path / name}" for name in ("workdir", "start")]
    args = time_to_loss.parse(["--sources=text:a", *flags])
    with pytest.raises(ConfigError, match=r"start has no config.json; give the work"):
        time_to_loss.train_start(args)


def test_a_peer_that_is_not_installed_is_named_with_its_command(capsys, monkeypatch):
    monkeypatch.setattr(time_to_loss_keras, "PACKAGE", "no_such_package")
    with pytest.raises(SystemExit) as end:
        time_to_loss.parse(["--sources=text:a", "--workdir=b", "--variants=keras"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "'keras' needs no_such_package: pip install keras-hub==" in error


def keras_loss_and_weights(config, start, batch):
    jax.config.update("jax_numpy_rank_promotion", "allow")  # Keras relies on it
    trainer = time_to_loss_keras.Trainer(config, start)
    loss = trainer.model.test_on_batch(**time_to_loss_keras.inputs(batch))
    return float(loss), trainer.weights()


def test_the_keras_peer_has_our_loss_and_weights(source):
    if not importlib.util.find_spec("keras_hub"):
        pytest.skip("needs keras-hub")
    directory, arrays = source
    config = make_config()
    batch = make_batch(config)
    # Another backend of Keras may be in use in this process.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as process:
        found, weights = process.submit(
            keras_loss_and_weights, config, directory, batch
        ).result()
    models.assert_same(weights, arrays)
    tx, _ = optimizer.make_optimizer(config)
    graphdef, init = step.init_state(config, tx)
    params = parameters.place(init().params, arrays)
    sums = losses.loss_sums(
        graphdef, params, batch, False, dropout_key=None, dtype=jnp.dtype("float32")
    )
    ours = sums["masked_lm_loss"] / batch["masked_lm_weights"].sum()
    np.testing.assert_allclose(found, ours, atol=1e-4)


def test_the_keras_peer_has_one_dropout_rate():
    config = make_config(model__hidden_dropout_prob=0.2)
    with pytest.raises(ConfigError, match=r"hidden_dropout_prob=0.2 and .* one rate"):
        time_to_loss_keras.dropout(config)


def test_variants_make_the_choices_of_the_configs():
    """Each choice has a variant of its own, and "modern" has all of them."""
    pairs = (
        ("packed", lambda config: config.phases[0].max_sequences_per_row),
        ("more_masks", lambda config: config.data.masked_lm_prob),
        ("no_dropout", lambda config: config.model.hidden_dropout_prob),
        ("no_dropout", lambda config: config.model.attention_probs_dropout_prob),
        ("optimizer", lambda config: config.optimizer.name),
    )
    faithful, modern = (variants.get_config(name) for name in ("faithful", "modern"))
    for name, choice in pairs:
        assert choice(faithful) == choice(base.get_config())
        alone = choice(variants.get_config(name))
        assert (
            choice(modern)
            == alone
            == choice(base_modern.get_config())
            != choice(faithful)
        )
    assert modern.optimizer == variants.get_config("optimizer").optimizer
    assert modern.optimizer.beta2 == base_modern.get_config().optimizer.beta2
    assert faithful.optimizer.learning_rate == modern.optimizer.learning_rate
    assert faithful.phases[0].num_steps == modern.phases[0].num_steps


def test_the_equal_of_the_keras_peer_differs_in_the_weight_of_one_loss():
    faithful, equal = (variants.get_config(name) for name in ("faithful", "masked_lm"))
    assert equal.loss_weights.next_sentence == 0 != faithful.loss_weights.next_sentence
    equal.loss_weights = faithful.loss_weights
    assert equal == faithful


def test_labels_of_the_torch_peer_are_at_the_masked_positions():
    pytest.importorskip("torch")
    batch = {
        "input_ids": np.array([[2, 4, 7, 3, 0]]),
        "segment_ids": np.zeros((1, 5), int),
        "sequence_ids": np.array([[1, 1, 1, 1, 0]]),
        "masked_lm_positions": np.array([[1, 2, 0]]),
        "masked_lm_ids": np.array([[9, 7, 0]]),
        "masked_lm_weights": np.array([[1.0, 1.0, 0.0]]),
        "next_sentence_labels": np.array([[1]]),
    }
    found = time_to_loss_torch.inputs(batch)
    assert found["labels"].tolist() == [[-100, 9, 7, -100, -100]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1, 0]]
    assert found["next_sentence_label"].tolist() == [1]
