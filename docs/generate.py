"""Writes the generated parts of the documentation into its pages.

    python docs/generate.py

Between `<!-- begin: NAME ARGUMENTS -->` and `<!-- end -->` in a page stands the
Markdown that the function of that name in GENERATORS returns: command references from
--help, config references from the dataclasses, and tables of benchmarks/results. Charts
are files of docs/charts. A test compares the pages with what this command would write.

It is also a hook of mkdocs, which adds the documents of other directories to the site.
"""

import concurrent.futures
import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))  # mkdocs resets it after loading a hook

from benchmarks import report  # noqa: E402
from benchmarks.report import table  # noqa: E402
from bert_jax import config as config_lib  # noqa: E402
from bert_jax.__main__ import COMMANDS  # noqa: E402
from bert_jax.config.validation import Mark  # noqa: E402
from bert_jax.errors import ConfigError  # noqa: E402

# Documents outside docs/ that are pages of the site.
PAGES = {
    "index.md": "README.md",
    "launch.md": "launch/README.md",
    "faults.md": "tests/faults/README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
# Pages of the site without a table of contents beside them.
WIDE = ("performance.md", "evidence.md", "faithfulness.md")


def on_files(files: Any, config: Any) -> Any:
    """Adds PAGES to the site; called by mkdocs."""
    from mkdocs.structure.files import File

    for uri, path in PAGES.items():
        text = re.sub(r"\]\((\.\./)+", "](", (ROOT / path).read_text())
        for page, file in PAGES.items():
            text = text.replace(f"]({file}", f"]({page}")
        # Links to files that are no pages become file names.
        pages = r"https?:|docs/|#|[a-z_]+\.md[#)]"
        text = re.sub(rf"\[([^]]+)\]\((?!{pages})[^)]+\)", r"`\1`", text)
        text = text.replace("](docs/", "](")
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces links to PAGES, and gives wide tables more room; called by mkdocs."""
    if page.file.src_uri in WIDE:  # front matter would be a table on GitHub
        page.meta["hide"] = ["toc"]
    for uri, path in PAGES.items():
        markdown = markdown.replace(f"](../{path}", f"]({uri}")
    return markdown


def main() -> None:
    """Writes the pages and charts that differ from what is generated."""
    try:
        for path, text in generated(sorted(DOCS.glob("*.md"))).items():
            if not path.exists() or path.read_text() != text:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
                print(path.relative_to(ROOT))
    except ConfigError as error:
        sys.exit(f"error: {error}")


def generated(pages: Iterable[Path]) -> dict[Path, str]:
    """Returns the text of pages, and of the charts in them, by path."""
    files: dict[Path, str] = {}

    def loss_curves(name: str) -> str:
        chart = f"charts/loss_curves_{name}.svg"
        files[DOCS / chart] = report.loss_curves(name)
        return f"![Loss curves]({chart})"

    generators = GENERATORS | {"loss_curves": loss_curves}
    for path in pages:
        files[path] = report.fill(path.read_text(), generators)
    return files


# ---- Commands


def commands() -> str:
    """Returns the --help of every command."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        helps = pool.map(_help, COMMANDS)
        return "\n\n".join(
            f"### {name}\n\n```text\n{text.strip()}\n```"
            for name, text in zip(COMMANDS, helps, strict=True)
        )


def _help(name: str) -> str:
    command = [sys.executable, "-m", f"bert_jax.{name}", "--help"]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.check_output(command, cwd=ROOT, env=env, text=True)


# ---- Configs


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a config, with its type and comment in the source."""

    path: str
    kind: str
    comment: str


def pretraining_keys() -> str:
    """Returns a table of the keys of bert_jax.config with two configs' values."""
    configs = {f"{name}.py": load(name) for name in ("tiny", "base")}
    return _sections(config_keys(config_lib.ExperimentConfig, "config"), configs)


def finetuning_keys() -> str:
    """Returns tables of the keys of bert_jax.finetuning.config."""
    from bert_jax.finetuning import config as finetuning_config
    from bert_jax.finetuning.tasks import TASKS

    common = [
        key
        for key in config_keys(finetuning_config.FinetuneConfig, "config")
        if key.path != "config.task"
    ]
    sst2 = {"finetune/glue.py:sst2": load("finetune.glue", "sst2")}
    parts = [_sections(common, sst2)]
    kinds_of: dict[tuple[Key, ...], list[str]] = {}
    for kind, task in TASKS.items():
        _, *keys = config_keys(task, "config.task")  # the first one is kind
        kinds_of.setdefault(tuple(keys), []).append(kind)
    for keys, kinds in kinds_of.items():
        parts.append(f"### config.task: {', '.join(kinds)}")
        parts.append(_table([*keys], {}))
    rows = [
        [f"`{kind}`", ", ".join(f"`{x}`" for x in task.metrics)]
        for kind, task in TASKS.items()
    ]
    parts.append("### config.metric\n\n" + table(["task", "metrics"], rows))
    return "\n\n".join(parts)


def config_differences() -> str:
    """Returns, for each other config, a table of its keys that differ from base."""
    base = load("base")
    parts = []
    for path in sorted((ROOT / "bert_jax/configs").glob("[!_]*.py")):
        if path.stem in ("base", "tiny", "sizes"):
            continue
        module = importlib.import_module(f"bert_jax.configs.{path.stem}")
        rows = [
            [f"`{key}`", _value(base.get(key)), _value(value)]
            for key, value in load(path.stem).items()
            if base.get(key) != value
        ]
        title = (module.__doc__ or "").strip().split("\n")[0]
        parts.append(f"### {path.stem}.py\n\n{title}")
        parts.append(table(["key", "base.py", path.name], rows))
    return "\n\n".join(parts)


def config_keys(kind: type, path: str) -> list[Key]:
    """Returns the keys of a config dataclass, depth first."""
    hints = typing.get_type_hints(kind, include_extras=True)
    comments = field_comments(kind)
    keys = []
    for field in dataclasses.fields(kind):
        whole, name = hints[field.name], f"{path}.{field.name}"
        hint = whole.__origin__ if typing.get_origin(whole) is Annotated else whole
        item = (typing.get_args(hint) or [None])[0]
        if dataclasses.is_dataclass(hint):
            keys += config_keys(typing.cast(type, hint), name)
        elif typing.get_origin(hint) is tuple and dataclasses.is_dataclass(item):
            keys += config_keys(typing.cast(type, item), f"{name}[i]")
        else:
            keys.append(Key(name, _type_words(whole), comments.get(field.name, "")))
    return keys


def field_comments(kind: type) -> dict[str, str]:
    """Returns the comments beside or above the fields of a dataclass."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        above: list[str] = []
        for line in map(str.strip, inspect.getsource(base).splitlines()):
            source, _, comment = line.rpartition("# ")
            words = comment.replace(" | ", " or ")
            if line.startswith("# "):
                above.append(words)
            elif field := re.match(r"(\w+):", line):
                if text := words if source else " ".join(above):
                    comments.setdefault(field[1], text)
                above = []
    return comments


def _type_words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        kind, *limits = typing.get_args(hint)
        words = [_limit_words(x) for x in limits if not isinstance(x, Mark)]
        return ", ".join([_type_words(kind), *words])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    if origin is tuple:
        return f"tuple of {_type_words(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint))


def _limit_words(limit: Any) -> str:
    return f"length {limit}" if type(limit).__name__ == "Length" else str(limit)


def _sections(keys: list[Key], configs: dict[str, dict[str, Any]]) -> str:
    """Returns a table for the keys of each section of the config."""
    sections: dict[str, list[Key]] = {}
    for key in keys:
        sections.setdefault(key.path.rpartition(".")[0], []).append(key)
    return "\n\n".join(
        f"### {name}\n\n{_table(keys, configs)}" for name, keys in sections.items()
    )


def _table(keys: list[Key], configs: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            f"`{key.path.rpartition('.')[2]}`",
            key.kind,
            key.comment,
            *(_value(look_up(values, key.path)) for values in configs.values()),
        ]
        for key in keys
    ]
    return table(["key", "type", "meaning", *configs], rows)


def load(name: str, *argument: str) -> dict[str, Any]:
    """Returns the values of a config by the path of their key."""
    module = importlib.import_module(f"bert_jax.configs.{name}")
    return config_lib.flatten(module.get_config(*argument), "config")


def look_up(values: dict[str, Any], path: str) -> Any:
    """Returns the value of a key; for a key of phases, the list of their values."""
    found = [x for key, x in values.items() if re.sub(r"\d+\]", "i]", key) == path]
    return found if "[i]" in path else found[0]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", then ".join(_value(item) for item in value)
    if isinstance(value, tuple) and len(value) > 4:
        return f"`{value[0]!r}` and {len(value) - 1} more"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"`{value!r}`"


# ---- Import rule


def layers() -> str:
    """Returns the layers of import-linter, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    found = next(c["layers"] for c in contracts if c["type"] == "layers")
    return (
        "```text\n" + "\n".join(layer.replace(" | ", ", ") for layer in found) + "\n```"
    )


GENERATORS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "pretraining_keys": pretraining_keys,
    "finetuning_keys": finetuning_keys,
    "config_differences": config_differences,
    "layers": layers,
    "results": report.results,
}

if __name__ == "__main__":
    main()
