"""prepare, train, evaluate and export one after the other, as the README says."""

import json

import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from tests.commands import run, run_well, small_run, write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with a text, its corpus, and a run of 20 steps."""
    directory = tmp_path_factory.mktemp("trained")
    write_text(directory / "documents.txt")
    changes = {"phases[0].num_steps": 20, "checkpoint.every_steps": 10}
    arguments = small_run(directory, **changes)
    stdout = run_well("bert_jax.prepare", *arguments)
    assert "documents" in stdout and str(directory / "corpus") in stdout
    assert "prepared already" in run_well("bert_jax.prepare", *arguments)
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={directory / 'run'}")
    assert "tokenizer: training" not in stdout
    return directory


def test_evaluate_prints_one_json_object_that_training_saw_too(trained):
    stdout = run_well("bert_jax.evaluate", f"--workdir={trained / 'run'}")
    (line,) = stdout.splitlines()
    found = json.loads(line)
    assert set(found) == {
        "step",
        "masked_lm_loss",
        "masked_lm_accuracy",
        "next_sentence_loss",
        "next_sentence_accuracy",
        "unigram_entropy",
        "next_sentence_majority",
    }
    logged = [json.loads(x) for x in (trained / "run/metrics.jsonl").open()][-1]
    assert found["step"] == logged["step"] == 20
    for name in ("masked_lm_loss", "next_sentence_accuracy"):
        assert found[name] == pytest.approx(logged[f"eval_{name}"], rel=1e-5)
    assert 0.5 <= found["next_sentence_majority"] < 1
    assert 2 < found["unigram_entropy"] < np.log(120)


def test_evaluate_takes_an_older_step_and_another_number_of_devices(trained):
    stdout = run_well(
        "bert_jax.evaluate", f"--workdir={trained / 'run'}", "--step=10", devices=4
    )
    assert json.loads(stdout)["step"] == 10


def test_export_writes_the_five_files_with_every_tensor(trained, tmp_path):
    output = tmp_path / "exported"
    stdout = run_well(
        "bert_jax.export", f"--workdir={trained / 'run'}", f"--output={output}"
    )
    assert "BertForPreTraining.from_pretrained" in stdout
    assert sorted(path.name for path in output.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    tensors = safetensors.numpy.load_file(output / "model.safetensors")
    assert tensors["cls.seq_relationship.weight"].shape == (2, 32)
    assert tensors["bert.encoder.layer.1.intermediate.dense.weight"].shape == (64, 32)
    # embeddings 3 + norm 2, a layer 16, pooler 2, transform 4, bias 1, next sentence 2
    assert len(tensors) == 5 + 2 * 16 + 2 + 4 + 1 + 2
    again = run("bert_jax.export", f"--workdir={trained / 'run'}", f"--output={output}")
    assert again.returncode == 2 and "is in use" in again.stderr


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("evaluate", [], "--workdir is missing"),
        pytest.param(
            "evaluate",
            ["--workdir=/nonexistent"],
            "has no config.json",
            marks=pytest.mark.slow,
        ),
        ("evaluate", ["--workdir=RUN", "--step=7"], "of step 7; there are: 10, 20"),
        pytest.param(
            "export", ["--workdir=RUN"], "--output is missing", marks=pytest.mark.slow
        ),
        pytest.param(
            "export",
            ["--workdir=RUN", "--output=O", "--format=onnx"],
            "huggingface",
            marks=pytest.mark.slow,
        ),
        pytest.param("prepare", [], "--config is missing", marks=pytest.mark.slow),
        ("prepare", ["--workers=0"], "--workers=0 does not fit: 0 is not a positive"),
    ],
)
def test_mistakes_are_one_line(trained, module, arguments, message):
    arguments = [a.replace("RUN", str(trained / "run")) for a in arguments]
    result = run(f"bert_jax.{module}", *arguments)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_sentence_between_blank_lines_each_is_refused(tmp_path):
    text = "\n\n".join(f"Sentence number {i} stands alone." for i in range(50))
    (tmp_path / "documents.txt").write_text(text)
    result = run("bert_jax.prepare", *small_run(tmp_path))
    assert result.returncode == 2
    assert "at least 2 are needed" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "corpus").exists()


def test_vocabulary_without_mask_is_refused(tmp_path):
    write_text(tmp_path / "documents.txt")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n")
    changes = {
        "tokenizer.vocab_file": tmp_path / "vocab.txt",
        "tokenizer.vocab_size": 5,
    }
    result = run(
        "bert_jax.train",
        *small_run(tmp_path, **changes),
        f"--workdir={tmp_path / 'run'}",
    )
    assert result.returncode == 2
    assert "has no [MASK]; add a line [MASK]" in result.stderr
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("sentencepiece_unigram", marks=pytest.mark.slow),
        pytest.param("sentencepiece_bpe", marks=pytest.mark.slow),
    ],
)
def test_sentencepiece_from_text_to_export(tmp_path, kind):
    write_text(tmp_path / "documents.txt")
    arguments = small_run(
        tmp_path,
        **{
            "tokenizer.kind": kind,
            "tokenizer.vocab_size": 45,  # so few different words has the text
            "phases[0].num_steps": 2,
            "log_every_steps": 1,
        },
    )
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    assert "tokenizer: training 45 pieces" in stdout and "step 2/2" in stdout
    assert (tmp_path / "corpus/sentencepiece.model").is_file()
    output = tmp_path / "exported"
    run_well("bert_jax.export", f"--workdir={tmp_path / 'run'}", f"--output={output}")
    assert (output / "sentencepiece.model").is_file()
    assert not (output / "vocab.txt").exists()
    exported = tokenizers.Tokenizer.from_file(str(output / "tokenizer.json"))
    ids = exported.encode("The river follows the old garden.").ids
    assert ids[0] == 2 and ids[-1] == 3 and 1 not in ids  # [CLS], [SEP], [UNK]
    assert exported.decode(ids) == "the river follows the old garden."


@pytest.mark.slow
def test_large_takes_two_real_steps(tmp_path):
    write_text(tmp_path / "documents.txt")
    stdout = run_well(
        "bert_jax.train",
        "--config=configs/large.py",
        f"--config.data.sources=('text:{tmp_path}/*.txt',)",
        f"--config.data.corpus_dir={tmp_path / 'corpus'}",
        "--config.data.num_shards=1",
        "--config.data.num_streams=1",
        "--config.data.validation_fraction=0.1",
        "--config.eval.num_sequences=2",
        "--config.phases[0].num_steps=1",
        "--config.phases[0].global_batch_size=2",
        "--config.phases[1].num_steps=1",
        "--config.phases[1].global_batch_size=1",
        "--config.log_every_steps=1",
        f"--workdir={tmp_path / 'run'}",
    )
    assert "336,226,108 parameters" in stdout
    assert "step 1/2" in stdout and "step 2/2" in stdout


@pytest.mark.slow
def test_a_packed_run_without_next_sentence_says_nothing_of_it(tmp_path):
    """All the way: corpus, training with whole-word spans, evaluation."""
    write_text(tmp_path / "documents.txt")
    arguments = small_run(
        tmp_path,
        **{
            "data.next_sentence": False,
            "data.whole_word_mask": True,
            "data.mask_ngram_max": 2,
            "phases[0].num_steps": 20,
            "phases[0].max_sequences_per_row": 4,
            "phases[0].max_predictions": 7,
            "checkpoint.every_steps": 20,
            "eval.every_steps": 20,
        },
    )
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    stdout += run_well("bert_jax.evaluate", f"--workdir={tmp_path / 'run'}")
    lines = (tmp_path / "run/metrics.jsonl").read_text()
    assert "masked_lm_loss" in lines and "padding_efficiency" in lines
    for word in ("next sentence", "next_sentence", "nsp"):
        assert word not in stdout + lines
