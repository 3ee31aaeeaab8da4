"""Tests of opening a run, and of the config changes that a resumed run accepts."""

import dataclasses

import pytest

from bert_jax import config as config_lib
from bert_jax import errors
from bert_jax.checkpoint import workdir
from bert_jax.errors import CorruptError
from bert_jax.loading import run as run_lib
from tests.conftest import make_config


def two_phases() -> config_lib.ExperimentConfig:
    config = make_config(phase={"num_steps": 20})
    second = dataclasses.replace(config.phases[0], num_steps=5)
    return dataclasses.replace(config, phases=(config.phases[0], second))


def test_config_round_trips(tmp_path):
    config = two_phases()
    assert workdir.read_config(str(tmp_path)) is None
    workdir.write_config(str(tmp_path), config)
    assert workdir.read_config(str(tmp_path)) == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "content",
    [b"{", b"\xff\xfe", b"", b"0", b"null", b"[]", b'"task"', b"[" * 100_000],
    ids=lambda content: repr(content[:9]),
)
def test_config_that_is_not_a_json_object_is_an_error(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CorruptError, match="config.json is not a JSON object") as error:
        workdir.read_config(str(tmp_path))
    assert "give another --workdir" in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"mesh__data": 4},
        {"accumulation_steps": 2},
        {"log_every_steps": 7},
        {"checkpoint__every_steps": 7},
        {"eval__num_sequences": 8},
        {"data__corpus_dir": "elsewhere"},
    ],
)
def test_keys_that_do_not_change_the_result_may_change(tmp_path, changes):
    workdir.write_config(str(tmp_path), make_config())
    workdir.check_config(str(tmp_path), make_config(**changes))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 7}, "config.seed=7"),
        ({"model__hidden_size": 64}, "config.model.hidden_size=64"),
        ({"phase": {"num_steps": 30}}, "config.phases[0].num_steps=30"),
        ({"phase": {"global_batch_size": 32}}, "phases[0].global_batch_size=32"),
        ({"data__short_seq_prob": 0.2}, "config.data.short_seq_prob=0.2"),
    ],
)
def test_keys_that_change_the_result_may_not_change(tmp_path, changes, key):
    workdir.write_config(str(tmp_path), make_config())
    with pytest.raises(errors.ConfigError) as error:
        workdir.check_config(str(tmp_path), make_config(**changes))
    assert key in str(error.value) and "was started with" in str(error.value)


def test_number_of_phases_may_not_change(tmp_path):
    workdir.write_config(str(tmp_path), make_config())
    with pytest.raises(errors.ConfigError, match=r"phases\[1\]"):
        workdir.check_config(str(tmp_path), two_phases())


def test_checkpoints_without_a_config_are_an_error(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    workdir.check_config(str(tmp_path), make_config())  # killed before the config
    (checkpoints / "30").mkdir()
    with pytest.raises(errors.ConfigError, match="checkpoints but no config.json"):
        workdir.check_config(str(tmp_path), make_config())


def test_run_opens_on_as_many_devices_as_divide_its_batch(trained):
    """The run was trained on one device; here are eight, and 16 rows in a batch."""
    run = run_lib.open_run(str(trained / "run"), None)
    assert (run.step, run.phase_index) == (20, 0)
    assert run.mesh.size == 8
    assert run.config == workdir.read_config(str(trained / "run"))


def test_unfinished_corpus_error_names_the_command(tmp_path):
    (tmp_path / "run").mkdir()
    workdir.write_config(str(tmp_path / "run"), make_config())
    unfinished = tmp_path / "corpus"
    unfinished.mkdir()
    with pytest.raises(errors.ConfigError, match="corpus is not at '.*/corpus'"):
        run_lib.open_run(str(tmp_path / "run"), None, str(unfinished))
    (unfinished / "train-00000-of-00002").touch()
    with pytest.raises(errors.ConfigError) as error:
        run_lib.open_run(str(tmp_path / "run"), None, str(unfinished))
    assert "/corpus' is unfinished; finish it with python -m bert_jax.prepare" in str(
        error.value
    )
    assert f"--config.data.corpus_dir={unfinished}," in str(error.value)
