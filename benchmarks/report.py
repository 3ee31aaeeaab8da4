"""Makes the tables and charts of docs/performance.md from benchmarks/results.

    python -m benchmarks.report [--output=DIR]

Checks every row and prints the page with its tables as Markdown. With --output, writes
the page with its charts as DIR/performance.html, one file that refers to no other.

A line `<!-- generate: NAME ARGUMENTS -->` of the page stands for the result of the
function of that name in GENERATORS. mkdocs fills in the same lines of the site by
docs/generate.py. Rows that no line names are shown by `others`.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import markdown  # TensorBoard brings it

from bert_jax.errors import ConfigError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"
MARKER = re.compile(r"<!-- generate: (\w+) ?(.*) -->")
Row = dict[str, Any]

# Versions that tables show; a row has more.
VERSIONS = {"python": "Python", "jax": "jax", "libtpu": "libtpu"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="directory of performance.html")
    args = parser.parse_args()
    try:
        if args.output is None:
            tables = TABLES | dict.fromkeys(CHARTS, lambda *_: "")
            print(fill(PAGE.read_text(), tables))
        else:
            print(write_html(args.output))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def fill(text: str, generators: dict[str, Callable[..., str]]) -> str:
    """Returns a page with its markers replaced."""
    return MARKER.sub(lambda found: generators[found[1]](*found[2].split()), text)


def write_html(directory: Path) -> Path:
    """Writes the page with its charts, and returns the path of the file.

    Raises:
      ConfigError: if a row is malformed, or the directory cannot be written to.
    """
    text = re.sub(r"\A---\n.*?\n---\n", "", PAGE.read_text(), flags=re.S)
    body = markdown.markdown(
        fill(text, GENERATORS), extensions=["tables", "fenced_code"]
    )
    path = directory / "performance.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(HTML.format(body=body))
    except OSError as error:
        raise ConfigError(
            f"--output={directory}: {error.strerror}; give a directory to write to"
        ) from None
    return path


# ---- Rows


def read(name: str, benchmarks: Sequence[str] = ()) -> list[Row]:
    """Returns the rows of a file of benchmarks/results.

    Args:
      name: the file, without ".jsonl".
      benchmarks: the benchmarks whose rows are returned; all if none.

    Raises:
      ConfigError: if a line is not a row, or there is no row.
    """
    path = RESULTS / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [_parse(line, f"{path}:{i}") for i, line in enumerate(lines, 1)]
    found = [row for row in rows if not benchmarks or row["benchmark"] in benchmarks]
    if not found:
        words = " ".join([name, *benchmarks])
        raise ConfigError(f"{PAGE}: {path} has no row for {words!r}; change the marker")
    return found


def _parse(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise TypeError("not a JSON object")
        if "topology" in row:
            row = {"benchmark": "preflight"} | row
        elif not isinstance(row["value"], int | float):
            raise TypeError(f"value={row['value']!r} is not a number")
        _cells(row)
    except json.JSONDecodeError as error:
        reason = f"not JSON ({error.msg})"
    except KeyError as error:
        reason = f"no key {error}"
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error)
    else:
        return row
    raise ConfigError(
        f"{where}: {reason}; remove the line, or rerun the benchmark for another"
    )


# ---- Tables


def results(name: str, *benchmarks: str) -> str:
    """Returns a table of the rows of a file of benchmarks/results.

    A device and versions that are the same in all rows stand below the table.

    Args:
      name: the file, without ".jsonl".
      *benchmarks: names of the benchmarks whose rows are shown; all if none.
    """
    rows = read(name, benchmarks)
    cells = [line for row in rows for line in _cells(row)]
    common = []
    for key in ("device", "versions"):
        if len({line[key] for line in cells}) == 1:
            common.append(cells[0][key])
            cells = [line | {key: ""} for line in cells]
    heads = list(cells[0])
    text = table(heads, [[line[head] for head in heads] for line in cells])
    below = "; ".join(filter(None, common))
    return f"{text}\n\n{below}." if below else text


def _cells(row: Row) -> list[dict[str, str]]:
    """Returns the lines of the table for a row: texts by the head of their column."""
    return KINDS.get(row["benchmark"], _measured)(row)


def _measured(row: Row) -> list[dict[str, str]]:
    digits = all_digits if row["benchmark"] in EXACT else number
    return [
        {
            "case": row["case"],
            "device": _device(row),
            "ours": f"{digits(row['value'])} {row['unit']}",
            "compared with": row["peer"] or "",
            "its value": digits(row["peer_value"]),
            "ratio": number(row["ratio"]),
            "MFU": "" if row.get("mfu") is None else f"{row['mfu']:.1%}",
            "spread, repeats": (
                ""
                if row["repeats"] == 1
                else f"{row['spread']:.0%} of {row['repeats']}"
            ),
            "more": _more(row),
            "versions": _versions(row),
        }
    ]


def _tuning(row: Row) -> list[dict[str, str]]:
    """Returns the line of fine-tuning with and without pretraining."""
    floor = f" ({row['floor_of']})" if row["floor_of"] else ""
    return [
        {
            "task": row["case"],
            "metric": row["unit"],
            "device": _device(row),
            "pretrained": number(row["value"]),
            "random weights": number(row["peer_value"]),
            "without a network": number(row["floor"]) + floor,
            "learning rates": f"{row['rate']:g}, {row['peer_rate']:g}",
            "seeds": str(row["repeats"]),
            "versions": _versions(row),
        }
    ]


def _preflight(report: Row) -> list[dict[str, str]]:
    """Returns the lines of a report of preflight, one for each phase."""
    lines = []
    for phase in report["phases"]:
        compiled, estimate = phase["compiled"], phase["estimated"]
        seconds, gib = estimate["step_seconds"], 2**30
        memory = compiled["memory"]["total"] / gib
        lines.append(
            {
                "slice": report["topology"],
                "device": "",
                "sequences x tokens on a device": _batch(report, phase),
                "memory of a device": (
                    f"{memory:.1f} of {compiled['hbm_bytes'] / gib:.1f} GiB"
                ),
                "step": f"{seconds * 1000:.0f} ms",
                "matrix products": f"{estimate['seconds']['matmul'] / seconds:.0%}",
                "attention": f"{estimate['seconds']['attention'] / seconds:.0%}",
                "sequences/s per chip": (
                    f"{estimate['sequences_per_second_per_chip']:,.0f}"
                ),
                "MFU": f"{estimate['mfu']:.0%}",
                "compilation": f"{compiled['seconds_to_compile']:.0f} s",
                "versions": _versions(report),
            }
        )
    return lines


def _tpu_schedule(row: Row) -> list[dict[str, str]]:
    """Returns the line of a step by the TPU compiler's final schedule."""

    def millions(cycles: float) -> str:
        return f"{cycles / 1e6:.1f} M"

    classes = {
        name: millions(scales["larger_of"]) for name, scales in row["classes"].items()
    }
    return [
        {
            "slice": row["topology"],
            "device": "",
            "step": row["case"],
            "cycles, estimated": millions(row["step"]),
            "share of peak": f"{row['share_of_peak']:.0%}",
            "larger of bundles and bytes": millions(row["larger_of"]),
            "its share of peak": f"{row['ideal'] / row['larger_of']:.0%}",
            **{name: classes.get(name, "") for name in SCHEDULE_CLASSES},
            "memory": f"{row['memory_bytes'] / 2**30:.1f} GiB",
            "versions": _versions(row),
        }
    ]


