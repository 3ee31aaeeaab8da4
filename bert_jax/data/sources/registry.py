"""The kinds of sources, and the syntax of a source spec.

embedded:                       docstrings of the installed Python and its packages
text:GLOB                       plain text; see layout.py for how it is read
files:GLOB                      plain text, one document per file
jsonl:GLOB#field.path           JSON Lines, one document per object, in one field
parquet:GLOB[#column.path]      Parquet, one document per row, in one column
wikiextractor:GLOB              WikiExtractor output, <doc ...> ... </doc> or JSON
hf:OWNER/NAME[/CONFIG][:SPLIT][#column.path]
                                Parquet on the Hugging Face Hub; see hub_datasets.py
tfds:NAME[:SPLIT][#field.path]  a text dataset of TensorFlow Datasets
"""

import os
import re

from bert_jax.data.sources.embedded import Embedded
from bert_jax.data.sources.hub_datasets import HubDataset
from bert_jax.data.sources.json_lines import JsonLines
from bert_jax.data.sources.kind import DatasetSource, FileSource
from bert_jax.data.sources.parquet import Parquet
from bert_jax.data.sources.plain import Files, Text
from bert_jax.data.sources.tfds import TensorFlowDataset
from bert_jax.data.sources.wikiextractor import WikiExtractor
from bert_jax.errors import ConfigError

KINDS: dict[str, type[DatasetSource | FileSource]] = {
    kind.name: kind
    for kind in (
        Embedded,
        Text,
        Files,
        JsonLines,
        Parquet,
        WikiExtractor,
        HubDataset,
        TensorFlowDataset,
    )
}


def parse(spec: str) -> DatasetSource | FileSource:
    """Returns the source of a spec."""
    name, colon, argument = spec.partition(":")
    kind = KINDS.get(name)
    if kind is None or not colon or not (argument or kind.form == f"{name}:"):
        forms = ", ".join(each.form for each in KINDS.values())
        raise ConfigError(
            f"config.data.sources has {spec!r}; a source is one of {forms}{_hint(spec)}"
        )
    return kind(spec)


def _hint(spec: str) -> str:
    """Returns the end of the error for a spec that may be a path or a dataset."""
    if not spec or ":" in spec or spec in KINDS:
        return ""
    if os.path.isdir(spec):
        return f"; for these files, write text:{spec.rstrip('/')}/**/*.txt"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec) and not os.path.exists(spec):
        return f"; for a dataset on the Hub, write hf:{spec}"
    return f"; for files, write text:{spec}"
