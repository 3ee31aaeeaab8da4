"""Tests of bert_jax.data.corpus.file_systems."""

import os

import psutil
import pytest

from bert_jax.data.corpus import file_systems

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


@pytest.fixture(autouse=True)
def mounts(tmp_path, monkeypatch):
    """Replaces the mounts of this machine, as psutil reads them, by MOUNTS."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


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
def test_network_and_fuse_mounts(monkeypatch, path, expected):
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    assert file_systems.is_networked(path) is expected


def test_links_are_followed(tmp_path):
    (tmp_path / "link").symlink_to("/mnt/lustre/corpora")
    assert file_systems.is_networked(str(tmp_path / "link" / "base"))


def test_the_mounts_of_this_machine_can_be_read(monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/proc")
    assert file_systems._kind("/proc/self") == "proc"