KINDS = {"tuning": _tuning, "preflight": _preflight, "tpu_schedule": _tpu_schedule}
# Columns of the table of schedules; hlo.CLASSES without an import of JAX.
SCHEDULE_CLASSES = (
    *("matmul", "attention", "head", "embeddings", "elementwise", "dropout"),
    *("optimizer", "copies"),
)
EXACT = ("hidden_states", "sts", "d2l")  # benchmarks whose values have all digits


def _batch(report: Row, phase: Row) -> str:
    batch = phase["global_batch_size"] // report["devices"]
    return f"{batch} x {phase['sequence_length']}"


def _device(row: Row) -> str:
    device = row.get("device")
    return device if device and device != "cpu" else f"{row['cpu_count']} CPU cores"


def _versions(row: Row) -> str:
    return ", ".join(
        f"{VERSIONS[name]} {version}"
        for name, version in row["versions"].items()
        if name in VERSIONS
    )


def others() -> str:
    """Returns a table for each benchmark of each file that PAGE does not name."""
    markers = [(m[1], *m[2].split()) for m in MARKER.finditer(PAGE.read_text())]
    tables = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        calls = [call for call in markers if call[:2] == ("results", path.stem)]
        if any(len(call) == 2 for call in calls):  # shows all benchmarks
            continue
        shown = {benchmark for call in calls for benchmark in call[2:]}
        for benchmark in dict.fromkeys(row["benchmark"] for row in read(path.stem)):
            if benchmark not in shown:
                title = f"### {benchmark}, {path.stem}"
                tables.append(f"{title}\n\n{results(path.stem, benchmark)}")
    return "\n\n".join(tables)


