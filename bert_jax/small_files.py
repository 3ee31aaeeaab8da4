"""Small files: limits on their size, and JSON objects."""

import json
import math
import os
from pathlib import Path
from typing import Any

from bert_jax import storage
from bert_jax.errors import ConfigError, CorruptError

# A tokenizer.json of a million pieces is about 40 MB.
MAX_FILE_BYTES = 64 * 2**20


def check_size(path: str | os.PathLike[str]) -> None:
    """Raises ConfigError if a file is larger than any tokenizer file."""
    if storage.stat(os.fspath(path)).num_bytes > MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB, the limit for such"
            " files; download it again"
        )


def read_json(
    path: str | os.PathLike[str], remedy: str = "download it again"
) -> dict[str, Any]:
    """Reads a JSON file that holds one object.

    Raises:
      CorruptError: if the file cannot be read or is not a JSON object.
      ConfigError: if the file is larger than MAX_FILE_BYTES.
    """
    try:
        check_size(path)
        value = json.loads(storage.read(os.fspath(path)).decode())
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CorruptError(f"{path} is not a JSON object; {remedy}")
    return value


def write_json(path: str | Path, value: Any) -> None:
    """Writes JSON, with null for NaN and infinity."""
    text = json.dumps(_finite(value), indent=2) + "\n"
    storage.write(str(path), text.encode())


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
