"""Scores texts by their pseudo-log-likelihood under a masked language model.

    python -m bert_jax.score --model=DIR --input=FILE --output=FILE.jsonl
        [--max_length=N] [--batch_size=N] [--compute_dtype=float32|bfloat16]
        [--lowercase=true|false]

DIR is a directory of `export`, any Hugging Face BERT with a masked-LM head, a TF1
checkpoint of google-research/bert, or a workdir of `train`. Each line of FILE, or of
standard input for --input=-, is a text. The output is one JSON object per line:

    text        the line
    score       the sum over its tokens of the log-probability (in nats) of the token
                when it alone is masked; [CLS] and [SEP] are not counted
    num_tokens  the number of these tokens

The score divided by num_tokens compares texts of different lengths. [MASK] in a text
is scored as plain text; it does not stand for a masked token. In Python:
`bert_jax.inference.load_masked_lm(DIR).score(texts)`.
"""

import json

from bert_jax import cli, inference
from bert_jax.inference import Scores, lines
from bert_jax.inference.model import Parts
from bert_jax.monitoring.progress import Progress


def as_json(texts: list[Parts], scores: Scores) -> str:
    """Returns a line of JSON for each text."""
    rows = zip(texts, scores.values.tolist(), scores.num_tokens.tolist(), strict=True)
    found = (
        {"text": text, "score": round(score, 6), "num_tokens": num_tokens}
        for (text,), score, num_tokens in rows
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in found)


def main() -> None:
    path, source, output = cli.require("model", "input", "output")
    target = cli.output_file("output", output, [".jsonl"], source)
    model = inference.load_masked_lm(path, **lines.options())
    cli.print_notes(model.notes)
    with cli.replacing(target) as file, Progress("scoring", None, "tokens") as progress:
        num_texts, secs = lines.process(
            source,
            1,
            lambda texts, on_batch: model.score(
                [text for (text,) in texts], on_batch=on_batch
            ),
            lambda texts, scores: file.write(as_json(texts, scores)),
            progress,
        )
    lines.print_summary(model, num_texts, secs, output)


if __name__ == "__main__":
    lines.define_flags(128, has_lowercase=True)
    cli.define_path("output", "file to write: JSON lines")
    cli.run(main, __doc__)
