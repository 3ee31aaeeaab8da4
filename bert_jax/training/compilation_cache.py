"""Keeps compiled programs on disk for the next start: config.compilation_cache_dir.

Programs in a cache are run as code. The default directory, beside the workdir, is
therefore used only if the owners and modes of it and of all directories above it let no
other user but root write to it or replace it. A directory that the config or JAX's
variable names is the user's own choice, see `_check`.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import stat
import tempfile
from pathlib import Path
from typing import Any

import jax

from bert_jax import storage
from bert_jax.errors import ConfigError

AUTO = "auto"
DIRECTORY = ".compilation_cache"
# The libraries that compile, as far as they are installed.
LIBRARIES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda13-pjrt")
WRITABLE = stat.S_IWGRP | stat.S_IWOTH  # by a group or all users

_JAX_CONFIG: Any = jax.config  # JAX defines its attributes at import time


def enable(compilation_cache_dir: str, workdir: str) -> str:
    """Enables JAX's compilation cache, and returns a line with its directory.

    Args:
      compilation_cache_dir: a directory; "" keeps none, whatever
        JAX_COMPILATION_CACHE_DIR names; "auto" is the directory of this variable, which
        is not checked, or else DIRECTORY in the parent of the workdir.
      workdir: the workdir of the run.

    Raises:
      ConfigError: when a directory other than "auto" cannot be written to, or all users
        can write to it.
    """
    directory, reason = compilation_cache_dir, ""
    of_jax = _JAX_CONFIG.jax_compilation_cache_dir
    if directory == AUTO and of_jax:
        return f"cache:  {of_jax}"
    if directory == AUTO:
        directory, reason = _beside(workdir)
    elif directory:
        directory = os.path.expanduser(directory)
        _check(directory)
    jax.config.update("jax_compilation_cache_dir", directory or None)
    if not directory:
        return f"cache:  none{reason}"
    if not storage.is_remote(directory):
        # Also the initializers of weights: each compiles in less than a second, and all
        # of them take several. From a bucket, reading one may take longer.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return f"cache:  {directory}"


def _beside(workdir: str) -> tuple[str, str]:
    """Returns the directory for "auto", or "" and the reason why there is none.

    A run does not need a cache, so that no problem with the directory is an error. The
    path has no links: other users could change where they lead.
    """
    if storage.is_remote(workdir):
        return "", ", because the workdir is in a bucket"
    cache = Path(os.path.realpath(Path(workdir).absolute().parent)) / DIRECTORY
    directory = cache / _digest()
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        risk = _risk_above(cache) or _risk(cache) or _risk(directory)
        if not risk:
            tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        risk = f"{directory} cannot be written to ({error.strerror})"
    return ("", f", because {risk}") if risk else (str(directory), "")


def _risk_above(path: Path) -> str:
    """Returns how another user could replace a path without links; "" if none can.

    Every directory above must belong to this user or root. A group or all users may
    write to it if it is sticky, as /tmp is: only owners can then rename and remove.
    """
    for directory in path.parents:
        found = directory.lstat()
        if found.st_uid not in (0, os.geteuid()):
            return f"{directory} belongs to another user"
        if found.st_mode & WRITABLE and not found.st_mode & stat.S_ISVTX:
            return f"other users can write to {directory}"
    return ""


def _risk(path: Path) -> str:
    """Creates a directory with mode 0700; returns the reason not to trust it, or "".

    A directory that others can only read gets mode 0700. One that they can write to
    keeps its mode: its programs may be theirs.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if found.st_mode & WRITABLE:
        return f"other users can write to {path}"
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(0o700)
    return ""


def _check(directory: str) -> None:
    """Creates and checks a directory that the config names.

    Raises:
      ConfigError: see `enable`.
    """
    try:
        if storage.is_remote(directory):
            storage.write(f"{directory}/.writable", b"")
            return
        os.makedirs(os.path.dirname(os.path.abspath(directory)), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        tempfile.TemporaryFile(dir=directory).close()
        mode = os.stat(directory).st_mode
    except OSError as error:
        raise ConfigError(
            f"config.compilation_cache_dir={directory!r}: {error.strerror}; give a"
            " writable directory, or '' to disable the cache"
        ) from None
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"config.compilation_cache_dir={directory!r}: all users can write to it,"
            f" and its programs are run as code; chmod o-w {directory}, or give another"
            " directory"
        )


def _digest() -> str:
    """Returns a digest of what compiles and of the CPU, for a directory name.

    JAX's own keys have the versions, but not the features of a CPU, which differ
    between the hosts of a shared directory.
    """
    found = [platform.python_version(), platform.machine(), _cpu_features()]
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def _cpu_features() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return line.strip()
    return ""
