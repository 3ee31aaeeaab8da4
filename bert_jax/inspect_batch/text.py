"""Renders the rows of a step as colored text, for a terminal or as an HTML page."""

import io
from collections.abc import Iterable

import rich.console
from rich.text import Text

from bert_jax.data.batches import provenance
from bert_jax.inspect_batch import rows as rows_lib

PAGE_COLUMNS = 110
_STYLES = {"special": "dim", "a": "cyan", "b": "green"}
_MASK_STYLES = {"masked": "bold red", "random": "bold magenta", "kept": "bold yellow"}


def as_text(step: rows_lib.Step, rows: Iterable[rows_lib.Row]) -> Text:
    """Renders the batch's summary, a legend and the rows."""
    lines = [Text(line, "bold") for line in summary(step)]
    lines.append(
        Text.assemble(
            "legend: ",
            ("segment A", _STYLES["a"]),
            ", ",
            ("segment B", _STYLES["b"]),
            "; input<=target is a predicted token: ",
            ("[MASK]<=cat", _MASK_STYLES["masked"]),
            ", ",
            ("dog<=cat", _MASK_STYLES["random"]),
            ", or unchanged: ",
            ("cat<=cat", _MASK_STYLES["kept"]),
        )
    )
    for row in rows:
        lines += [Text(""), *_row_lines(step, row)]
    return Text("\n").join(lines)


def as_html(text: Text) -> str:
    """Returns a self-contained HTML page of a text."""
    console = rich.console.Console(
        file=io.StringIO(), record=True, width=PAGE_COLUMNS, highlight=False
    )
    console.print(text)
    return console.export_html()


def summary(step: rows_lib.Step) -> list[str]:
    """Returns a few lines that summarize the whole batch."""
    pairs, masks = step.pairs, step.count_masks()
    num_positions = len(step.rows) * step.sequence_length
    num_padding = sum(row.num_padding for row in step.rows)
    labels = [pair.is_random for pair in pairs if pair.is_random is not None]
    num_masked = masks.total() - masks[""]
    shares = ", ".join(
        f"{masks[kind]:,} {words} ({masks[kind] / max(num_masked, 1):.0%})"
        for kind, words in (
            ("masked", "replaced by [MASK]"),
            ("random", "by a random token"),
            ("kept", "unchanged"),
        )
    )
    next_sentences = ", no next sentence prediction"
    if labels:
        share = sum(labels) / len(labels)
        next_sentences = (
            f", {sum(labels):,} with random B ({share:.0%}); always giving the more"
            f" frequent label has accuracy {max(share, 1 - share):.0%}"
        )
    return [
        f"step {step.number:,} of {step.num_steps:,}, phases[{step.phase_index}]:"
        f" {len(step.rows):,} rows of {step.sequence_length}"
        f" tokens, {num_padding / num_positions:.1%} padding",
        f"pairs: {len(pairs):,}{next_sentences}",
        f"masks: {num_masked:,} of {masks.total():,} text tokens"
        f" ({num_masked / masks.total():.0%}): {shares}",
    ]


def _row_lines(step: rows_lib.Step, row: rows_lib.Row) -> list[Text]:
    origin = row.origin
    padding = f", {row.num_padding} padding tokens" if row.num_padding else ""
    lines = [
        Text(
            f"row {row.number} of {len(step.rows)}: row {origin.row + 1:,} of epoch"
            f" {origin.epoch + 1} of {origin.shard}{padding}",
            "bold",
        )
    ]
    for number, pair in enumerate(row.pairs, start=1):
        lines.append(Text(f"  pair {number}: {_label(pair)}"))
        for name, excerpt in (("A", pair.a), ("B", pair.b)):
            if excerpt is not None:
                words = f"    {name} {_position(excerpt)}, which begins:"
                words += f" {step.beginning(excerpt)}"
                lines.append(Text(words, _STYLES[name.lower()]))
        lines.append(Text("    ") + Text(" ").join(map(_token_text, pair.tokens)))
    return lines


def _label(pair: rows_lib.Pair) -> str:
    if pair.is_random is None:
        return "segment A only, no next sentence prediction"
    if pair.is_random:
        return "B is random, label 1 (NotNext)"
    return "B follows A, label 0 (IsNext)"


def _position(excerpt: provenance.Excerpt) -> str:
    return (
        f"tokens {excerpt.first + 1:,} to {excerpt.first + excerpt.length:,} of"
        f" {excerpt.document_length:,} of document {excerpt.document + 1:,}"
    )


def _token_text(token: rows_lib.Token) -> Text:
    if not token.mask:
        return Text(token.piece, _STYLES[token.part])
    return Text(f"{token.piece}<={token.original}", _MASK_STYLES[token.mask])
