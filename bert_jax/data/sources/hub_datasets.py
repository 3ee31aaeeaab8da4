"""Finds the Parquet files of a split of a dataset, on the Hugging Face Hub or on disk.

    hf:OWNER/NAME[@REVISION][/CONFIG][:SPLIT][#column]
    hf:DIRECTORY[/CONFIG][:SPLIT][#column]

As in `datasets.load_dataset`, a directory that exists is read instead of the Hub, and
`configs` in README.md determine the files of a split. Without them, the layout does:
SPLIT.parquet, SPLIT-*.parquet or SPLIT/*.parquet, in data/ or CONFIG/ or neither. The
default split is train. With HF_HUB_OFFLINE=1 the library's cache is read.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from bert_jax import hub, storage
from bert_jax.data.sources.kind import Source, with_sizes
from bert_jax.data.sources.parquet import Parquet
from bert_jax.errors import ConfigError

_KEY = "config.data.sources"
_CARD = "README.md"
_ON_THE_HUB = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)"
    r"(@(?P<revision>refs/(convert|pr)/[^/:]+|[^/:]+))?(/(?P<config>[^:]+))?"
)
# train.parquet, train-00000-of-00004.parquet, train-00000-of-00004-0123abcd.parquet
_FILE_OF_SPLIT = re.compile(r"(?P<split>[A-Za-z][\w.]*?)(?P<rest>-.*)?\.parquet")
_SPLITS = ("train", "validation", "test")
_NOT_PARQUET = (
    "of a dataset on the Hub, the revision refs/convert/parquet may have a Parquet"
    " copy; otherwise download it and use jsonl: or text:"
)


class HubDataset(Parquet):
    """The Parquet files of a split of a dataset; see the module docstring."""

    name = "hf"
    form = "hf:OWNER/NAME[/CONFIG][:SPLIT][#column]"

    def find(self, record: str | None) -> Source:
        paths, commit = find(self.pattern, record)
        files = with_sizes(paths)
        if len(files) < len(paths):
            missing = next(path for path in paths if not os.path.isfile(path))
            raise ConfigError(
                f"{_KEY}: {self.spec} lacks {len(paths) - len(files)} of its"
                f" {len(paths)} files, such as {missing}; download the dataset again"
            )
        return Source(self, files, commit=commit)


class Dataset(NamedTuple):
    name: str  # as in the spec, for messages
    root: str  # directory, or URL with the commit
    names: list[str]  # paths of all files, relative to the root
    commit: str | None  # on the Hub; None for a directory
    config: str | None  # if the spec names one

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{_KEY}: hf:{self.name} {problem}")


def repository(spec: str) -> str | None:
    """Returns OWNER/NAME if a spec is of a dataset on the Hub."""
    kind, _, argument = spec.partition(":")
    name = re.split("[:#]", argument, maxsplit=1)[0]
    match = _ON_THE_HUB.fullmatch(name)
    if kind != "hf" or match is None or _directory(name):
        return None
    return match["repository"]


def find(argument: str, record: str | None) -> tuple[list[str], str | None]:
    """Finds the Parquet files of a split, given by a spec without its column.

    `record` is a JSON file with the commits of revisions, which makes later calls find
    the same files; it is created if it does not exist. Returns sorted paths or hf://
    URLs, and the commit on the Hub; None for a directory.
    """
    name, _, split = argument.partition(":")
    split = split or "train"
    if local := _directory(name):
        dataset = Dataset(name, local[0], _files(local[0]), None, local[1])
    else:
        dataset = _on_the_hub(name, record)
    by_split = _declared(dataset) or _by_layout(dataset)
    if not by_split:
        raise dataset.error(f"has no Parquet file; {_NOT_PARQUET}")
    if split not in by_split:
        splits = ", ".join(sorted(by_split))
        raise dataset.error(f"has no split {split!r}; use one of: {splits}")
    names = sorted(by_split[split])
    others = [name for name in names if not name.endswith(".parquet")]
    if others or not names:
        problem = f"keeps {others[0]}" if others else f"has no file of {split!r}"
        raise dataset.error(f"{problem}; {_NOT_PARQUET}")
    return [f"{dataset.root}/{name}" for name in names], dataset.commit


# ---------------------------------------------------------------------- where it is


def _directory(name: str) -> tuple[str, str | None] | None:
    """Returns the directory and the config, if any, of a dataset on disk.

    Returns None if the dataset is not on disk; `find` then reads the Hub.
    """
    path = os.path.expanduser(name).rstrip("/")
    parent, config = os.path.split(path)
    if os.path.isdir(path):
        card = os.path.join(parent, _CARD)
        if os.path.isfile(card):
            with contextlib.suppress(Exception):  # the card may be of something else
                if config in _configs(card)[0]:
                    return parent or ".", config
        return path, None
    match = _ON_THE_HUB.fullmatch(name)
    if os.path.isdir(parent) and (match is None or match["config"]):
        return parent, config
    return None


def _files(directory: str) -> list[str]:
    """Returns the files of a directory, and of those that its links name."""
    found = storage.files(directory)
    inside = ((name, storage.files(os.path.join(directory, name))) for name in found)
    return found + [f"{name}/{file}" for name, files in inside for file in files]


def _on_the_hub(name: str, record: str | None) -> Dataset:
    from huggingface_hub import is_offline_mode

    match = _ON_THE_HUB.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"{_KEY} has 'hf:{name}', which is neither a directory nor a dataset; write"
            " hf:OWNER/NAME[@REVISION][/CONFIG][:SPLIT][#column]"
        )
    repository, revision = match["repository"], match["revision"] or "main"
    if is_offline_mode():
        return _in_cache(name, repository, revision, match["config"])
    try:
        with hub.raise_errors(f"{_KEY}: hf:{name}"):
            commit = _commit(repository, revision, record)
            root = f"{hub.SCHEME}datasets/{repository}@{commit}"
            names = storage.files(root)
    except ConnectionError as error:
        raise ConfigError(
            f"{error}; without a network, use a local copy, as hf:DIRECTORY, or set"
            " HF_HUB_OFFLINE=1 to read the library's cache"
        ) from None
    return Dataset(name, root, names, commit, match["config"])


def _commit(repository: str, revision: str, record: str | None) -> str:
    from huggingface_hub import HfApi

    recorded = {}
    if record and storage.exists(record):
        recorded = json.loads(storage.read(record))
    name = f"{repository}@{revision}"
    now = HfApi().repo_info(repository, repo_type="dataset", revision=revision).sha
    assert now is not None
    commit = recorded.setdefault(name, now)
    if commit != now:
        print(
            f"hf:{repository}: {revision} has changed to {now}; resuming with {commit},"
            " with which this corpus was begun",
            flush=True,
        )
    elif record:
        storage.write(record, json.dumps(recorded).encode())
    return commit


def _in_cache(name: str, repository: str, revision: str, config: str | None) -> Dataset:
    """Returns a dataset in the library's cache, which may lack some files."""
    from huggingface_hub import errors, get_cached_repo_tree, snapshot_download

    place: dict[str, Any] = {"repo_type": "dataset", "revision": revision}
    try:
        directory = snapshot_download(
            repository, local_files_only=True, allow_patterns=_CARD, **place
        )
    except errors.LocalEntryNotFoundError:
        raise ConfigError(
            f"{_KEY}: hf:{name} is not in the cache of huggingface_hub, and"
            " HF_HUB_OFFLINE is set; download it with: hf download"
            f" {repository} --repo-type=dataset --revision={revision}"
        ) from None
    try:
        names = [file.path for file in get_cached_repo_tree(repository, **place)]
    except errors.CachedRepoTreeNotFoundError:
        names = storage.files(directory)
    return Dataset(name, directory, names, os.path.basename(directory), config)


