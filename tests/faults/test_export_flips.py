"""A flipped bit in an export; test_fuzzed_corpus.py has random edits of models."""

import subprocess

import pytest

from tests.commands import run, run_well, small_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["huggingface", "google"])
def exported(request, trained, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported") / request.param
    run_well(
        "bert_jax.export",
        f"--workdir={trained / 'run'}",
        f"--output={directory}",
        f"--format={request.param}",
    )
    return directory


def test_sha256sum_accepts_it(exported):
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(command, cwd=exported, check=True)


def test_training_from_a_corrupt_export_exits_with_78(trained, exported, tmp_path):
    """The run writes nothing."""
    weights = next(
        p for p in exported.iterdir() if "data-" in p.name or "safe" in p.name
    )
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    arguments = [f"--config.init_from={exported}", f"--workdir={tmp_path / 'run'}"]
    try:
        result = run("bert_jax.train", *small_run(trained), *arguments)
    finally:
        weights.write_bytes(content)
    assert result.returncode == 78, result.stderr
    assert f"{weights.name} does not match its digest" in result.stderr
    assert list(tmp_path.iterdir()) == []
