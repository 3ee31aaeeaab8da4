"""Detects network file systems."""

import os

import psutil

# Network file systems, on which many small reads and renames are slow.
_NETWORK = {
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fhgfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "panfs",
    "smb3",
    "wekafs",
}
# FUSE file systems on a local disk. Any other one may be a mounted bucket.
_LOCAL_FUSE = {"fuse.fuse-overlayfs", "fuse.ntfs-3g"}


def is_networked(path: str) -> bool:
    """Returns whether a path is on a network or FUSE file system, such as a bucket."""
    kind = _kind(os.path.realpath(path))
    is_fuse = kind.partition(".")[0] == "fuse" and kind not in _LOCAL_FUSE
    return kind in _NETWORK or is_fuse


def _kind(path: str) -> str:
    """Returns the type of the file system of an absolute path, or "" if unknown."""
    best, kind = -1, ""
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= best:  # a later mount hides an earlier one
            best, kind = len(point), mount.fstype
    return kind
