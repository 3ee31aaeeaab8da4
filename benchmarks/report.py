"""Builds the tables and charts of docs/performance.md from benchmarks/results.

    python -m benchmarks.report [--output=DIR]

Checks every row and prints the page with its tables as Markdown. With --output, writes
the page with its charts as DIR/performance.html, one file that refers to no other.

A line `<!-- generate: NAME ARGUMENTS -->` of the page stands for the result of the
function of that name in GENERATORS. mkdocs fills in the same lines of the site by
docs/generate.py. Rows that no line names are shown by `others`.
"""

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import markdown

from benchmarks import report_rows
from benchmarks.report_rows import Row
from bert_jax.errors import ConfigError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"
MARKER = re.compile(r"<!-- generate: (\w+) ?(.*) -->")


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
    """Returns a page with its markers replaced.

    Raises:
      ConfigError: if a marker has an unknown name or a wrong number of arguments, or
        what it names has no result.
    """

    def generated(marker: re.Match[str]) -> str:
        name, arguments = marker[1], marker[2].split()
        if name not in generators:
            known = ", ".join(sorted(generators))
            raise ConfigError(f"{marker[0]}: {name!r} is not one of {known}")
        try:
            inspect.signature(generators[name]).bind(*arguments)
        except TypeError as error:
            raise ConfigError(f"{marker[0]}: {error}; change the marker") from None
        return generators[name](*arguments)

    return MARKER.sub(generated, text)


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
        report_rows.cells(row)
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
    cells = [line for row in rows for line in report_rows.cells(row)]
    common = []
    for key in ("device", "versions"):
        if len({line[key] for line in cells}) == 1:
            common.append(cells[0][key])
            cells = [line | {key: ""} for line in cells]
    heads = list(dict.fromkeys(head for line in cells for head in line))
    text = table(heads, [[line.get(head, "") for head in heads] for line in cells])
    below = "; ".join(filter(None, common))
    return f"{text}\n\n{below}." if below else text


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


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table without its empty columns."""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = [heads, ["---"] * len(heads), *rows]
    # A bar in a cell would end it, also inside code.
    cells = [[line[i].replace("|", "&#124;") for i in kept] for line in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


# ---- Charts, imported late: matplotlib takes a second, and tables do not need it.


def peers(name: str, *benchmarks: str) -> str:
    """Returns a chart of the rates of a file's rows relative to their peers' rates.

    Rows without a ratio, and those whose unit is not a rate, are left out.
    """
    from benchmarks import charts

    rows = [
        row
        for row in read(name, benchmarks)
        if row.get("ratio") and "/s" in str(row.get("unit"))
    ]
    cases = [(row["case"], row["peer"]) for row in rows]
    for row in rows:
        if cases.count((row["case"], row["peer"])) > 1:
            row["case"] += f", {report_rows.versions(row)}"
    return _chart(charts.peers, rows, "Rates relative to peers", name)


def share_of_peak(name: str) -> str:
    """Returns a chart of the MFU of train_step rows by batch size."""
    from benchmarks import charts

    rows = [r for r in read(name, ["train_step"]) if r.get("mfu") is not None]
    return _chart(charts.share_of_peak, rows, "Share of peak", name)


def step_classes(name: str) -> str:
    """Returns a chart of the classes of the steps of tpu_schedule or gpu_profile.

    Those of tpu_schedule are by the larger of bundles and bytes.
    """
    from benchmarks import charts

    cases = {}
    for row in read(name, ["tpu_schedule", "gpu_profile"]):
        if row["benchmark"] == "gpu_profile":
            cases[f"{row['device']}, {row['case']}"] = row["classes"]
        else:
            classes = {kind: x["larger_of"] for kind, x in row["classes"].items()}
            cases[f"{row['topology'].partition(':')[0]}, {row['case']}"] = classes
    return _chart(charts.step_classes, cases, "Parts of a step", name)


def loss_curves(name: str) -> str:
    """Returns a chart of the held-out loss over time of the loss_curve rows."""
    from benchmarks import charts

    rows = read(name, ["loss_curve"])
    return _chart(charts.loss_curves, rows, "Held-out loss over time", name)


def _chart(draw: Callable[[Any], Any], data: Any, title: str, name: str) -> str:
    """Returns a chart of rows of a file as SVG.

    Raises:
      ConfigError: if there are no rows for it, or one cannot be drawn.
    """
    from benchmarks import charts

    where = f"{RESULTS / name}.jsonl: the chart {title!r}"
    if not data:
        raise ConfigError(f"{where} has no rows; remove its marker from {PAGE}")
    try:
        return charts.svg(draw(data), f"{title}, {name}")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {error}; correct the row, or change the marker in {PAGE}"
        ) from None


TABLES: dict[str, Callable[..., str]] = {"results": results, "others": others}
CHARTS: dict[str, Callable[..., str]] = {
    "peers": peers,
    "share_of_peak": share_of_peak,
    "step_classes": step_classes,
    "loss_curves": loss_curves,
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
