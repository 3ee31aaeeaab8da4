"""Cuts and exchanges files of corpora; test_fuzzed_corpus.py has other edits."""

import os
import pathlib
import shutil

import pytest

from bert_jax.data.corpus import corpus, writer
from bert_jax.errors import CorruptError
from tests.commands import flip, run, small_run
from tests.corpora import make_config, make_documents, write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A config, and its corpus with several records per shard."""
    config = make_config(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "BLOCK_TOKENS", 100)
        found = write(config, make_documents(60))
    return config, found


def replace(path, content):
    with open(path, "wb") as file:
        file.write(content)


def record_offsets(content):
    offsets, offset = [], 0
    while offset < len(content):
        offsets.append(offset)
        offset += int.from_bytes(content[offset : offset + 8], "little") + 16
    return offsets


def test_every_cut_between_records_is_detected(made):
    """TFRecord itself sees nothing wrong with such a file."""
    config, found = made
    for split in found.shards.values():
        for shard in split:
            path = os.path.join(found.directory, shard.file)
            with open(path, "rb") as file:
                content = file.read()
            offsets = record_offsets(content)
            assert len(offsets) > 2  # two records or more
            for offset in offsets:
                replace(path, content[:offset])
                with pytest.raises(CorruptError, match=f"{path} has {offset} bytes"):
                    corpus.read(config)
                with pytest.raises(CorruptError, match=path):
                    found.load(shard)
            replace(path, content)


def test_every_missing_or_exchanged_file_is_an_error(made, tmp_path):
    config, found = made
    for name in sorted(os.listdir(found.directory)):
        if name == "manifest.json":
            continue  # without it, there is no corpus
        path = os.path.join(found.directory, name)
        kept = shutil.move(path, tmp_path / name)
        with pytest.raises(CorruptError, match=f"{path} is missing"):
            corpus.read(config)
        shutil.move(kept, path)
    shards = [shard.file for split in found.shards.values() for shard in split]
    paths = [os.path.join(found.directory, name) for name in shards[:2]]
    first, second = (pathlib.Path(path).read_bytes() for path in paths)
    replace(paths[0], second)
    with pytest.raises(CorruptError, match=paths[0]):
        corpus.read(config)
    replace(paths[0], first)
    assert corpus.read(config) == found


def test_commands_end_with_78(trained, tmp_path):
    """They write nothing."""
    corpus_dir = shutil.copytree(trained / "corpus", tmp_path / "corpus")
    path = corpus_dir / "train-00000-of-00001"
    flip(path)
    config = small_run(trained, **{"data.corpus_dir": corpus_dir})
    for module, *arguments in (
        ("bert_jax.prepare", *config),
        ("bert_jax.train", *config, f"--workdir={tmp_path / 'run'}"),
        (
            "bert_jax.evaluate",
            f"--workdir={trained / 'run'}",
            f"--corpus_dir={corpus_dir}",
        ),
    ):
        result = run(module, *arguments)
        assert result.returncode == 78, result.stderr
        assert "Traceback" not in result.stderr
        line = result.stderr.splitlines()[-1]  # before it, TensorFlow's own words
        assert f"{path} is corrupt: its sha256 is not" in line
        assert "is not the one in the manifest; prepare the corpus again" in line
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
