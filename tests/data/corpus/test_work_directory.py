"""Tests of bert_jax.data.corpus.work_directory."""

import functools
import json
import os
import shutil

import psutil
import pytest

from bert_jax import storage
from bert_jax.data.corpus import work_directory
from bert_jax.errors import ConfigError


@pytest.fixture
def corpus_dir(tmp_path):
    return str(tmp_path / "corpus")


def leave(corpus_dir, made_for, *names, shards=(), scratch_dir=None):
    """Writes the files of a stage and a shard, as left by a killed process."""
    with pytest.raises(KeyboardInterrupt):
        with work_directory.opened(corpus_dir, scratch_dir) as work:
            add(corpus_dir, work, made_for, *names, shards=shards)
            raise KeyboardInterrupt
    return work


def add(corpus_dir, work, made_for, *names, shards=()):
    clear = functools.partial(work_directory.remove_shards, corpus_dir)
    directory = work_directory.stage(work, "runs", made_for, on_reset=clear)
    for name in names:
        touch(directory, name)
    for name in shards:
        touch(corpus_dir, name)


def refused(message, *arguments):
    with pytest.raises(ConfigError, match=message):
        with work_directory.opened(*arguments):
            pass


def touch(directory, name):
    with open(os.path.join(directory, name), "w") as file:
        file.write(name)


def own_files(work):
    return sorted(set(os.listdir(os.path.join(work, "runs"))) - {"settings.json"})


TMP = "." + 32 * "0" + ".tmp"
SHARD = "train-00001-of-00002"


def test_content_for_the_same_settings_is_reused(corpus_dir):
    leave(corpus_dir, {"key": (1, 2)}, "run-0", "run-1" + TMP, shards=[SHARD])
    touch(corpus_dir, SHARD + TMP)
    with work_directory.opened(corpus_dir) as work:
        add(corpus_dir, work, {"key": [1, 2]})
        assert own_files(work) == ["run-0"]
        assert sorted(os.listdir(corpus_dir)) == [SHARD, "unfinished"]


def test_content_that_fits_other_settings_is_kept(corpus_dir):
    def stage(work, key, compatible=None):
        work_directory.stage(work, "runs", {"key": key}, compatible=compatible)
        return own_files(work)

    leave(corpus_dir, {"key": 1}, "run-0")
    with work_directory.opened(corpus_dir) as work:
        assert stage(work, 2, {"key": 1}) == ["run-0"]
        assert stage(work, 2) == ["run-0"]
        assert stage(work, 3, {"key": 1}) == []


def test_shards_of_other_work_are_not_touched(corpus_dir):
    os.mkdir(corpus_dir)
    touch(corpus_dir, SHARD)
    refused(f"corpus_dir=.*has {SHARD} but no manifest", corpus_dir)
    assert os.listdir(corpus_dir) == [SHARD]


def test_only_one_process_at_a_time(corpus_dir):
    with work_directory.opened(corpus_dir) as work:
        add(corpus_dir, work, {}, "run-0")
        refused("being prepared by another process", corpus_dir)
        assert own_files(work) == ["run-0"]
    with work_directory.opened(corpus_dir) as work:
        assert own_files(work) == ["run-0"]


def test_a_corpus_that_another_process_has_just_finished_is_not_touched(
    corpus_dir, monkeypatch
):
    """The other process finishes while this one waits for the lock."""
    leave(corpus_dir, {}, "run-0", shards=[SHARD])
    makedirs = os.makedirs

    def finished_meanwhile(*args, **kwargs):
        touch(corpus_dir, "manifest.json")
        work_directory.remove(corpus_dir)
        makedirs(*args, **kwargs)

    monkeypatch.setattr(os, "makedirs", finished_meanwhile)
    refused("has just been prepared by another process", corpus_dir)
    assert sorted(os.listdir(corpus_dir)) == ["manifest.json", SHARD]


@pytest.mark.parametrize("was_there", [False, True])
def test_an_error_before_any_work_leaves_nothing(corpus_dir, was_there):
    if was_there:
        os.mkdir(corpus_dir)
        touch(corpus_dir, "notes.txt")
    with pytest.raises(ConfigError, match="no text"):
        with work_directory.opened(corpus_dir) as work:
            add(corpus_dir, work, {})
            raise ConfigError("no text")
    if was_there:
        assert os.listdir(corpus_dir) == ["notes.txt"]
    else:
        assert not os.path.exists(corpus_dir)


