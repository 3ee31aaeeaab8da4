"""Writes tables and charts from benchmarks/results into the documentation.

docs/generate.py writes them into the pages.
"""

import inspect
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

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
    except (AttributeError, IndexError, TypeError, ValueError) as error:
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


# ---- Charts


def loss_curves(name: str) -> str:
    """Returns a chart of the loss_curve rows as SVG; equal rows give equal text.

    The held-out loss over the seconds of training is a line for each seed.
    """
    import matplotlib  # takes a second, and tables do not need it
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(read(name, ["loss_curve"])):
        for seed, curve in enumerate(row["curves"]):
            seconds = [steps * row["step_seconds"] for steps in curve["steps"]]
            label = None if seed else row["case"]  # one for all seeds
            losses = curve["masked_lm_loss"]
            axes.plot(seconds, losses, ".-", color=f"C{i}", label=label, linewidth=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds of training steps")
    axes.set_ylabel("held-out masked-LM loss, nats")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    text = io.StringIO()
    # Text stays text: it can be selected and found, and the file is small.
    style = {"svg.hashsalt": "bert_jax", "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        figure.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
    label = f"Held-out loss over time, {name}"
    image = text.getvalue().replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    # Trailing spaces would differ from what an editor saves.
    return re.sub(r"[ \t]+$", "", image, flags=re.M)
