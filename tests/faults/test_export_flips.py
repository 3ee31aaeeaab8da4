"""Flips bits in exports: each is detected, or proven harmless."""

import random
import subprocess

import pytest

from bert_jax.checkpoint import workdir
from bert_jax.errors import CorruptError
from bert_jax.loading import initialize
from tests import models
from tests.commands import run, run_well, small_run

pytestmark = pytest.mark.slow
FLIPS = 100


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


def test_a_flipped_bit_is_detected_or_harmless(trained, exported, monkeypatch):
    config = workdir.read_config(str(trained / "run"))
    shapes = initialize.parameter_shapes(config)
    monkeypatch.setattr(initialize, "parameter_shapes", lambda config: shapes)
    expected = initialize.open_directory(exported, config).read()
    rng, num_detected = random.Random(3), 0
    paths = sorted(path for path in exported.iterdir() if path.name != "README.md")
    for number in range(FLIPS):
        path = paths[number % len(paths)]
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            source = initialize.open_directory(exported, config)
        except CorruptError as error:
            # A flip in a digest looks like a flip in its file.
            assert str(path) in str(error) or path.name == "SHA256SUMS"
            assert error.exit_code == 78 and str(exported) in str(error)
            num_detected += 1
        else:
            # Digests may be in upper case, and a name may start with "./".
            assert path.name == "SHA256SUMS"
            models.assert_same(source.read(), expected)
        finally:
            path.write_bytes(content)
    assert num_detected >= FLIPS - FLIPS // len(paths)


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
    assert f"{weights} does not match its digest in SHA256SUMS" in result.stderr
    assert list(tmp_path.iterdir()) == []
