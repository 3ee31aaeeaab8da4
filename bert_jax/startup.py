"""What a run does before its first step ends, and how long that took."""

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax

import bert_jax
from bert_jax.errors import ConfigError


class Startup:
    """The seconds of each part of a start, in the order they came."""

    def __init__(self):
        self.began = bert_jax.BEGAN  # in seconds since 1970
        self._seconds = {"import": time.time() - self.began}
        self._marked = time.perf_counter()
        self._is_over = False

    def mark(self, part: str) -> None:
        """Says that the time since the mark before this one went to a part."""
        if not self._is_over:
            now = time.perf_counter()
            self._seconds[part] = now - self._marked
            self._marked = now

    def finish(self, part: str, result: Any, say: Callable[[str], None]) -> None:
        """Waits for the last part's arrays and tells it all, once."""
        if not self._is_over:
            jax.block_until_ready(result)
            self.mark(part)
            self._is_over = True
            say(self.words())

    def words(self) -> str:
        parts = (f"{part} {seconds:.1f} s" for part, seconds in self._seconds.items())
        return f"start:  {', '.join(parts)}"


def keep_compiled(compilation_cache_dir: str) -> None:
    """Makes JAX keep compiled programs in config.compilation_cache_dir, if given.

    What is kept there is run as code: nobody else may be able to write to it.

    Raises:
      ConfigError: when nothing can be written there.
    """
    if compilation_cache_dir:
        directory = os.path.expanduser(compilation_cache_dir)
        try:
            os.makedirs(directory, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise ConfigError(
                f"config.compilation_cache_dir={directory!r}: {error.strerror}; give a"
                " directory that can be written, or '' to keep nothing"
            ) from None
        jax.config.update("jax_compilation_cache_dir", directory)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
