"""Tests of bert_jax.checkpoint.workdir."""

import errno
import signal
import subprocess
import sys

import pytest

from bert_jax import errors
from bert_jax.checkpoint import workdir
from bert_jax.errors import CorruptError
from bert_jax.storage import own_files as storage_files
from tests.conftest import make_config, two_phases

LOCK = (
    "import sys, time; from bert_jax.checkpoint import workdir; "
    "workdir.lock(sys.argv[1]); print('locked', flush=True); time.sleep(600)"
)


def test_a_lock_is_held_until_its_process_is_killed(tmp_path):
    command = [sys.executable, "-c", LOCK, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "locked\n"
        held = f"written by process {first.pid} on"
        with pytest.raises(errors.ConfigError, match=held):
            workdir.lock(str(tmp_path))
        first.send_signal(signal.SIGKILL)
    workdir.lock(str(tmp_path))


def test_file_systems_without_locks_are_accepted(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(storage_files.fcntl, "flock", refuse)
    workdir.lock(str(tmp_path))


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
    assert "use another --workdir" in str(error.value)


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
        (
            {"seed": 7, "model__hidden_size": 64, "data__short_seq_prob": 0.2},
            "data.short_seq_prob=0.2, but the run in .* was started with 0.1; continue"
            " it with --config.data.short_seq_prob=0.1 --config.model.hidden_size=32"
            " --config.seed=12345, or use another --workdir",
        ),
        (
            {f"data__{name}_prob": 0.2 for name in ("short_seq", "masked_lm")}
            | {
                f"model__{name}_prob": 0.2
                for name in ("hidden_dropout", "attention_probs_dropout")
            }
            | {"seed": 7, "model__hidden_size": 64, "model__num_hidden_layers": 1},
            "continue it with the 7 values of its config.json that differ, or",
        ),
        ({"phase": {"num_steps": 30}}, r"config.phases\[0\].num_steps=30"),
        ({"phase": {"global_batch_size": 32}}, r"phases\[0\].global_batch_size=32"),
    ],
)
def test_keys_that_change_the_result_may_not_change(tmp_path, changes, key):
    workdir.write_config(str(tmp_path), make_config())
    with pytest.raises(errors.ConfigError, match=key) as error:
        workdir.check_config(str(tmp_path), make_config(**changes))
    assert "was started with" in str(error.value)


def test_number_of_phases_may_not_change(tmp_path):
    workdir.write_config(str(tmp_path), make_config())
    with pytest.raises(
        errors.ConfigError, match="has 2 phases, .* started with 1; use"
    ):
        workdir.check_config(str(tmp_path), two_phases())


@pytest.mark.parametrize("name", ["manifest.json", "finetune.json", "bert_config.json"])
def test_a_directory_of_another_use_is_an_error(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(errors.ConfigError, match=f"--workdir=.* has {name}, like"):
        workdir.check_config(str(tmp_path), make_config())
    if name == "manifest.json":  # unless it is that of the corpus
        workdir.check_config(str(tmp_path), make_config(data__corpus_dir=str(tmp_path)))


def test_checkpoints_without_a_config_are_an_error(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    workdir.check_config(str(tmp_path), make_config())  # killed before the first save
    (checkpoints / "30").mkdir()
    with pytest.raises(errors.ConfigError, match="checkpoints but no config.json"):
        workdir.check_config(str(tmp_path), make_config())
