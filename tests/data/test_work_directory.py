"""Tests of bert_jax.data.work_directory."""

import os

import pytest

from bert_jax.config import ConfigError
from bert_jax.data import work_directory


@pytest.fixture
def corpus_dir(tmp_path):
    return str(tmp_path / "corpus")


def leave(corpus_dir, made_for, *names, shards=()):
    """Leaves files as a killed process does."""
    with pytest.raises(KeyboardInterrupt):
        with work_directory.opened(corpus_dir, made_for) as work:
            for name in names:
                touch(work, name)
            for name in shards:
                touch(corpus_dir, name)
            raise KeyboardInterrupt


def touch(directory, name):
    with open(os.path.join(directory, name), "w") as file:
        file.write(name)


def own_files(work):
    return sorted(set(os.listdir(work)) - {"lock", "made_for.json"})


def test_what_was_made_for_the_same_is_found_again(corpus_dir):
    leave(
        corpus_dir, {"key": (1, 2)}, "run-000000", "run-000001.17.tmp", shards=[SHARD]
    )
    tmp = SHARD + "." + 32 * "0" + ".tmp"
    touch(corpus_dir, tmp)
    with work_directory.opened(corpus_dir, {"key": [1, 2]}) as work:
        assert own_files(work) == ["run-000000"]
        assert sorted(os.listdir(corpus_dir)) == [SHARD, "unfinished"]


SHARD = "train-00001-of-00002"


def test_what_was_made_for_something_else_is_removed(corpus_dir):
    leave(corpus_dir, {"key": 1}, "run-000000", "tokenizer.json", shards=[SHARD])
    leave(corpus_dir, {"key": 2}, "run-000001")
    with work_directory.opened(corpus_dir, {"key": 2}) as work:
        assert own_files(work) == ["run-000001"]
        assert os.listdir(corpus_dir) == ["unfinished"]


def test_a_corpus_is_unfinished_from_its_first_file_to_its_manifest(corpus_dir):
    assert not work_directory.is_unfinished(corpus_dir)
    leave(corpus_dir, {"key": 1}, "run-000000")
    assert work_directory.is_unfinished(corpus_dir)
    work_directory.remove(corpus_dir)
    assert not work_directory.is_unfinished(corpus_dir)
    touch(corpus_dir, SHARD)
    assert work_directory.is_unfinished(corpus_dir)
    touch(corpus_dir, "manifest.json")
    assert not work_directory.is_unfinished(corpus_dir)


def test_shards_of_others_are_not_touched(corpus_dir):
    os.mkdir(corpus_dir)
    touch(corpus_dir, SHARD)
    with pytest.raises(ConfigError, match=f"corpus_dir=.*has {SHARD} but no manifest"):
        with work_directory.opened(corpus_dir, {}):
            pass
    assert os.listdir(corpus_dir) == [SHARD]


def test_only_one_process_at_a_time(corpus_dir):
    with work_directory.opened(corpus_dir, {}) as work:
        touch(work, "run-000000")
        with pytest.raises(ConfigError, match="being prepared by another process"):
            with work_directory.opened(corpus_dir, {}):
                pass
        assert own_files(work) == ["run-000000"]
    with work_directory.opened(corpus_dir, {}) as work:
        assert own_files(work) == ["run-000000"]


def test_a_corpus_that_another_process_has_just_finished_is_not_touched(
    corpus_dir, monkeypatch
):
    """It had the lock when we looked, and was done when we got it."""
    leave(corpus_dir, {}, "run-000000", shards=[SHARD])
    makedirs = os.makedirs

    def finished_meanwhile(*args, **kwargs):
        touch(corpus_dir, "manifest.json")
        work_directory.remove(corpus_dir)
        makedirs(*args, **kwargs)

    monkeypatch.setattr(os, "makedirs", finished_meanwhile)
    with pytest.raises(ConfigError, match="prepared by another process in the meant"):
        with work_directory.opened(corpus_dir, {}):
            pass
    assert sorted(os.listdir(corpus_dir)) == ["manifest.json", SHARD]


@pytest.mark.parametrize("was_there", [False, True])
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_mistake_of_the_users_leaves_nothing(corpus_dir, was_there, was_killed):
    if was_there:
        os.mkdir(corpus_dir)
        touch(corpus_dir, "notes.txt")
    if was_killed:
        leave(corpus_dir, {}, "run-000000", shards=[SHARD])
    with pytest.raises(ConfigError, match="no text"):
        with work_directory.opened(corpus_dir, {}) as work:
            touch(work, "run-000001")
            touch(corpus_dir, "train-00000-of-00002")
            raise ConfigError("no text")
    if was_there:
        assert os.listdir(corpus_dir) == ["notes.txt"]
    else:
        assert not os.path.exists(corpus_dir)


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    corpus_dir = str(tmp_path / "file" / "corpus")
    with pytest.raises(ConfigError, match="corpus_dir='.*/file/corpus' cannot be wri"):
        with work_directory.opened(corpus_dir, {}):
            pass


def test_the_work_for_a_bucket_is_done_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(work_directory.tempfile, "gettempdir", lambda: str(tmp_path))
    with work_directory.opened("ram://bucket/corpus", {}) as work:
        assert os.path.dirname(work) == str(tmp_path)
        with work_directory.opened("ram://bucket/other", {}) as other:
            assert other != work
    work_directory.remove("ram://bucket/corpus")
    assert not os.path.exists(work) and os.path.exists(other)
