"""Renders rows of a step as a self-contained HTML page without scripts."""

import html
import itertools
from collections.abc import Sequence

from bert_jax.inspect_batch import rows as rows_lib

_STYLE = """
:root { --ink: #1c2430; --quiet: #66707f; --line: #d9dee6; --paper: #ffffff;
  --card: #f6f8fb; --a: #d8e8fb; --b: #d9f2dd; --special: #e6e8ec; --pad: #f0f1f4;
  --masked: #c62828; --random: #8e24aa; --kept: #b26a00; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 24px 60px; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 25px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 0 0 8px; }
p { margin: 4px 0; }
.quiet { color: var(--quiet); }
.stages { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px;
  margin: 20px 0; }
.stage, .row { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 12px 14px; }
.stage { font-size: 14px; }
.stage b { display: block; font-size: 15px; }
.row { margin: 16px 0; padding: 14px 16px; }
.bar { display: flex; height: 8px; border-radius: 4px; overflow: hidden;
  background: var(--pad); margin: 8px 0 12px; }
.pair + .pair { border-top: 1px dashed var(--line); margin-top: 12px;
  padding-top: 10px; }
.label { font-weight: 600; }
.source { font-size: 14px; margin: 2px 0; }
.source .token { min-height: 0; margin: 0 3px 0 0; padding: 0 6px; }
.source i { color: var(--quiet); }
.tokens { margin-top: 8px; font: 14px/1.2 ui-monospace, monospace; }
.token { display: inline-block; vertical-align: top; padding: 2px 5px; margin: 2px 1px;
  border-radius: 4px; min-height: 37px; }
.token small { display: block; font-size: 11.5px; color: var(--quiet); }
.a { background: var(--a); } .b { background: var(--b); }
.special { background: var(--special); color: var(--quiet); }
.padding { background: var(--pad); color: var(--quiet); }
.masked, .random, .kept { font-weight: 700; box-shadow: inset 0 0 0 2px currentColor; }
.masked { color: var(--masked); } .random { color: var(--random); }
.kept { color: var(--kept); }
.token.masked small, .token.random small, .token.kept small { color: var(--ink);
  font-weight: 400; }
@media (max-width: 800px) { .stages { grid-template-columns: 1fr 1fr; } }
"""


# How text is converted to rows.
_STAGES = {
    "1. Documents": "Shards hold whole documents as sentences of token ids. Each epoch"
    " visits them in a new order and with new random choices.",
    "2. Segments": "A chunk of sentences is split into two segments, A and B. Half of"
    " the time, and whenever the chunk is one sentence, B is taken from another"
    " document, and the sentences that it replaces are used for the next pair. Without"
    " next sentence prediction, segment A has as many whole sentences as fit.",
    "3. Rows": "[CLS] A [SEP] B [SEP], then padding. Pairs that share a row have their"
    " own positions, and attend only to themselves.",
    "4. Masks": "In each epoch, some tokens of every row are chosen at random. Most are"
    " replaced by [MASK], some by a random token, and some are unchanged. The model"
    " predicts the original of every framed token, and at [CLS] whether B follows A.",
}


def page(step: rows_lib.Step, rows: Sequence[rows_lib.Row]) -> str:
    """Returns an HTML page that shows some rows of a step."""
    title = f"Step {step.number:,}: model inputs and targets"
    facts = "".join(f"<p>{html.escape(line)}</p>" for line in rows_lib.summary(step))
    stages = "".join(
        f"<div class='stage'><b>{name}</b>{words}</div>"
        for name, words in _STAGES.items()
    )
    shown = ""
    if len(rows) < len(step.rows):
        of_all = f"the first {len(rows)} of {len(step.rows)} rows"
        shown = f"<p class='quiet'>Shown: {of_all}.</p>"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{title}</h1>{facts}<div class='stages'>{stages}</div>{_legend()}{shown}"
        + "\n".join(_row(step, row) for row in rows)
        + "</body></html>\n"
    )


def _legend() -> str:
    examples = [_chip("a", "segment A"), _chip("b", "segment B")]
    examples += [_chip("special", "[CLS]"), _chip("masked", "[MASK]", "original")]
    examples += [_chip("random", "random", "original"), _chip("kept", "kept", "kept")]
    return (
        f"<p class='tokens'>{''.join(examples)}</p>"
        "<p class='quiet'>Upper line: the model's input. Lower line, in framed tokens:"
        " the target. Hover over a token to see its position.</p>"
    )


def _chip(kind: str, piece: str, below: str = "", title: str = "") -> str:
    small = f"<small>{html.escape(below)}</small>" if below else ""
    title = f" title='{html.escape(title, quote=True)}'" if title else ""
    return f"<span class='token {kind}'{title}>{html.escape(piece)}{small}</span>"


def _row(step: rows_lib.Step, row: rows_lib.Row) -> str:
    pairs = "".join(
        _pair(pair, f"Pair {number}: " if len(row.pairs) > 1 else "")
        for number, pair in enumerate(row.pairs, start=1)
    )
    padding = ""
    if row.num_padding:
        chip = _chip("padding", f"[PAD] x {row.num_padding}")
        padding = f"<div class='tokens'>{chip}</div>"
    place = html.escape(f"of {len(step.rows)}: {row.place}")
    return (
        f"<div class='row'><h2>Row {row.number} <span class='quiet'>{place}</span></h2>"
        f"{_bar(step, row)}{pairs}{padding}</div>"
    )


def _bar(step: rows_lib.Step, row: rows_lib.Row) -> str:
    """Draws a bar of the row's segments, proportional to their lengths."""
    tokens = (token.part for pair in row.pairs for token in pair.tokens)
    parts = "".join(
        f"<span class='{part}' style='width:"
        f"{100 * len(list(group)) / step.sequence_length:.2f}%'></span>"
        for part, group in itertools.groupby(tokens)
    )
    return f"<div class='bar'>{parts}</div>"


def _pair(pair: rows_lib.Pair, name: str) -> str:
    sources = "".join(
        f"<p class='source'>{_chip(letter.lower(), letter)}"
        f" {excerpt.place} <i>{html.escape(excerpt.beginning)}</i></p>"
        for letter, excerpt in zip("AB", pair.segments, strict=False)
    )
    tokens = "".join(map(_token, pair.tokens))
    return (
        f"<div class='pair'><p class='label'>{name}{pair.label}</p>{sources}"
        f"<div class='tokens'>{tokens}</div></div>"
    )


def _token(token: rows_lib.Token) -> str:
    title = f"position {token.position}"
    if token.mask:
        title += f": {token.original}, {rows_lib.MASKS[token.mask]}"
    below = token.original if token.mask else ""
    return _chip(f"{token.part} {token.mask}".strip(), token.piece, below, title)
