"""Uploads an export to a model repository on the Hugging Face Hub."""

import dataclasses
import re
import shlex
from pathlib import Path

from bert_jax import hub
from bert_jax.errors import ConfigError

_REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<branch>[\w.-]+))?")
_DEFAULT_BRANCH = "main"


@dataclasses.dataclass(frozen=True)
class Target:
    """Where an export is uploaded.

    Attributes:
      repository: USER/NAME or ORGANIZATION/NAME; created if it does not exist.
      branch: the branch that gets a commit; created if it does not exist.
      private: whether a new repository is private; None is the Hub's default, as in
        `push_to_hub` of transformers: public, unless an organization has another.
    """

    repository: str
    branch: str
    private: bool | None

    def tag(self, step: int) -> str:
        """Returns the tag of a step; an existing one is moved.

        It has the name of the branch, unless that is main, because tags belong to the
        repository.
        """
        prefix = "" if self.branch == _DEFAULT_BRANCH else f"{self.branch}-"
        return f"{prefix}step-{step}"

    @property
    def visibility(self) -> str:
        if self.private is None:
            return "public, or as your organization's default is"
        return "private" if self.private else "public"


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
    return "\n".join(
        [
            f"Would push {len(sizes)} files, {sum(sizes.values()):,} bytes, to"
            f" {to.repository} on the Hugging Face Hub (branch {to.branch}, tag"
            f" {to.tag(step)}; a new repository is {to.visibility}). Nothing was sent.",
            *(f"  {name:<28} {size:>15,} bytes" for name, size in sizes.items()),
        ]
    )


def push(directory: Path, to: Target, step: int) -> str:
    """Uploads the files of an export in one commit, and tags it.

    Returns:
      The URL of the commit.
    """
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
            f" {_commands(directory, to, step)}"
        ) from None
    return commit.commit_url


def _commands(directory: Path, to: Target, step: int) -> str:
    """Returns the commands of huggingface_hub that do what `push` does."""
    return (
        f"{upload(directory, to)} &&"
        f" hf repos tag create {to.repository} {to.tag(step)} --revision={to.branch}"
    )


def upload(directory: Path, to: Target) -> str:
    """Returns the command of huggingface_hub that uploads a directory."""
    private = {None: "", True: " --private", False: " --no-private"}[to.private]
    path = shlex.quote(str(directory))
    return f"hf upload {to.repository} {path} . --revision={to.branch}{private}"
