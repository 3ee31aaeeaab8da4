"""Tests of bert_jax.checkpoint.__main__: list and verify."""

import shutil

import pytest

from bert_jax.checkpoint import __main__ as checkpoint_command
from bert_jax.checkpoint import integrity
from tests.checkpoint.test_manager import save_all
from tests.commands import error_of, flip, run, run_well
from tests.conftest import make_config


@pytest.mark.slow
def test_list_and_verify_print_every_checkpoint(tmp_path):
    config = make_config(checkpoint__keep=3)
    save_all(tmp_path, config, {10: None, 20: None, 30: None})
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 10, "eval_loss": null, "eval_masked_lm_loss": null}\n'
        '{"step": 20, "eval_loss": 2.5, "eval_masked_lm_loss": 2.0}\n'
        '{"step": 30, "eval_loss": 2.25, "eval_masked_lm_loss": 1.75}\n'
        '{"step": 30, "loss": 1}\n'
    )
    command = ("bert_jax.checkpoint", "list", f"--workdir={tmp_path}")
    listed = run_well(*command).splitlines()
    assert "held-out MLM loss  total loss" in listed[0]
    assert [line.split()[0] for line in listed] == ["step", "10", "20", "30"]
    assert listed[2].split()[-3:-1] == ["2.0000", "2.5000"]
    assert listed[3].split()[-3:-1] == ["1.7500", "2.2500"]
    verify = ("bert_jax.checkpoint", "verify", f"--workdir={tmp_path}")
    assert run_well(*verify).count("verified") == 3
    flip(tmp_path / "checkpoints" / "20" / "meta" / "metadata")
    found = run(*verify)
    assert found.returncode == 78
    assert found.stdout.count("verified") == 2
    assert "CORRUPT" in found.stdout
    assert "\n20: meta/metadata does not match its digest\n" in found.stdout
    assert found.stderr.startswith("error: 1 of the checkpoints in")
    assert found.stderr.count("\n") == 1


def test_a_checkpoint_that_a_run_deletes_meanwhile_is_skipped(
    tmp_path, monkeypatch, capsys
):
    config = make_config(checkpoint__keep=3)
    save_all(tmp_path, config, {10: None, 20: None, 30: None})
    real = integrity.verify

    def verify(workdir, step):
        if step == 30:
            return real(workdir, step)
        shutil.rmtree(integrity.directory_of(workdir, step))
        if step == 10:
            raise FileNotFoundError("state/d/x")
        return ["state/d/x is missing"]

    monkeypatch.setattr(integrity, "verify", verify)
    assert checkpoint_command.show(str(tmp_path), True) == []
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "30"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "list or verify, not nothing"),
        (["list"], "--workdir is missing"),
        (["list", "runs/x"], "unexpected argument 'runs/x'; write --workdir=runs/x"),
        (["list", "--workdir=/nowhere"], "--workdir=/nowhere has no checkpoint"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    assert message in error_of("bert_jax.checkpoint", *arguments)