def test_a_directory_that_cannot_be_made(corpus_dir, tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "here")
    for arguments, key in (((path,), "corpus_dir="), ((corpus_dir, path), "--scratch")):
        refused(f"{key}.*/file/here.* is not writable", *arguments)
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's temporary directory."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(work_directory.tempfile, "gettempdir", lambda: str(directory))
    return directory


def test_the_work_directory_of_a_bucket_is_local(temporary, capsys):
    with work_directory.opened("memory://bucket/corpus") as work:
        assert os.path.dirname(work) == str(temporary)
        assert f"scratch: {work} (" in capsys.readouterr().out
        with work_directory.opened("memory://bucket/other") as other:
            assert other != work
    work_directory.remove("memory://bucket/corpus")
    assert not os.path.exists(work) and os.path.exists(other)


def test_the_work_of_many_machines_is_shared(bucket, temporary):
    """Another machine, with another temporary directory, resumes it."""
    url = "gs://b/corpus"
    with pytest.raises(KeyboardInterrupt):
        with work_directory.opened(url, is_shared=True) as work:
            assert work == f"{url}/unfinished"
            assert not work_directory.has_work(url, work)
            directory = work_directory.stage(work, "runs", {"key": 1})
            storage.write(f"{directory}/run-0", b"run")
            storage.write(f"{url}/{SHARD}", b"shard")
            raise KeyboardInterrupt
    assert os.listdir(temporary) == [] and work_directory.has_work(url, work)
    clear = functools.partial(work_directory.remove_shards, url)
    with work_directory.opened(url, is_shared=True) as work:
        work_directory.stage(work, "runs", {"key": 1}, on_reset=clear)
        assert storage.exists(f"{work}/runs/run-0") and storage.exists(f"{url}/{SHARD}")
        work_directory.stage(work, "runs", {"key": 2}, on_reset=clear)
        assert not storage.exists(f"{work}/runs/run-0")
        assert storage.names(url) == ["lock", "unfinished"]
    work_directory.remove(url)
    assert not bucket.objects


def test_two_hosts_do_not_prepare_a_corpus_in_a_bucket_at_once(
    bucket, tmp_path, monkeypatch
):
    """Each host has a temporary directory of its own."""
    url = "gs://b/corpus"
    hosts = iter(["first", "second", "third"])
    monkeypatch.setattr(
        work_directory.tempfile, "gettempdir", lambda: str(tmp_path / host)
    )
    host = next(hosts)
    with pytest.raises(KeyError), work_directory.opened(url):
        host = next(hosts)
        refused("is being prepared by process .* on ", url)
        raise KeyError
    with work_directory.opened(url):  # a host that fails releases the lock
        assert sorted(storage.names(url)) == ["lock", "unfinished"]
    work_directory.remove(url)
    assert not bucket.objects


@pytest.fixture
def networked(monkeypatch):
    monkeypatch.setattr(work_directory, "is_networked", lambda path: True)


def test_the_scratch_directory_of_a_network_file_system_is_local(
    corpus_dir, temporary, networked
):
    leave(corpus_dir, {}, "run-0", shards=[SHARD])
    assert sorted(os.listdir(corpus_dir)) == [SHARD, "unfinished"]
    with work_directory.opened(corpus_dir) as work:
        assert os.path.dirname(work) == str(temporary)
        add(corpus_dir, work, {})
        assert own_files(work) == ["run-0"]
        refused("being prepared by another process", corpus_dir)
    work_directory.remove(corpus_dir)
    assert os.listdir(corpus_dir) == [SHARD] and os.listdir(temporary) == []


def test_a_given_scratch_directory(corpus_dir, tmp_path, capsys):
    scratch_dir = str(tmp_path / "local" / "disk")
    left = leave(corpus_dir, {}, "run-0", shards=[SHARD], scratch_dir=scratch_dir)
    assert os.path.dirname(left) == scratch_dir
    with work_directory.opened(corpus_dir, scratch_dir) as work:
        assert work == left and own_files(work) == ["run-0"]
        assert SHARD in os.listdir(corpus_dir)
    assert capsys.readouterr().out.count(f"scratch: {work} (") == 2
    work_directory.remove(corpus_dir, scratch_dir)
    assert os.listdir(scratch_dir) == [] and os.listdir(corpus_dir) == [SHARD]


# ------------------------------------------------- directories that come from elsewhere


@pytest.fixture
def precious(tmp_path):
    """A directory of the user, which is not changed in any way."""
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "thesis.txt").write_text("precious")
    yield str(directory)
    assert os.listdir(directory) == ["thesis.txt"]