# ------------------------------------------------------------------------- its files

Splits = dict[str, set[str]]  # the names of the files of each split


def _declared(dataset: Dataset) -> Splits:
    """Returns the files of a config that README.md declares; {} if it has none."""
    import yaml

    path = f"{dataset.root}/{_CARD}"
    result: Splits = {}
    try:
        configs, defaults = _configs(path) if _CARD in dataset.names else ({}, [])
        if configs:
            name = _config(dataset, sorted(configs), defaults)
            for split, pattern in _patterns(configs[name]):
                matching = filter(pattern.match, dataset.names)
                result.setdefault(split, set()).update(matching)
    except ConfigError:
        raise
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{path} has metadata that is not YAML, or data_files without a split or a"
            " path; correct it, or that of a downloaded copy, which hf:DIRECTORY reads"
        ) from None
    return result


def _configs(path: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the data_files of each config of a README.md, and the default names."""
    from huggingface_hub import DatasetCard

    configs, defaults = {}, ["default"]
    card = DatasetCard(storage.read(path).decode(errors="replace"))
    for config in card.data.to_dict().get("configs") or []:
        if "data_files" in config:
            name = config.get("config_name", "default")
            configs[name] = config["data_files"]
            defaults[:0] = [name] if config.get("default") else []
    return configs, defaults


def _patterns(files: Any) -> Iterator[tuple[str, re.Pattern[str]]]:
    from fsspec.utils import glob_translate  # of huggingface_hub

    if isinstance(files, dict):
        by_split = files.items()
    elif isinstance(files, str) or all(isinstance(item, str) for item in files):
        by_split = [("train", files)]
    else:
        by_split = [(item["split"], item["path"]) for item in files]
    for split, paths in by_split:
        for pattern in [paths] if isinstance(paths, str) else paths:
            yield str(split), re.compile(glob_translate(pattern))


def _by_layout(dataset: Dataset) -> Splits:
    by_config: dict[str, Splits] = {}
    for name in dataset.names:
        if name.endswith(".parquet"):
            config, split = _config_and_split(name)
            by_config.setdefault(config, {}).setdefault(split, set()).add(name)
    if not by_config:
        return {}
    if "" in by_config and not dataset.config:
        return by_config[""]
    return by_config[_config(dataset, sorted(filter(None, by_config)), ["default"])]


def _config_and_split(name: str) -> tuple[str, str]:
    """Returns the config, "" for none, and the split of a file by its path."""
    *directories, file = name.split("/")
    if directories[:1] == ["data"]:
        del directories[0]
    match = _FILE_OF_SPLIT.fullmatch(file)
    is_named = match and (match["split"] in _SPLITS or "-of-" in (match["rest"] or ""))
    if directories and not is_named:  # SPLIT/0000.parquet
        return "/".join(directories[:-1]), directories[-1]
    return "/".join(directories), match["split"] if match else "train"


def _config(dataset: Dataset, names: list[str], preferred: list[str]) -> str:
    """Returns the config that the spec names, a preferred one, or the only one."""
    named = dataset.config
    for name in [named] if named else preferred:
        if name in names:
            return name
    if not named and len(names) == 1:
        return names[0]
    problem = f"has no config {named!r}" if named else "has several configs"
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    remedy = f"one of: {listed}" if names else "none, because it has no configs"
    raise dataset.error(f"{problem}; name {remedy}")
