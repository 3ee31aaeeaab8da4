"""Fills in the generated parts of the documentation; a hook of mkdocs.

A line `<!-- generate: NAME ARGUMENTS -->` in a page is replaced by the Markdown that
the function of that name in GENERATORS returns: command references from --help, config
references from the dataclasses, and tables of benchmarks/results.
"""

import ast
import concurrent.futures
import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"

COMMANDS = (
    "train prepare prepare_beam evaluate export finetune predict extract checkpoint"
    " inspect_batch preflight"
).split()
# Documents outside docs/ that are pages of the site.
PAGES = {
    "launch.md": "launch/README.md",
    "faults.md": "tests/faults/README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Adds PAGES to the site; called by mkdocs."""
    from mkdocs.structure.files import File

    for uri, path in PAGES.items():
        text = (ROOT / path).read_text()
        # Links to files that are no pages become file names.
        text = re.sub(r"\[([^]]+)\]\((?!https?:|docs/)[^)]+\)", r"`\1`", text)
        text = text.replace("](docs/", "](")
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the markers of a page, and links to PAGES; called by mkdocs."""
    if str(ROOT) not in sys.path:  # mkdocs resets it after loading a hook
        sys.path.insert(0, str(ROOT))
    for uri, path in PAGES.items():
        markdown = markdown.replace(f"](../{path}", f"]({uri}")
    return re.sub(r"<!-- generate: (\w+) ?(.*) -->", _generate, markdown)


def _generate(match: re.Match[str]) -> str:
    return GENERATORS[match[1]](*match[2].split())


# ---- Commands


def commands() -> str:
    """Returns the --help of every command."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        helps = pool.map(_help, COMMANDS)
        return "\n\n".join(
            f"## {name}\n\n```text\n{text.strip()}\n```"
            for name, text in zip(COMMANDS, helps, strict=True)
        )


def _help(name: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", f"bert_jax.{name}", "--help"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    if result.returncode == 0:
        return result.stdout
    if name == "prepare_beam" and "Beam is not installed" in result.stderr:
        source = (ROOT / f"bert_jax/{name}.py").read_text()
        return ast.get_docstring(ast.parse(source)) or ""
    raise RuntimeError(f"bert_jax.{name} --help: {result.stderr}")


# ---- Configs


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a config, with its type and comment in the source."""

    path: str
    kind: str
    comment: str


def pretraining_keys() -> str:
    """Returns a table of the keys of bert_jax.config with two configs' values."""
    from bert_jax.config import ExperimentConfig

    configs = {f"{name}.py": load(name) for name in ("tiny", "base")}
    return _sections(config_keys(ExperimentConfig, "config"), configs)


def finetuning_keys() -> str:
    """Returns tables of the keys of bert_jax.finetuning.config."""
    from bert_jax.finetuning import config as config_lib

    common = [
        key
        for key in config_keys(config_lib.FinetuneConfig, "config")
        if key.path != "config.task"
    ]
    sst2 = {"finetune/glue.py:sst2": load("finetune.glue", "sst2")}
    parts = [_sections(common, sst2)]
    by_class: dict[type, list[str]] = {}
    for kind, task in config_lib.TASKS.items():
        by_class.setdefault(task, []).append(kind)
    for task, kinds in by_class.items():
        names = ", ".join(f"`{kind}`" for kind in kinds)
        parts.append(f"### config.task: {', '.join(kinds)}\n\nFor {names}.")
        parts.append(_table(config_keys(task, "config.task"), {}))
    rows = [
        [f"`{kind}`", ", ".join(f"`{x}`" for x in metrics)]
        for kind, metrics in config_lib.METRICS.items()
    ]
    parts.append("### config.metric\n\n" + table(["task", "metrics"], rows))
    return "\n\n".join(parts)


def config_differences() -> str:
    """Returns, for each other config, a table of its keys that differ from base."""
    base = flat(load("base"))
    parts = []
    for path in sorted((ROOT / "bert_jax/configs").glob("[!_]*.py")):
        if path.stem in ("base", "tiny", "sizes"):
            continue
        module = importlib.import_module(f"bert_jax.configs.{path.stem}")
        values = flat(module.get_config())
        rows = [
            [f"`{key}`", _value(base.get(key)), _value(value)]
            for key, value in values.items()
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
        lines = inspect.getsource(base).splitlines(keepends=True)
        above: list[str] = []
        tokens = tokenize.generate_tokens(iter(lines).__next__)
        for number, line in enumerate(_comments_by_line(tokens, len(lines))):
            source = lines[number].strip()
            field = re.match(r"(\w+):", source)
            if source.startswith("#"):
                above.append(line)
            elif field:
                text = line or " ".join(above)
                comments[field[1]] = text
                above = []
    return comments


def _comments_by_line(tokens: Any, num_lines: int) -> list[str]:
    found = [""] * num_lines
    for token in tokens:
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("# ").replace(" | ", " or ")
            found[token.start[0] - 1] = words
    return found


def _type_words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        kind, *limits = typing.get_args(hint)
        return ", ".join([_type_words(kind), *(_limit_words(x) for x in limits)])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(hint))
    if origin is tuple:
        return f"tuple of {_type_words(typing.get_args(hint)[0])}"
    return getattr(hint, "__name__", str(hint))


def _limit_words(limit: Any) -> str:
    return f"length {limit}" if type(limit).__name__ == "Length" else str(limit)


def _sections(keys: list[Key], configs: dict[str, Any]) -> str:
    """Returns a table for the keys of each section of the config."""
    sections: dict[str, list[Key]] = {}
    for key in keys:
        sections.setdefault(key.path.rpartition(".")[0], []).append(key)
    return "\n\n".join(
        f"### {name}\n\n{_table(keys, configs)}" for name, keys in sections.items()
    )


def _table(keys: list[Key], configs: dict[str, Any]) -> str:
    rows = [
        [
            f"`{key.path.rpartition('.')[2]}`",
            key.kind,
            key.comment,
            *(_value(look_up(config, key.path)) for config in configs.values()),
        ]
        for key in keys
    ]
    return table(["key", "type", "meaning", *configs], rows)


def load(name: str, *argument: str) -> Any:
    return importlib.import_module(f"bert_jax.configs.{name}").get_config(*argument)


def look_up(config: Any, path: str) -> Any:
    """Returns the value of a key; for a key of phases, the list of their values."""
    if "[i]" in path:
        name, _, key = path.removeprefix("config.").partition("[i].")
        return [item[key] for item in config[name]]
    value = config
    for part in path.split(".")[1:]:
        value = value[part]
    return value


def flat(config: Any, path: str = "config") -> dict[str, Any]:
    """Returns the values of a config by the path of their key."""
    found: dict[str, Any] = {}
    for key in config:
        value, name = config[key], f"{path}.{key}"
        if hasattr(value, "keys"):
            found |= flat(value, name)
        elif key == "phases":
            for i, phase in enumerate(value):
                found |= flat(phase, f"{name}[{i}]")
        else:
            found[name] = value
    return found


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


# ---- Results of benchmarks


def results(name: str, *benchmarks: str) -> str:
    """Returns a table of the rows of a file of benchmarks/results.

    Args:
      name: the file, without ".jsonl".
      *benchmarks: names of the benchmarks whose rows are shown; all if none.
    """
    return _results(name, benchmarks, number)


def exact(name: str, *benchmarks: str) -> str:
    """Returns the table of `results` with all digits of the values."""
    return _results(name, benchmarks, lambda x: "" if x is None else f"{x:,}")


def _results(
    name: str, benchmarks: tuple[str, ...], digits: Callable[[Any], str]
) -> str:
    found = [r for r in read(name) if not benchmarks or r["benchmark"] in benchmarks]
    versions = ["Python {python}, jax {jax}".format(**row["versions"]) for row in found]
    is_one = len(set(versions)) == 1
    rows = [
        [
            row["case"],
            f"{digits(row['value'])} {row['unit']}",
            row["peer"] or "",
            digits(row["peer_value"]),
            number(row["ratio"]),
            "" if row["repeats"] == 1 else f"{row['spread']:.0%} of {row['repeats']}",
            _more(row),
            "" if is_one else version,
        ]
        for row, version in zip(found, versions, strict=True)
    ]
    heads = ["case", "ours", "compared with", "its value", "ratio"]
    text = table([*heads, "spread, repeats", "more", "versions"], rows)
    return f"{text}\n\n{versions[0]}." if is_one else text


def tuning(name: str) -> str:
    """Returns a table of fine-tuning with and without pretraining."""
    rows = [
        [
            row["case"],
            row["unit"],
            number(row["value"]),
            number(row["peer_value"]),
            number(row["floor"]) + (f" ({row['floor_of']})" if row["floor_of"] else ""),
            f"{row['rate']:g}, {row['peer_rate']:g}",
            str(row["repeats"]),
        ]
        for row in read(name)
    ]
    heads = ["task", "metric", "pretrained", "random weights", "without a network"]
    return table([*heads, "learning rates", "seeds"], rows)


def preflight(name: str) -> str:
    """Returns a table of estimates of preflight, a row for each phase and slice."""
    rows = []
    for report in read(name):
        for phase in report["phases"]:
            compiled, estimate = phase["compiled"], phase["estimated"]
            seconds, gib = estimate["step_seconds"], 2**30
            share = {k: v / seconds for k, v in estimate["seconds"].items()}
            batch = phase["global_batch_size"] // report["devices"]
            memory = compiled["memory"]["total"] / gib
            rows.append(
                [
                    report["topology"],
                    f"{batch} x {phase['sequence_length']}",
                    f"{memory:.1f} of {compiled['hbm_bytes'] / gib:.1f} GiB",
                    f"{seconds * 1000:.0f} ms",
                    f"{share['matmul']:.0%}",
                    f"{share['attention']:.0%}",
                    f"{estimate['sequences_per_second_per_chip']:,.0f}",
                    f"{estimate['mfu']:.0%}",
                    f"{compiled['seconds_to_compile']:.0f} s",
                ]
            )
    heads = ["slice", "sequences x tokens on a device", "memory of a device", "step"]
    heads += ["matrix products", "attention", "sequences/s per chip", "MFU"]
    return table([*heads, "compilation"], rows)


def read(name: str) -> list[dict[str, Any]]:
    text = (RESULTS / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in io.StringIO(text)]


# Other numbers of a row that tables show, and how.
MORE: dict[str, Callable[[Any], str]] = {
    "mfu": lambda value: f"MFU {value:.0%}",
    "text_share": lambda value: f"{value:.1%} of tokens are text",
    "accuracy": lambda value: f"accuracy {value:.3f}",
    "parameter_bytes": lambda value: f"{value / 1e6:.1f} MB of parameters",
    "steps": lambda value: f"{value:,} steps",
    "seconds": lambda value: f"{value:,} s",
    "masked_lm_loss_of_the_last_steps": lambda value: (
        f"masked-LM loss of the last steps {value:.2f} nats"
    ),
    "next_sentence_accuracy_of_the_last_steps": lambda value: (
        f"next-sentence accuracy of the last steps {value:.1%}"
    ),
    "pearson": lambda value: f"Pearson {value}",
    "peer_pearson": lambda value: f"its Pearson {value}",
    "largest_difference": lambda value: f"vectors differ by at most {value:g}",
    "max_length": lambda value: f"at most {value} tokens",
    "by_state": lambda values: (
        "embeddings, then layers: " + ", ".join(f"{value:.1e}" for value in values)
    ),
    "unigram_entropy": lambda value: f"entropy of word frequencies {value}",
    "last_steps": lambda value: f"last 10 steps {value}",
    "peer_last_steps": lambda value: f"its last 10 steps {value}",
    "peer_loss_with_padding": lambda value: f"its loss with unused slots {value}",
    "worst_visit": lambda value: f"in the worst visit {value:.3f}",
}


def _more(row: dict[str, Any]) -> str:
    return ", ".join(
        words(row[key]) for key, words in MORE.items() if row.get(key) is not None
    )


def number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table without its empty columns."""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = [heads, ["---"] * len(heads), *rows]
    # A bar in a cell would end it, also inside code.
    cells = [[line[i].replace("|", "&#124;") for i in kept] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


GENERATORS: dict[str, Callable[..., str]] = {
    "commands": commands,
    "pretraining_keys": pretraining_keys,
    "finetuning_keys": finetuning_keys,
    "config_differences": config_differences,
    "layers": layers,
    "results": results,
    "exact": exact,
    "tuning": tuning,
    "preflight": preflight,
}
