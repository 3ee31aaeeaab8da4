"""Tests of bert_jax.data.corpus.file_systems."""

import os

import pytest

from bert_jax.data.corpus import file_systems

MOUNTINFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:26 / /mnt/lustre rw shared:2 - lustre 10.0.0.1@tcp:/fs rw
31 22 0:27 / /mnt/bucket rw,nosuid - fuse.gcsfuse my-bucket rw,user_id=0
32 31 0:28 / /mnt/bucket/local rw - ext4 /dev/sdb rw
33 22 0:29 / /home rw shared:5 master:1 - nfs4 server:/home rw,vers=4.2
34 22 0:30 / /mnt/two\040words rw - fuse sshfs rw
35 22 0:31 / /var/lib rw - fuse.fuse-overlayfs fuse-overlayfs rw
36 22 0:32 / /twice rw - nfs server:/a rw
37 36 0:33 / /twice rw - tmpfs tmpfs rw
""".lstrip()


@pytest.mark.parametrize(
    "path, expected",
    [
        ("/", False),
        ("/data/corpus", False),
        ("/mnt/lustre", True),
        ("/mnt/lustre/corpora/base", True),
        ("/mnt/lustre2/corpora", False),
        ("/mnt/bucket/corpus", True),
        ("/mnt/bucket/local/corpus", False),
        ("/home/user/corpus", True),
        ("/mnt/two words/corpus", True),
        ("/var/lib/corpus", False),
        ("/twice/corpus", False),
    ],
)
def test_network_and_fuse_mounts(tmp_path, monkeypatch, path, expected):
    (tmp_path / "mountinfo").write_text(MOUNTINFO)
    monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "mountinfo"))
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert file_systems.is_networked(path) is expected


def test_links_are_followed(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("/mnt/lustre/corpora")
    (tmp_path / "mountinfo").write_text(MOUNTINFO)
    monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "mountinfo"))
    assert file_systems.is_networked(str(tmp_path / "link" / "base"))


def test_without_mountinfo_a_directory_is_local(tmp_path, monkeypatch):
    monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "nowhere"))
    assert not file_systems.is_networked(str(tmp_path))
