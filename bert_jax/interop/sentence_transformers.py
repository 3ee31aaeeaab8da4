"""Reads and writes the files that configure the pooling of sentence-transformers.

The keys are those that every version since 2 reads; version 6 renamed some of them.
"""

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError
from bert_jax.interop import files
from bert_jax.small_files import read_json, write_json

MODULES_FILE = "modules.json"
POOLING_DIRECTORY = "1_Pooling"
SETTINGS_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
_MODE = "pooling_mode_"
MEAN = f"{_MODE}mean_tokens"
_TYPE = "sentence_transformers.models."


def write(directory: Path, hidden_size: int, sequence_length: int) -> None:
    """Adds files to a model's directory for embeddings as in `BertForSimilarity`."""
    parts = (("", "Transformer"), (POOLING_DIRECTORY, "Pooling"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_TYPE}{name}"}
        for i, (path, name) in enumerate(parts)
    ]
    write_json(directory / MODULES_FILE, modules)
    write_json(
        directory / SETTINGS_FILE,
        {"max_seq_length": sequence_length, "do_lower_case": False},  # tokenizer.json
    )
    write_json(
        directory / PROMPTS_FILE,
        {"similarity_fn_name": "cosine", "prompts": {}, "default_prompt_name": None},
    )
    (directory / POOLING_DIRECTORY).mkdir()
    write_json(
        directory / POOLING_DIRECTORY / "config.json",
        {"word_embedding_dimension": hidden_size, MEAN: True},
    )


def is_dual_encoder(directory: Path) -> bool:
    """Returns whether a directory defines embeddings as in `BertForSimilarity`."""
    path = directory / MODULES_FILE
    if not path.is_file():
        return False
    text = files.read(directory, MODULES_FILE)
    try:
        modules = json.loads(text)
        types = [module["type"].rpartition(".")[2] for module in modules]
        paths = [module["path"] for module in modules]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(f"{path} is corrupt; download it again") from None
    settings = files.optional_json(directory, PROMPTS_FILE)
    similarities: list[Any] = [None, "cosine"]
    if types[-1:] == ["Normalize"]:  # does not change cosines
        types.pop()
        similarities.append("dot")
    if settings.get("similarity_fn_name") not in similarities:
        raise ConfigError(
            f"{directory / PROMPTS_FILE} has similarity_fn_name="
            f"{settings['similarity_fn_name']!r}; only 'cosine' is supported"
        )
    if types == ["Transformer", "Pooling"] and paths[0] == "":
        pooling = read_json(files.nested_file(directory, f"{paths[1]}/config.json"))
        has_prompt = pooling.get("include_prompt", True) or not prompt(directory)
        if _modes(pooling) == ["mean"] and has_prompt:
            return True
    raise ConfigError(
        f"{path} does not define plain mean pooling; only a Transformer and a Pooling"
        " with mode mean over all tokens are supported"
    )


def sequence_length(directory: Path) -> int | None:
    """Returns the maximum number of tokens in sentence_bert_config.json, or None."""
    length = files.optional_json(directory, SETTINGS_FILE).get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        path = directory / SETTINGS_FILE
        raise ConfigError(f"{path} has max_seq_length={length!r}; download it again")
    return length


def lowercases(directory: Path) -> bool:
    """Returns whether sentence-transformers lower-cases text before the tokenizer."""
    return bool(files.optional_json(directory, SETTINGS_FILE).get("do_lower_case"))


def prompt(directory: Path) -> str:
    """Returns the text that sentence-transformers puts before every text."""
    settings = files.optional_json(directory, PROMPTS_FILE)
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts")
    if name is None:
        return ""
    found = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(found, str):
        raise ConfigError(
            f"{directory / PROMPTS_FILE} has default_prompt_name={name!r}, which is not"
            " in its prompts; download it again"
        )
    return found


def _modes(pooling: dict[str, Any]) -> list[Any]:
    mode = pooling.get("pooling_mode")
    if mode is not None:
        return mode if isinstance(mode, list) else [mode]
    given = [key for key in pooling if key.startswith(_MODE)]
    found = [key for key in given if pooling[key]]
    return ["mean"] if found in ([], [MEAN]) else found