# Other numbers of a row that tables show, and how.
MORE: dict[str, Callable[[Any], str]] = {
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
    "cpu_seconds": lambda value: f"{value:.1f} s of CPU time",
    "stages": lambda value: ", ".join(f"{k} {v:.1f} s" for k, v in value.items() if v),
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


def _more(row: Row) -> str:
    return ", ".join(
        words(row[key]) for key, words in MORE.items() if row.get(key) is not None
    )


def number(value: Any) -> str:
    """Returns a number with three significant digits, and all digits before a point."""
    if value is None:
        return ""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def all_digits(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table without its empty columns."""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = [heads, ["---"] * len(heads), *rows]
    # A bar in a cell would end it, also inside code.
    cells = [[line[i].replace("|", "&#124;") for i in kept] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


# ---- Charts, imported late: matplotlib takes a second, and tables do not need it.


def peers(name: str, *benchmarks: str) -> str:
    """Returns a chart of the rates of a file's rows relative to their peers' rates."""
    from benchmarks import charts

    rows = [r for r in read(name, benchmarks) if r["ratio"] and "/s" in r["unit"]]
    cases = [(row["case"], row["peer"]) for row in rows]
    for row in rows:
        if cases.count((row["case"], row["peer"])) > 1:
            row["case"] += f", {_versions(row)}"
    return charts.svg(charts.peers(rows), f"Rates relative to peers, {name}")


def share_of_peak(name: str) -> str:
    """Returns a chart of the MFU of train_step rows by batch size."""
    from benchmarks import charts

    rows = [r for r in read(name, ["train_step"]) if r.get("mfu") is not None]
    return charts.svg(charts.share_of_peak(rows), f"Share of peak, {name}")


def step_classes(name: str) -> str:
    """Returns a chart of the classes of operations in preflight's estimated step."""
    from benchmarks import charts

    cases = {
        f"{report['topology'].partition(':')[0]}, {_batch(report, phase)}": (
            phase["estimated"]["seconds"]
        )
        for report in read(name)
        for phase in report["phases"]
    }
    return charts.svg(charts.step_classes(cases), f"Parts of a step, {name}")


TABLES: dict[str, Callable[..., str]] = {"results": results, "others": others}
CHARTS: dict[str, Callable[..., str]] = {
    "peers": peers,
    "share_of_peak": share_of_peak,
    "step_classes": step_classes,
}
GENERATORS = TABLES | CHARTS

HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>bert_jax: performance</title>
<style>
body {{ font-family: sans-serif; max-width: 75rem; margin: 2rem auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; }}
th, td {{ border-bottom: 1px solid #ccc; padding: 0.3rem 0.7rem; text-align: left; }}
.chart {{ max-width: 60rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""

if __name__ == "__main__":
    main()
