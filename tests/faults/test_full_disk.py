"""A disk that fills up at a save: earlier checkpoints are kept, and train resumes."""

import sys

import pytest

from tests.commands import ENV, capture, run, small_run, write_text

pytestmark = pytest.mark.slow
# In a new namespace, any user may mount a small disk.
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-euc"]
SCRIPT = """
disk=$1 python=$2; shift 2
train() { "$python" -m bert_jax.train "$@" --workdir="$disk/run"; }
mount -t tmpfs -o size=2300k tmpfs "$disk"
code=0; train "$@" || code=$?
echo "first: $code"; ls "$disk/run/checkpoints"
"$python" -m bert_jax.checkpoint verify --workdir="$disk/run"
mount -o remount,size=50m "$disk"
train "$@"; ls "$disk/run/checkpoints"
"""


def can_mount() -> bool:
    probe = [*UNSHARE, 'mount -t tmpfs tmpfs "$1"', "", "/mnt"]
    try:
        return capture(*probe).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="mounting a small disk is not allowed here")
def test_a_full_disk_keeps_checkpoints_and_the_run_resumes_with_space(tmp_path):
    write_text(tmp_path / "documents.txt")
    (tmp_path / "disk").mkdir()
    # A checkpoint takes about 0.9 MB, so the third does not fit.
    changes = {"model.hidden_size": 64, "model.intermediate_size": 192}
    changes |= {"checkpoint.every_steps": 20, "checkpoint.keep": 9}
    command = [*UNSHARE, SCRIPT, "", str(tmp_path / "disk"), sys.executable]
    result = capture(*command, *small_run(tmp_path, **changes), env=ENV)
    assert result.returncode == 0, result.stdout + result.stderr
    before, _, after = result.stdout.partition("first: 2\n")
    assert after, result.stdout + result.stderr
    assert "Trained to step" not in before
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and " bytes, and " in errors[0], result.stderr
    step = int(errors[0].removeprefix("error: step ").split()[0])
    assert f"to resume from step {step - 20}" in errors[0]
    assert "Traceback" not in result.stderr
    assert "verified" in after and "CORRUPT" not in after
    assert f"resuming at step {step - 20}" in after and "Trained to step 60" in after


PREPARE_AND_EXPORT = """
disk=$1 python=$2 run=$3; shift 3
mount -t tmpfs -o size=100k tmpfs "$disk"
try() { code=0; "$python" -m "$@" || code=$?; echo "code: $code"; }
try bert_jax.prepare "$@" --config.data.corpus_dir="$disk/corpus"
rm -rf "$disk/corpus"
try bert_jax.export --workdir="$run" --output="$disk/exported"
mount -o remount,size=50m "$disk"
try bert_jax.prepare "$@" --config.data.corpus_dir="$disk/corpus"
"""


@pytest.mark.skipif(not can_mount(), reason="mounting a small disk is not allowed here")
def test_prepare_and_export_on_a_full_disk_end_with_one_line(trained, tmp_path):
    write_text(tmp_path / "documents.txt", num_documents=2000)
    (tmp_path / "disk").mkdir()
    command = [*UNSHARE, PREPARE_AND_EXPORT, "", str(tmp_path / "disk"), sys.executable]
    config = [x for x in small_run(tmp_path) if "corpus_dir" not in x]
    result = capture(*command, str(trained / "run"), *config, env=ENV)
    codes = [line for line in result.stdout.splitlines() if line.startswith("code: ")]
    assert codes == ["code: 2", "code: 2", "code: 0"], result.stdout + result.stderr
    errors = [x for x in result.stderr.splitlines() if not x.startswith("W0000")]
    assert len(errors) == 2, result.stderr
    for line, path in zip(errors, ("corpus/unfinished/", "exported;"), strict=True):
        words = f"error: no space left on the disk for {tmp_path}/disk/{path}"
        assert line.startswith(words)
        assert line.endswith("; free some and rerun the command")


def test_an_interrupted_run_whose_save_fails_reports_the_failure(tmp_path):
    """Exit code 75 would make a launcher restart it, without a checkpoint."""
    write_text(tmp_path / "documents.txt")
    arguments = [*small_run(tmp_path), f"--workdir={tmp_path / 'run'}"]
    faults = {"KILL_AT": "12:SIGTERM", "FAIL_SAVES": "1"}
    result = run("tests.faults.faulty_train", *arguments, **faults)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "is saved" not in result.stdout
    assert "error: step 12 cannot be saved in" in result.stderr.splitlines()[-1]