def test_no_directory_that_a_file_names_is_removed(corpus_dir, precious):
    os.makedirs(f"{corpus_dir}/unfinished")
    for name in ("facts.json", "work.json"):
        names = {key: precious for key in ("scratch", "corpus", "id")}
        with open(f"{corpus_dir}/unfinished/{name}", "w") as file:
            json.dump(names | {"made_directory": True}, file)
    with pytest.raises(ConfigError, match="no text"):
        with work_directory.opened(corpus_dir):
            raise ConfigError("no text")
    work_directory.remove(corpus_dir)


def test_work_is_neither_in_nor_behind_a_link(corpus_dir, precious):
    leave(corpus_dir, {}, "run-0")
    os.symlink(precious, f"{corpus_dir}/unfinished/shards")
    refused("unfinished/shards is a link; remove .*/unf", corpus_dir)
    shutil.rmtree(f"{corpus_dir}/unfinished")
    os.symlink(precious, f"{corpus_dir}/unfinished")
    refused("/unfinished is a link; remove it", corpus_dir)
    work_directory.remove(corpus_dir)
    os.remove(f"{corpus_dir}/unfinished")  # as the message says
    with work_directory.opened(corpus_dir):
        pass


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_copy_of_an_unfinished_corpus_has_its_own_work(
    corpus_dir, tmp_path, is_elsewhere
):
    scratch_dir = str(tmp_path / "scratch") if is_elsewhere else None
    work = leave(corpus_dir, {}, "run-0", shards=[SHARD], scratch_dir=scratch_dir)
    copy = str(tmp_path / "copy")
    shutil.copytree(corpus_dir, copy)
    with work_directory.opened(copy, scratch_dir) as other:
        assert other != work
        add(copy, other, {})
        assert own_files(other) == ([] if is_elsewhere else ["run-0"])
    work_directory.remove(copy, scratch_dir)
    with work_directory.opened(corpus_dir, scratch_dir) as again:
        assert again == work and own_files(work) == ["run-0"]
        assert SHARD in os.listdir(corpus_dir)


URL = "memory://bucket/corpus"


@pytest.fixture
def private(temporary):
    """The path of the private directory for URL."""
    with work_directory.opened(URL) as work:
        pass
    work_directory.remove(URL)
    assert not os.path.exists(work)
    return work


def not_used(message):
    refused(message, URL)
    work_directory.remove(URL)


def test_a_private_directory_of_another_user_is_neither_used_nor_removed(
    private, monkeypatch
):
    leave(URL, {}, "run-0")
    path = lambda *_: private  # noqa: E731, as another user would have named it
    monkeypatch.setattr(work_directory, "_scratch_path", path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    not_used(f"{private} belongs to another user; remove it")
    assert own_files(private) == ["run-0"]


def test_a_private_directory_without_its_mark_is_not_used(private, precious):
    os.symlink(precious, private)
    not_used(f"{private} is a link; remove it")
    os.remove(private)
    shutil.copytree(precious, private)
    os.chmod(private, 0o700)
    not_used(f"{private} has other files than work on {URL}; remove it")
    with open(f"{private}/work.json", "w") as file:
        json.dump({"corpus": "/another/corpus", "id": "0"}, file)
    not_used(f"{private} has other files than work on {URL}; remove it")
    assert sorted(os.listdir(private)) == ["thesis.txt", "work.json"]


# ------------------------------------------------------------------- file systems


MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
10.0.0.1@tcp:/fs /mnt/lustre lustre rw 0 0
my-bucket /mnt/bucket fuse.gcsfuse rw,nosuid,user_id=0 0 0
/dev/sdb /mnt/bucket/local ext4 rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
sshfs /mnt/two\040words fuse rw 0 0
fuse-overlayfs /var/lib fuse.fuse-overlayfs rw 0 0
server:/a /twice nfs rw 0 0
tmpfs /twice tmpfs rw 0 0
""".lstrip()


NETWORKED = {
    *("/mnt/lustre", "/mnt/lustre/corpora/base", "/mnt/bucket/corpus"),
    *("/home/user/corpus", "/mnt/two words/corpus"),
}
LOCAL = {
    *("/", "/data/corpus", "/mnt/lustre2/corpora", "/mnt/bucket/local/corpus"),
    *("/var/lib/corpus", "/twice/corpus"),
}


def test_network_and_fuse_mounts(tmp_path, monkeypatch):
    """psutil reads MOUNTS instead of the mounts of this machine."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert set(filter(work_directory.is_networked, NETWORKED | LOCAL)) == NETWORKED
