"""Verifies that secrets in the environment are neither written nor printed."""

import dataclasses
import pathlib
import re
import threading
import time
import typing

import pytest

from bert_jax.config import ExperimentConfig
from tests.commands import run, small_run, write_text

CANARY = "canary-5f0e71c2"
NAMES = (
    "AWS_SECRET_ACCESS_KEY",
    "BERT_JAX_SECRET",
    "DATABASE_PASSWORD",
    "GITHUB_TOKEN",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "KUBECONFIG_DATA",
    "SSH_PRIVATE_KEY",
    "WANDB_API_KEY",
)
SECRETS = {name: f"{CANARY}-{number}" for number, name in enumerate(NAMES)}


def holders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in a directory tree that contain a secret."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in paths if CANARY.encode() in path.read_bytes()]


def arguments_of_children(seen: set[bytes], stop: threading.Event) -> None:
    """Collects the command lines of all processes on this machine."""
    while not stop.is_set():
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.add(path.read_bytes())
            except OSError:  # the process has ended
                pass
        time.sleep(0.1)


@pytest.mark.slow
def test_no_secret_is_written_or_printed(tmp_path):
    write_text(tmp_path / "documents.txt")
    options = {"phases[0].num_steps": 20, "checkpoint.every_steps": 10}
    config = small_run(tmp_path, **options)
    workdir = f"--workdir={tmp_path / 'run'}"
    commands = [
        ("bert_jax.prepare", *config, "--workers=2"),
        ("bert_jax.train", *config, workdir),
        ("bert_jax.evaluate", workdir),
        ("bert_jax.inspect_batch", *config, "--step=3", f"--html={tmp_path}/page.html"),
        ("bert_jax.export", workdir, f"--output={tmp_path / 'huggingface'}"),
        ("bert_jax.export", workdir, f"--output={tmp_path}/tf", "--format=google"),
        # This command fails.
        ("bert_jax.train", *config, workdir, "--config.seed=7"),
    ]
    seen: set[bytes] = set()
    stop = threading.Event()
    watcher = threading.Thread(target=arguments_of_children, args=(seen, stop))
    watcher.start()
    try:
        for number, command in enumerate(commands):
            result = run(*command, **SECRETS)
            assert result.returncode == (2 if number == 6 else 0), result.stderr
            assert number < 6 or "config.seed=7" in result.stderr
            assert CANARY not in result.stdout + result.stderr
    finally:
        stop.set()
        watcher.join()
    assert any(b"tests.warm" in arguments for arguments in seen)
    assert not [arguments for arguments in seen if CANARY.encode() in arguments]
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"config.json", "metrics.jsonl", "manifest.json", "page.html"} <= written
    assert any("tfevents" in name for name in written)
    assert holders(tmp_path) == []
    (tmp_path / "leak").write_bytes(b"\0" + SECRETS["HF_TOKEN"].encode())
    assert holders(tmp_path) == [tmp_path / "leak"]


def field_names(kind: type) -> list[str]:
    names = []
    for field, type_ in typing.get_type_hints(kind).items():
        names.append(field)
        for inner in (type_, *typing.get_args(type_)):
            if dataclasses.is_dataclass(inner):
                names += field_names(inner)
    return names


def test_no_field_of_a_config_is_for_a_secret():
    names = field_names(ExperimentConfig)
    assert len(names) > 60
    secret = re.compile(r"(^|_)(key|token|secret|password|credentials?|auth)(_|$)")
    assert not [name for name in names if secret.search(name)]
