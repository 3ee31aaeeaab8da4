"""Renders the rows of a step as colored text for a terminal."""

from collections.abc import Iterable

import rich.console
import rich.text

from bert_jax.inspect_batch import rows as rows_lib

_STYLES = {"special": "dim", "a": "cyan", "b": "green"}


def as_text(step: rows_lib.Step, rows: Iterable[rows_lib.Row]) -> rich.text.Text:
    """Renders the batch's summary, a legend and the rows."""
    lines = [rich.text.Text(line, "bold") for line in rows_lib.summary(step)]
    lines.append(
        rich.text.Text.assemble(
            "legend: ",
            ("segment A", _STYLES["a"]),
            ", ",
            ("segment B", _STYLES["b"]),
            "; input<=target is a predicted token: ",
            ("[MASK]<=cat", "bold red"),
            ", ",
            ("dog<=cat", "bold magenta"),
            ", or unchanged: ",
            ("cat<=cat", "bold yellow"),
        )
    )
    for row in rows:
        lines += [rich.text.Text(""), *_row_lines(step, row)]
    return rich.text.Text("\n").join(lines)


def _row_lines(step: rows_lib.Step, row: rows_lib.Row) -> list[rich.text.Text]:
    origin = row.origin
    padding = f", {row.num_padding} padding tokens" if row.num_padding else ""
    lines = [
        rich.text.Text(
            f"row {row.number} of {len(step.rows)}: row {origin.row + 1:,} of epoch"
            f" {origin.epoch + 1} of {origin.shard}{padding}",
            "bold",
        )
    ]
    for number, pair in enumerate(row.pairs, start=1):
        lines.append(rich.text.Text(f"  pair {number}: {rows_lib.label_words(pair)}"))
        for name, excerpt in (("A", pair.a), ("B", pair.b)):
            if excerpt is not None:
                style = _STYLES[name.lower()]
                words = f"    {name} {rows_lib.excerpt_words(excerpt)}, which begins:"
                lines.append(
                    rich.text.Text(f"{words} {step.beginning(excerpt)}", style)
                )
        lines.append(
            rich.text.Text("    ")
            + rich.text.Text(" ").join(_token_text(token) for token in pair.tokens)
        )
    return lines


def _token_text(token: rows_lib.Token) -> rich.text.Text:
    if not token.mask:
        return rich.text.Text(token.piece, _STYLES[token.part])
    color = {"masked": "red", "random": "magenta", "kept": "yellow"}[token.mask]
    return rich.text.Text(f"{token.piece}<={token.original}", f"bold {color}")
