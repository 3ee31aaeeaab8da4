"""The file that a command writes its results to: looked at first, there when whole."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bert_jax.errors import ConfigError


def check(path: Path, source: str) -> None:
    """Raises ConfigError when --output cannot be a file, or is --input `source`."""
    if path.absolute() == Path(source).absolute():
        raise ConfigError(f"--output={path} is --input; give another file")
    if not path.parent.is_dir():
        raise ConfigError(f"--output={path} is in a directory that does not exist")
    if path.is_dir():
        raise ConfigError(f"--output={path} is a directory; give a file")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output={path} cannot be written ({error.strerror}); give another file"
        ) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to, which becomes `path` if nothing goes wrong."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        yield tmp
        os.replace(tmp, path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
