"""Keeps compiled programs on disk for the next start: config.compilation_cache_dir.

Programs in a cache are run as code. The default directory, beside the workdir, is
therefore used only while no other user can write to it or replace it.
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

_JAX_CONFIG: Any = jax.config  # JAX defines its attributes at import time


def enable(compilation_cache_dir: str, workdir: str) -> str:
    """Makes JAX keep compiled programs, and returns a line that tells where.

    Args:
      compilation_cache_dir: a directory; "" keeps none; "auto" is DIRECTORY in the
        parent of the workdir, unless JAX_COMPILATION_CACHE_DIR names another one.
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
    if not directory:
        return f"cache:  none{reason}"
    jax.config.update("jax_compilation_cache_dir", directory)
    # Also the initializers of weights: each compiles in less than a second, and all of
    # them take several.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return f"cache:  {directory}"


def _beside(workdir: str) -> tuple[str, str]:
    """Returns the directory for "auto", or "" and the reason why there is none.

    A run does not need a cache, so that no problem with the directory is an error.
    """
    if storage.is_remote(workdir):
        return "", ", because the workdir is in a bucket"
    cache = Path(workdir).absolute().parent / DIRECTORY
    directory = cache / _digest()
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        for path in (cache, directory):
            path.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(path):
                return "", f", because other users can write to {path}"
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        return "", f", because {directory} cannot be written to ({error.strerror})"
    return str(directory), ""


def _is_private(path: Path) -> bool:
    """Returns whether only this user and root can write to a directory or replace it.

    A directory above it may be writable by a group, and by all users if it is sticky,
    as /tmp is.
    """
    found = path.lstat()  # not that of a link's target
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    above = [each.stat().st_mode for each in path.resolve().parents]
    return all(mode & stat.S_ISVTX or not mode & stat.S_IWOTH for mode in above)


def _check(directory: str) -> None:
    """Makes a directory that the user has named.

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
