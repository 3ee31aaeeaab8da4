"""Tests of files on disks and in buckets."""

import errno
import os
import pathlib
import uuid

import pytest

from bert_jax import storage
from bert_jax.errors import ConfigError, MissingObjectError
from tests.corpora import interrupted


@pytest.fixture(scope="module")
def s3_server():
    from moto.server import ThreadedMotoServer  # which takes a second

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_server, monkeypatch):
    """The URL of a bucket of S3 that this process can write to."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    url = f"s3://b{uuid.uuid4().hex}"
    storage.file_system(url).mkdir(url)
    return url


@pytest.fixture(params=["disk", "gs", "s3"])
def directory(request, tmp_path):
    if request.param == "gs":
        request.getfixturevalue("bucket")
        return "gs://b/parent"
    if request.param == "s3":
        return request.getfixturevalue("s3_bucket") + "/parent"
    return f"{tmp_path}/parent"


def test_ranges_of_a_file(directory):
    storage.make_directory(directory)
    path = f"{directory}/file"
    storage.write(path, b"0123456789")
    found = storage.read_ranges(path, [(7, 10), (4, 4), (4, 6), (10, 10)])
    assert found == [b"789", b"", b"45", b""]
    assert storage.read_ranges(path, [(0, 0)]) == [b""]
    with pytest.raises(EOFError, match="file is truncated"):
        storage.read_ranges(path, [(0, 2), (8, 11)])


def test_files_of_a_directory(directory):
    assert not storage.exists(directory) and storage.files(directory) == []
    storage.make_directory(f"{directory}/sub")
    for name in ("one", "sub/two words", "sub/[three]"):
        storage.write(f"{directory}/{name}", name.encode())
    assert storage.exists(directory) and storage.exists(f"{directory}/sub")
    assert not storage.exists(f"{directory}/on")
    assert storage.read(f"{directory}/sub/two words") == b"sub/two words"
    assert set(storage.names(directory)) == {"one", "sub"}
    assert storage.files(directory) == ["one", "sub/[three]", "sub/two words"]
    assert storage.glob(f"{directory}/sub/tw*") == [f"{directory}/sub/two words"]
    paths = [f"{directory}/{name}" for name in ("one", "sub/two words", "sub")]
    found = storage.stat_all(paths)
    assert [each and each.num_bytes for each in found] == [3, 13, None]
    storage.move_directory(f"{directory}/sub", f"{directory}/moved")
    assert storage.files(directory) == ["moved/[three]", "moved/two words", "one"]
    storage.remove(f"{directory}/one")
    storage.remove(f"{directory}/one")  # a missing file is no error
    storage.remove_directory(f"{directory}/moved")
    assert storage.files(directory) == []


def test_large_files_and_ranges(directory):
    storage.make_directory(directory)
    content = os.urandom(11 * 2**20)  # gcsfs uploads more than 5 MB in parts
    path = f"{directory}/large"

    def fill(tmp):
        with open(tmp, "wb") as file:
            return file.write(content)

    assert storage.write_with(path, fill) == len(content)
    assert storage.files(directory) == ["large"]
    with storage.Reader(path) as file:
        assert file.read(10) == content[:10]
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]
        file.seek(2**20)
        assert file.read(2**20) == content[2**20 :][: 2**20]
    with storage.local_copy(path) as copy:
        assert pathlib.Path(copy).read_bytes() == content


def test_download_and_upload(bucket, tmp_path):
    for name in ("a", "sub/b", "SHA256SUMS"):
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_text(name)
    storage.upload(str(tmp_path / "from"), "gs://b/x/y", last=["SHA256SUMS"])
    uploads = [line for line in bucket.requests if line.startswith("POST")]
    newest = max(bucket.generations, key=bucket.generations.get)
    assert len(uploads) == 3 and newest == "b/x/y/SHA256SUMS"
    storage.download("gs://b/x/y", str(tmp_path / "to"), lambda name: name != "a")
    assert storage.files(str(tmp_path / "to")) == ["SHA256SUMS", "sub/b"]


@pytest.mark.parametrize("directory", ["gs", "s3"], indirect=True)
def test_one_of_two_processes_creates_an_object(directory):
    path = f"{directory}/lock"
    assert storage.create(path, b"first")
    assert not storage.create(path, b"second")
    assert storage.create(path, b"first")  # a retry after a lost answer
    assert storage.read(path) == b"first"


def test_a_missing_bucket_is_a_config_error(bucket):
    for do in (storage.read, storage.stat, lambda path: storage.write(path, b"")):
        with pytest.raises(
            ConfigError, match="gs://none/x: there is no such file or b"
        ):
            do("gs://none/x")
    assert not storage.exists("gs://none/x")


def test_a_missing_object_has_an_error_of_its_own(bucket):
    with pytest.raises(MissingObjectError, match="gs://b/x: there is no such file or"):
        storage.read("gs://b/x")
    storage.remove_directory("gs://b/none")


def test_write_is_atomic(tmp_path):
    path = str(tmp_path / "file")
    with interrupted(os, "replace"):
        storage.write(path, b"content")
    assert os.listdir(tmp_path) == []
    storage.write(path, b"content")
    assert storage.read(path) == b"content"


def test_failed_write_is_retried(tmp_path, monkeypatch, slept, capsys):
    path, seen, replace = str(tmp_path / "file"), [], os.replace

    def fail_once(tmp, path):
        seen.append(tmp)
        if len(seen) == 1:
            raise OSError(errno.EIO, "Input/output error")
        replace(tmp, path)

    monkeypatch.setattr(os, "replace", fail_once)
    storage.write(path, b"content")
    assert storage.read(path) == b"content" and os.listdir(tmp_path) == ["file"]
    assert len(set(seen)) == 2
    assert all(storage.is_temporary(os.path.basename(tmp)) for tmp in seen)


def test_a_transient_error_does_not_hide_a_file(tmp_path, monkeypatch, slept, capsys):
    (tmp_path / "file").touch()
    stat, errors = os.stat, [OSError(errno.ESTALE, "Stale file handle")] * 2

    def fail_twice(path, **kwargs):
        if errors and str(path).startswith(str(tmp_path)):
            raise errors.pop()
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", fail_twice)
    assert storage.exists(str(tmp_path / "file")) and len(slept) == 2
    assert not storage.exists(str(tmp_path / "none"))
    assert not storage.exists(str(tmp_path / "file" / "none"))
