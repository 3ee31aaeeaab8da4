"""Tests do not depend on the directories of the user who runs them."""

import os
import shutil
import sys

import pytest

from tests.commands import ROOT, capture

# Files of other runs and programs, none of which the package can read.
FOREIGN = (
    "clone/.compilation_cache/jit_train_step-cache",
    "clone/corpora/tiny/manifest.json",
    "clone/corpora/tiny/vocab.txt",
    "clone/runs/tiny/config.json",
    "home/.cache/bert_jax/jit_train_step-cache",
    "home/.cache/huggingface/hub/models--bert-base-uncased/refs/main",
    "home/.cache/huggingface/token",
    "home/.keras/keras.json",
    "home/tensorflow_datasets/glue/sst2/1.0.0/dataset_info.json",
)
# The modules with the most paths of the user: caches, corpora, runs, Hub, trackers.
TESTS = (
    "test_evaluate.py",  # with the corpus and the run of a fixture
    "test_lazy_tensorflow.py",
    "checkpoint/test_workdir.py",
    "data/sources/test_hub_datasets.py",
    "data/sources/test_sources.py",
    "interop/test_hub_models.py",
    "monitoring/test_trackers.py",
    "training/test_compilation_cache.py",
)


@pytest.mark.slow
def test_a_clone_in_use_and_the_home_directory_stay_unchanged(tmp_path):
    clone, home = tmp_path / "clone", tmp_path / "home"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("bert_jax", "launch", "tests"):
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", clone)
    for name in FOREIGN:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("not of this test run")
    for directory in (home, *home.rglob("*/")):
        directory.chmod(0o500)
    before = modification_times(tmp_path)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {
        "HF_HOME": str(home / ".cache/huggingface"),
        "HOME": str(home),
        "KERAS_HOME": str(home / ".keras"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": "",
        "TFDS_DATA_DIR": str(home / "tensorflow_datasets"),
        "XDG_CACHE_HOME": str(home / ".cache"),
    }
    files = [f"tests/{name}" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    result = capture(*command, *files, cwd=clone, env=environment)
    for directory in (home, *home.rglob("*/")):
        directory.chmod(0o700)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
    assert modification_times(tmp_path) == before


def modification_times(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
