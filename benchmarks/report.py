"""Writes tables and charts from benchmarks/results into the documentation.

docs/generate.py writes them into the pages.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report_rows
from benchmarks.report_rows import Row
from bert_jax.errors import ConfigError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
BLOCK = re.compile(r"(<!-- begin: (\w+) ?([^\n]*) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, generators: dict[str, Callable[..., str]]) -> str:
    """Returns a page with the text between its markers replaced.

    Between `<!-- begin: NAME ARGUMENTS -->` and `<!-- end -->` stands the result of the
    generator of that name.
    """

    def replaced(block: re.Match[str]) -> str:
        begin, name, arguments, end = block.groups()
        if name not in generators:
            known = ", ".join(sorted(generators))
            raise ConfigError(f"{begin.strip()}: {name!r} is not one of {known}")
        try:
            inspect.signature(generators[name]).bind(*arguments.split())
        except TypeError as error:
            raise ConfigError(f"{begin.strip()}: {error}; change the marker") from None
        made = generators[name](*arguments.split())
        return f"{begin}\n{made}\n\n{end}"

    return BLOCK.sub(replaced, text)


# ---- Rows


def read(name: str, benchmarks: Sequence[str] = ()) -> list[Row]:
    """Returns the rows of a file of benchmarks/results."""
    path = RESULTS / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [_parse(line, f"{path}:{i}") for i, line in enumerate(lines, 1)]
    found = [row for row in rows if not benchmarks or row["benchmark"] in benchmarks]
    if not found:
        words = " ".join([name, *benchmarks])
        raise ConfigError(f"{path} has no row for {words!r}; change the marker")
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
        raise ConfigError(f"{where} has no rows; remove its marker")
    try:
        return charts.svg(draw(data), f"{title}, {name}")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: {error}; correct the row, or change the marker"
        ) from None


CHARTS: dict[str, Callable[..., str]] = {
    "peers": peers,
    "share_of_peak": share_of_peak,
    "step_classes": step_classes,
    "loss_curves": loss_curves,
}
