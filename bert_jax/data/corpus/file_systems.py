"""Detects network file systems."""

import os
import re

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
MOUNTS = "/proc/self/mountinfo"


def is_networked(path: str) -> bool:
    """Returns whether a path is on a network or FUSE file system, such as a bucket.

    Returns False on systems without MOUNTS.
    """
    kind = _kind(os.path.realpath(path))
    is_fuse = kind.partition(".")[0] == "fuse" and kind not in _LOCAL_FUSE
    return kind in _NETWORK or is_fuse


def _kind(path: str) -> str:
    """Returns the type of the file system of an absolute path, or "" if unknown."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read().splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in mounts:
        # "36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda rw"
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split(" ")[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= best:  # a later mount hides an earlier one
            best, kind = len(point), after.split(" ")[0]
    return kind


def _unescaped(point: str) -> str:
    """Decodes the octal escapes of white space in a mount point."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
