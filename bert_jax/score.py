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
import time

from absl import flags

from bert_jax import cli, inference
from bert_jax.inference import Scores, text_input
from bert_jax.inference.model import DTYPES
from bert_jax.monitoring.progress import Progress


def as_json(texts: list[str], scores: Scores) -> str:
    """Returns a line of JSON for each text."""
    rows = zip(texts, scores.values.tolist(), scores.num_tokens.tolist(), strict=True)
    lines = (
        {"text": text, "score": round(score, 6), "num_tokens": num_tokens}
        for text, score, num_tokens in rows
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def main() -> None:
    path, source, output = cli.require("model", "input", "output")
    output = cli.output_file("output", output, source)
    model = inference.load_masked_lm(
        path,
        max_length=_MAX_LENGTH.value,
        batch_size=_BATCH_SIZE.value,
        compute_dtype=_COMPUTE_DTYPE.value,
        lowercase=_LOWERCASE.value,
    )
    cli.print_notes(model.notes)
    begin, num_texts = time.monotonic(), 0
    progress = Progress("scoring", None, "tokens")
    with cli.replacing(output) as file, progress:
        for lines in text_input.batches(source, max_parts=1):
            texts = [text for (text,) in lines]
            file.write(as_json(texts, model.score(texts, on_batch=progress.add)))
            num_texts += len(texts)
    secs = time.monotonic() - begin
    truncated = model.num_truncated and f", {model.num_truncated:,} of them truncated"
    print(
        f"{num_texts:,} texts{truncated or ''}, {model.num_tokens:,} tokens in"
        f" {secs:.1f} s: {model.num_tokens / secs:,.0f} tokens/s, compilation included;"
        f" written to {output}"
    )


if __name__ == "__main__":
    cli.define_path("model", "directory of a pretrained model")
    cli.define_path("input", "file with one text per line; - for stdin")
    cli.define_path("output", "file to write: JSON lines")
    help_ = "maximum tokens of a text; default: the model's"
    _MAX_LENGTH = flags.DEFINE_integer("max_length", None, help_)
    help_ = "rows per step, over all devices; a text has a row for each token"
    _BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, help_, lower_bound=1)
    _COMPUTE_DTYPE = flags.DEFINE_enum(
        "compute_dtype", "float32", DTYPES, "bfloat16: faster on TPUs and GPUs"
    )
    help_ = (
        "whether the model was trained on lower-cased text, if it does not record it"
    )
    _LOWERCASE = flags.DEFINE_bool("lowercase", None, help_)
    cli.run(main, __doc__)
