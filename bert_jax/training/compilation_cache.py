"""Keeps compiled programs on disk for the next start: config.compilation_cache_dir.

Programs in a cache are run as code, so that a directory is used only if no other user
can write to it. The directory in JAX's own variable is not checked.
"""

import contextlib
import hashlib
import os
import platform
import tempfile
from typing import Any

import jax

from bert_jax import storage
from bert_jax.errors import ConfigError

AUTO = "auto"

_JAX_CONFIG: Any = jax.config  # JAX defines its attributes at import time


def enable(compilation_cache_dir: str) -> str:
    """Enables JAX's compilation cache, and returns a line with its directory.

    Args:
      compilation_cache_dir: a directory; "" keeps none, whatever
        JAX_COMPILATION_CACHE_DIR names; "auto" is the directory of this variable, or
        else bert_jax in XDG_CACHE_HOME, which is ~/.cache by default.

    Raises:
      ConfigError: when a directory other than "auto" cannot be written to, or other
        users can write to it.
    """
    directory, reason = compilation_cache_dir, ""
    of_jax = _JAX_CONFIG.jax_compilation_cache_dir
    is_auto = directory == AUTO
    if is_auto and of_jax:
        return f"cache:  {of_jax}"
    try:
        if is_auto:
            directory = _default()
        elif storage.is_remote(directory):
            storage.write(f"{directory}/.writable", b"")
        elif directory:
            os.makedirs(os.path.dirname(os.path.abspath(directory)), exist_ok=True)
            storage.private_directory(directory)
            tempfile.TemporaryFile(dir=directory).close()
    except (OSError, ConfigError) as error:
        if not is_auto:
            raise ConfigError(
                f"config.compilation_cache_dir: {error}; give another directory, or ''"
                " to disable the cache"
            ) from None
        directory, reason = "", f", because {error}"  # a run does not need a cache
    jax.config.update("jax_compilation_cache_dir", directory or None)
    if not directory:
        return f"cache:  none{reason}"
    if not storage.is_remote(directory):
        # Programs of any compile time: the initializers of weights together take
        # seconds. Not in buckets, where reading is slower.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return f"cache:  {directory}"


def _default() -> str:
    """Creates the directory for "auto"."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the XDG specification ignores such a value
        home = storage.parse_path("config.compilation_cache_dir", "~/.cache")
    os.makedirs(home, mode=0o700, exist_ok=True)
    private = os.path.join(home, "bert_jax")
    storage.private_directory(private)
    directory = os.path.join(private, f"compiled-{_cpu_digest()}")
    os.makedirs(directory, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()
    return directory


def _cpu_digest() -> str:
    """Returns a digest of the features of the CPU, for a directory name.

    JAX's own keys have the versions of all compilers, but not these features, which
    differ between the hosts of a shared home directory.
    """
    features = platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        features += next((x for x in file if x.startswith(("flags", "Features"))), "")
    return hashlib.sha256(features.encode()).hexdigest()[:16]
