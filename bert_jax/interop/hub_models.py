"""Finds, downloads and pushes models of the Hugging Face Hub."""

import dataclasses
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from bert_jax import hub
from bert_jax.errors import ConfigError

_MODEL = re.compile(
    r"(https://huggingface\.co/|hf://)?"
    r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(@(?P<revision>\w[\w./-]*))?"
)
_REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<branch>[\w.-]+))?")
_DEFAULT_BRANCH = "main"
# The files of a model that are read. Others may be many gigabytes of other formats.
_MODEL_FILES = (
    *("config.json", "model.safetensors", "model-*-of-*.safetensors"),
    *("model.safetensors.index.json", "SHA256SUMS", "*_curves.png"),
    *("vocab.txt", "sentencepiece.model", "tokenizer.json", "tokenizer_config.json"),
    *("added_tokens.json", "special_tokens_map.json", "decisions.json"),
    *("modules.json", "sentence_bert_config.json", "*_Pooling/config.json"),
    "config_sentence_transformers.json",
)


def is_model(path: str) -> bool:
    """Returns whether a path may be the name of a model, OWNER/NAME[@REVISION] or NAME.

    A path in a directory that exists is a local one.
    """
    parent = os.path.dirname(path.partition("@")[0])
    return bool(_MODEL.fullmatch(path)) and not (parent and os.path.isdir(parent))


def parse(path: str) -> tuple[str, str | None]:
    """Returns the name and the revision of a model."""
    match: Any = _MODEL.fullmatch(path)
    return match["name"], match["revision"]


def model(path: str, given_as: str) -> Path:
    """Returns the directory of a model in the cache of huggingface_hub.

    Downloads the files that are not there. The name of the directory is the commit.
    """
    name, revision = parse(path)
    what = f"{given_as}={path} (no directory here, so a model on the Hugging Face Hub)"
    try:
        with hub.raise_errors(what):
            return _snapshot(name, revision)
    except ConnectionError as error:
        reason = str(error).removeprefix(f"{what}: ")
        options = [f"--revision={revision}"] if revision else []
        patterns = ("*.json", "*.txt", "*.model", "*.safetensors", "SHA256SUMS")
        options += (f"--include='{x}'" for x in patterns)
        raise ConfigError(
            f"{given_as}={path} is not a directory, and as a model on the Hub it is not"
            f" in the cache of huggingface_hub ({reason}); check the path, or where the"
            f" Hub can be reached, run: hf download {name} {' '.join(options)}"
        ) from None


def _snapshot(name: str, revision: str | None) -> Path:
    """Raises ConnectionError if the Hub is needed and cannot be reached."""
    import huggingface_hub
    from huggingface_hub import errors, utils

    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        found = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=[*_MODEL_FILES]
        )
    except errors.LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, errors.OfflineModeIsEnabled):
            raise ConnectionError("HF_HUB_OFFLINE is set") from None
        raise (error.__cause__ or ConnectionError(hub.first_line(error))) from None
    if not any(Path(found).glob("*.safetensors")):
        try:
            huggingface_hub.get_cached_repo_tree(name, revision=Path(found).name)
        except errors.CachedRepoTreeNotFoundError:  # it was not downloaded by this
            raise ConnectionError("only a part of it is") from None
    return Path(found)


@dataclasses.dataclass(frozen=True)
class Target:
    """Where an export is uploaded."""

    repository: str  # USER/NAME or ORGANIZATION/NAME; created if it does not exist
    branch: str  # the branch that gets a commit; created if it does not exist
    # whether a new repository is private; None is the Hub's default, as in
    # `push_to_hub` of transformers: public, unless an organization has another
    private: bool | None

    def tag(self, step: int) -> str:
        """Returns the tag of a step; an existing one is moved.

        It has the name of the branch, unless that is main, because tags belong to the
        repository.
        """
        prefix = "" if self.branch == _DEFAULT_BRANCH else f"{self.branch}-"
        return f"{prefix}step-{step}"


def target(argument: str, private: bool | None) -> Target:
    """Returns the target for USER/NAME[@BRANCH]."""
    match = _REPOSITORY.fullmatch(argument)
    if match is None:
        raise ConfigError(
            f"--push_to_hub={argument} is not the name of a repository; write USER/NAME"
            " or USER/NAME@BRANCH"
        )
    return Target(match["name"], match["branch"] or _DEFAULT_BRANCH, private)


def check_account() -> None:
    """Checks the token, without any change on the Hub."""
    from huggingface_hub import HfApi

    try:
        with hub.raise_errors("--push_to_hub"):
            HfApi().whoami()
    except ConnectionError as error:
        raise ConfigError(
            f"{error}; without a network, export without --push_to_hub, and push later"
            " with: hf upload"
        ) from None


def describe(directory: Path, to: Target, step: int) -> str:
    """Returns the files, sizes and revision that `push` would send."""
    sizes = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
    default = "public, or as your organization's default is"
    visibility = {True: "private", False: "public", None: default}[to.private]
    return "\n".join(
        [
            f"Would push {len(sizes)} files, {sum(sizes.values()):,} bytes, to"
            f" {to.repository} on the Hugging Face Hub (branch {to.branch}, tag"
            f" {to.tag(step)}; a new repository is {visibility}). Nothing was sent.",
            *(f"  {name:<28} {size:>15,} bytes" for name, size in sizes.items()),
        ]
    )


def push(directory: Path, to: Target, step: int) -> str:
    """Uploads the files of an export in one commit, tags it, and returns its URL."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        with hub.raise_errors(f"--push_to_hub={to.repository}"):
            api.create_repo(to.repository, private=to.private, exist_ok=True)
            if to.branch != _DEFAULT_BRANCH:
                api.create_branch(to.repository, branch=to.branch, exist_ok=True)
            commit = api.upload_folder(
                repo_id=to.repository,
                folder_path=directory,
                commit_message=f"Step {step:,}",
                revision=to.branch,
            )
            refs = api.list_repo_refs(to.repository)
            tags = {tag.name: tag.target_commit for tag in refs.tags}
            tag = to.tag(step)
            if tags.get(tag, commit.oid) != commit.oid:
                api.delete_tag(to.repository, tag=tag)
            if tags.get(tag) != commit.oid:
                api.create_tag(to.repository, tag=tag, revision=commit.oid)
    except (ConfigError, ConnectionError) as error:
        raise ConfigError(
            f"{error}; the export in {directory} is complete: push it again with:"
            f" {upload(directory, to)} && hf repos tag create {to.repository}"
            f" {to.tag(step)} --revision={to.branch}"
        ) from None
    return commit.commit_url


def upload(directory: Path, to: Target) -> str:
    """Returns the command of huggingface_hub that uploads a directory."""
    private = {None: "", True: " --private", False: " --no-private"}[to.private]
    path = shlex.quote(str(directory))
    return f"hf upload {to.repository} {path} . --revision={to.branch}{private}"
