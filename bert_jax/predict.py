"""Predicts one result per line of text with a fine-tuned model.

    python -m bert_jax.predict --model=DIR --input=FILE [--output=FILE.jsonl]
        [--batch_size=N] [--compute_dtype=float32|bfloat16] [--weights=float32|int8]

DIR is WORKDIR/model of `finetune` or a fine-tuned Hugging Face BERT. The output is one
JSON object per line of FILE, or of standard input for --input=-. The form of a line
depends on the task of the model:

    text, or text ||| text if the model     classification, regression, multi-label
        was fine-tuned on pairs
    words separated by spaces               tagging
    question ||| paragraph                  question answering
    context ||| choice ||| choice ...       multiple choice
    text ||| text                           similarity

In Python: `bert_jax.inference.load_tuned(DIR).predict(texts)`.
"""

import contextlib
import json
import sys
from typing import Any

from absl import flags

from bert_jax import cli, inference
from bert_jax.inference import lines as lines_lib
from bert_jax.inference.model import Parts
from bert_jax.monitoring.progress import Progress

# Flags named after options of `load_tuned`; None keeps the fine-tuning run's value.
DECISIONS = ("threshold", "null_threshold", "stride", "max_query_length")
DECISIONS += ("max_answer_length", "num_best")


def as_json(line: Parts, result: dict[str, Any]) -> str:
    """Returns a result and its input as JSON."""
    source = {"text": lines_lib.SEPARATOR.join(line)}
    if "answer" in result:
        source = {"question": line[0].strip()}
    elif "words" in result:
        source = {}
    return json.dumps(source | rounded(result), ensure_ascii=False)


def rounded(value: Any) -> Any:
    """Returns a result with its floats rounded to six decimals."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    path, source = cli.require("model", "input")
    if output := _OUTPUT.value:
        output = cli.output_file("output", output, [".jsonl"], source)
    model = inference.load_tuned(path, **lines_lib.options(*DECISIONS))
    cli.print_notes(model.notes)
    num_single = 0
    with contextlib.ExitStack() as stack:
        file, progress = sys.stdout, None
        if output:
            file = stack.enter_context(cli.replacing(output))
            progress = stack.enter_context(Progress("predicting", None, "rows"))

        def write(lines: list[Parts], results: list[dict[str, Any]]) -> None:
            nonlocal num_single
            for line, result in zip(lines, results, strict=True):
                file.write(as_json(line, result) + "\n")
            if model.max_texts == 1:
                num_single += sum(lines_lib.SEPARATOR in line for (line,) in lines)

        num_lines, secs = lines_lib.process(
            source, model.max_texts, model.predict, write, progress, is_uniform=True
        )
    counts = {
        f"lines with {lines_lib.SEPARATOR!r}, read as single texts": num_single,
        "rows truncated to --max_length": model.num_truncated,
        "words beyond --max_length, predicted as O": model.num_cut_words,
    }
    notes = "".join(f"; {n:,} {words}" for words, n in counts.items() if n)
    print(
        f"{num_lines:,} lines in {secs:.1f} s: {num_lines / secs:,.1f} lines/s,"
        f" compilation included{notes}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    lines_lib.define_flags(32, has_weights=True)
    _OUTPUT = cli.define_path("output", "file to write; default: standard output")
    help_ = "predict no answer if its log odds exceed this; default: as fine-tuned"
    flags.DEFINE_float("null_threshold", None, help_)
    help_ = "probability above which a label is predicted; default: as fine-tuned, or"
    flags.DEFINE_float("threshold", None, f"multi_label: {help_} 0.5")
    help_ = "tokens between the starts of windows; 0: half a window, at most 128"
    flags.DEFINE_integer("stride", None, f"{help_}; default: as fine-tuned, or 0", 0)
    help_ = "maximum tokens of a question; default: as fine-tuned, or 64"
    flags.DEFINE_integer("max_query_length", None, help_, 1)
    help_ = "maximum tokens of an answer; default: as fine-tuned, or 30"
    flags.DEFINE_integer("max_answer_length", None, help_, 1)
    flags.DEFINE_integer("num_best", 3, "answers to list for each question", 1)
    cli.run(main, __doc__)
