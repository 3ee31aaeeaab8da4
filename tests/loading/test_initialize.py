"""Initializing a model from published weights, an export or the workdir of a run."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from bert_jax import errors
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.data.corpus import corpus
from bert_jax.data.tokenizers import wordpiece
from bert_jax.loading import initialize
from bert_jax.model import bert, parameters
from tests.commands import run, run_well, small_run
from tests.conftest import make_config, use_mesh
from tests.models import (
    TOKENIZER,
    VOCAB,
    assert_same,
    read,
)


@pytest.mark.parametrize("mesh_shape", [(1, 1, 1), (2, 2, 2)])
def test_weights_replace_the_initial_ones(source, mesh_shape):
    directory, expected = source
    use_mesh(*mesh_shape)
    config = make_config()
    _, params = bert.build(config.model, len(VOCAB), jax.random.key(0))
    placed = parameters.place(params, read(directory).arrays)
    assert_same(parameters.by_name(placed), expected)
    for new, old in zip(jax.tree.leaves(placed), jax.tree.leaves(params), strict=True):
        assert new.sharding == old.sharding


def test_more_positions_repeat_the_table(source):
    directory, expected = source
    weights = read(directory, model__max_position_embeddings=80)
    table = expected["bert.embeddings.position"]
    found = weights.arrays["bert.embeddings.position"]
    np.testing.assert_array_equal(found, np.concatenate([table, table, table[:16]]))
    assert weights.notes == ("32 positions, repeated to make 80",)


def test_relative_directory(source, monkeypatch):
    directory, expected = source
    monkeypatch.chdir(directory)
    config = make_config(init_from=".")
    source = initialize.open_source(config)
    assert_same(initialize.read(source, config, TOKENIZER).arrays, expected)


@pytest.mark.slow
def test_train_from_an_export_and_from_a_workdir(trained, tmp_path):
    """The held-out metrics before the first update equal those of the source."""
    exported = tmp_path / "exported"
    workdir = trained / "run"
    run_well("bert_jax.export", f"--workdir={workdir}", f"--output={exported}")
    metrics = [json.loads(x) for x in (workdir / "metrics.jsonl").open()][-1]
    found = {}
    for source in (exported, workdir):
        target = tmp_path / f"from-{source.name}"
        changes = {
            "init_from": str(source),
            "phases[0].num_steps": 1,
            "eval.every_steps": 1,
            "checkpoint.every_steps": 1,
            # The released schedule has rate 0 at step 0, so no parameter changes.
            "optimizer.warmup_steps": 1,
            "log_every_steps": 1,
        }
        arguments = [*small_run(trained, **changes), f"--workdir={target}"]
        stdout = run_well("bert_jax.train", *arguments)
        assert f"from the weights in {source} with a new optimizer" in stdout
        lines = [json.loads(x) for x in (target / "metrics.jsonl").open()]
        found[source] = lines[-1]["eval_masked_lm_loss"]
    # A resumed run does not read the source again.
    shutil.rmtree(exported)
    target = tmp_path / "from-exported"
    changes["init_from"] = str(exported)
    run_well("bert_jax.train", *small_run(trained, **changes), f"--workdir={target}")
    assert found[exported] == found[workdir]
    assert found[workdir] == pytest.approx(metrics["eval_masked_lm_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("init_from", "changes", "message"),
    [
        ("./nothing", {}, "config.init_from='./nothing' does not exist; use"),
        (
            "RUN",
            {"tokenizer.vocab_file": "VOCAB", "tokenizer.vocab_size": 5},
            "RUN/../corpus/vocab.txt is neither the run's vocabulary",
        ),
        (
            "RUN",
            {"model.hidden_size": 64},
            "config.model.hidden_size=64, but config.init_from=RUN needs 32; remove",
        ),
    ],
)
def test_train_with_an_invalid_source_writes_nothing(
    trained, tmp_path, init_from, changes, message
):
    workdir = tmp_path / "run"
    corpus_dir = tmp_path / "corpus"
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(wordpiece.SPECIAL_TOKENS))
    changes = changes | {"init_from": init_from, "data.corpus_dir": str(corpus_dir)}
    places = {"RUN": trained / "run", "VOCAB": vocabulary}
    for word, place in places.items():
        changes = {
            key: value.replace(word, str(place)) if isinstance(value, str) else value
            for key, value in changes.items()
        }
    message = message.replace("RUN/../", f"{trained}/")
    message = message.replace("RUN", str(trained / "run"))
    result = run(
        "bert_jax.train", *small_run(trained, **changes), f"--workdir={workdir}"
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not workdir.exists() and not corpus_dir.exists()


def test_incomplete_workdir_is_an_error(trained, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(trained / "run", workdir)
    config = workdir_lib.read_config(str(workdir))
    continued = dataclasses.replace(config, init_from=str(workdir))
    initialize.open_source(continued)
    (newest,) = (workdir / "checkpoints/20").glob("state/manifest.ocdbt")
    outside = tmp_path / "outside"
    newest.rename(outside)
    newest.symlink_to(outside)
    with pytest.raises(errors.ConfigError, match="is a link to .*outside"):
        initialize.open_source(continued)
    shutil.rmtree(workdir / "checkpoints")
    with pytest.raises(errors.ConfigError, match="has no checkpoint yet"):
        initialize.open_source(continued)
    data = dataclasses.replace(config.data, corpus_dir="gone")
    workdir_lib.write_config(str(workdir), dataclasses.replace(config, data=data))
    with pytest.raises(errors.ConfigError, match="at 'gone', which is missing"):
        initialize.open_source(continued)


def test_workdir_with_a_replaced_corpus_is_rejected(trained, tmp_path):
    workdir, other = tmp_path / "run", tmp_path / "corpus"
    shutil.copytree(trained / "run", workdir)
    shutil.copytree(trained / "corpus", other)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["cleaning"] = {"lines_cut": 1}
    manifest["sha256"] = corpus.manifest_digest(manifest)
    (other / "manifest.json").write_text(json.dumps(manifest))
    config = workdir_lib.read_config(str(workdir))
    data = dataclasses.replace(config.data, corpus_dir=str(other))
    workdir_lib.write_config(str(workdir), dataclasses.replace(config, data=data))
    continued = dataclasses.replace(config, init_from=str(workdir))
    with pytest.raises(errors.ConfigError, match="was not trained on the corpus"):
        initialize.open_source(continued)


def test_corrupt_checkpoint_is_an_error(trained, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(trained / "run", workdir)
    (workdir / "checkpoints/20/meta/metadata").write_text("{")
    config = workdir_lib.read_config(str(workdir))
    continued = dataclasses.replace(config, init_from=str(workdir))
    with pytest.raises(errors.ConfigError, match="checkpoints/20 is corrupt") as e:
        source = initialize.open_source(continued)
        initialize.read(source, continued, corpus.read(config).tokenizer)
    assert "\n" not in str(e.value)
