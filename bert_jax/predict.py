"""Text -> what a tuned model says of it, an object a line.

    python -m bert_jax.predict --model=DIR --input=FILE [--output=FILE.jsonl]
        [--batch_size=N] [--compute_dtype=float32|bfloat16] [--weights=float32|int8]

DIR is one of `finetune` (WORKDIR/model) or any tuned BERT of Hugging Face's. A line of
FILE, or of standard input where that is "-", is what the model was tuned for:

    a text; text ||| text where it was          classification, regression, multi-label
        tuned on pairs
    words with blanks between them              tagging
    question ||| paragraph                      question answering
    context ||| choice ||| choice ...           multiple choice
    text ||| text                               similarity
"""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from bert_jax import cli
from bert_jax.config import MeshConfig
from bert_jax.distributed import devices
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.errors import ConfigError
from bert_jax.finetuning import thresholds
from bert_jax.finetuning.config import (
    ChoiceTask,
    QuestionTask,
    SimilarityTask,
    TaggingTask,
    Task,
    TextTask,
)
from bert_jax.finetuning.predictor import Predictor
from bert_jax.inference import answers, line_input, text_input
from bert_jax.inference.answers import LinePredictor
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import Trained
from bert_jax.model import int8
from bert_jax.model.heads import Head
from bert_jax.monitoring.progress import Progress


def decisions_of(path: str, head: Head) -> dict[str, Any]:
    """Returns the numbers of tasks/decisions.py: the flags', else the model's."""
    asked = {
        "stride": _STRIDE.value,
        "max_query_length": _MAX_QUERY_LENGTH.value,
        "max_answer_length": _MAX_ANSWER_LENGTH.value,
        "null_threshold": _NULL_THRESHOLD.value,
        "has_impossible": None if _NULL_THRESHOLD.value is None else True,
        "threshold": _THRESHOLD.value,
        "num_texts": None,
    }
    found = thresholds.read(Path(path).expanduser(), head.kind)
    return {
        key: value if asked[key] is None else asked[key] for key, value in found.items()
    }


def task_of(head: Head, numbers: dict[str, Any]) -> Task:
    """Returns the task of a head, with the numbers of `decisions_of`."""
    if head.kind == "question_answering":
        return QuestionTask(
            kind=head.kind,
            stride=numbers["stride"],
            max_query_length=numbers["max_query_length"],
            max_answer_length=numbers["max_answer_length"],
            num_best=_NUM_BEST.value,
            null_threshold=numbers["null_threshold"],
            answer_units="words",  # no answer is scored here
        )
    if head.kind == "tagging":
        return TaggingTask(kind=head.kind, words="", tags="", labels=head.labels)
    if head.kind == "multiple_choice":
        return ChoiceTask(kind=head.kind, text=(), choices=(), label="")
    if head.kind == "similarity":
        return SimilarityTask(kind=head.kind, text=("", ""), label="", max_label=1.0)
    return TextTask(
        kind=head.kind,
        text=("",) * numbers["num_texts"],
        label="",
        labels=head.labels,
        glue=(),
        index="",
        threshold=numbers.get("threshold", 0.5),
    )


def row_length(model: Trained, asked: Task) -> int:
    """Returns the tokens of a row, those of the flag or what the model was made for.

    Raises:
      ConfigError: when the model has not so many, or a question leaves no room.
    """
    assert model.head is not None
    positions = model.config.max_position_embeddings
    length = _MAX_LENGTH.value or model.max_length
    if not 5 <= length <= positions:
        raise ConfigError(
            f"--max_length={length} must be at least 5 and at most the model's"
            f" {positions} positions"
        )
    if isinstance(asked, QuestionTask):
        room = asked.room(length)
        if room <= 0:
            raise ConfigError(
                f"--max_query_length={asked.max_query_length} leaves no room in rows of"
                f" {length} tokens; give a lower one"
            )
        if asked.stride > room:
            raise ConfigError(
                f"--stride={asked.stride} leaves gaps between windows of {room} tokens,"
                f" in rows of --max_length={length}; give --stride=0 for windows that"
                " overlap"
            )
    return length


def open_model(
    path: str, mesh: jax.sharding.Mesh
) -> tuple[LinePredictor | int8.QuantizationCheck, LinePredictor, int]:
    """Returns what tells of lines as the flags ask, the teller in it, and the most
    parts of a line."""
    model = model_lib.read_tuned(path)
    assert model.head is not None
    numbers = decisions_of(path, model.head)
    _, max_parts, _ = line_input.parts_of(task_of(model.head, numbers))
    tell = make_teller(model, numbers, mesh)
    if _WEIGHTS.value == "float32":
        return tell, tell, max_parts
    small = dataclasses.replace(model, params=int8.quantize(model.params))
    print(int8.memory_summary(model.params, small.params), file=sys.stderr)
    teller = make_teller(small, numbers, mesh)
    return int8.QuantizationCheck(teller, tell, answers.difference), teller, max_parts


def make_teller(
    model: Trained, numbers: dict[str, Any], mesh: jax.sharding.Mesh
) -> LinePredictor:
    """Returns what the flags ask for, with the numbers of `decisions_of`."""
    assert model.head is not None
    asked = task_of(model.head, numbers)
    length = row_length(model, asked)
    predictor = Predictor(
        model.graphdef,
        length=length,
        batch_size=_BATCH_SIZE.value,
        dtype=jnp.dtype(_COMPUTE_DTYPE.value),
        mesh=mesh,
    )
    return LinePredictor(
        model,
        asked,
        predictor,
        length=length,
        has_impossible=numbers.get("has_impossible", False),
    )


@contextlib.contextmanager
def writing(path: str | None) -> Iterator[Any]:
    """Gives a file to write to, which appears at the end, or standard output."""
    if path is None:
        yield sys.stdout
        return
    with cli.replacing(Path(path)) as tmp:
        with tmp.open("w", encoding="utf-8") as file:
            yield file


@contextlib.contextmanager
def showing_progress(teller: LinePredictor) -> Iterator[None]:
    """Shows the rows done on standard output, unless the predictions go there."""
    if _OUTPUT.value is None:
        yield
        return
    with Progress("predicting", None, "rows") as progress:
        teller.on_rows = progress.add
        yield


def main() -> None:
    model, source = cli.require("model", "input")
    if _OUTPUT.value is not None:
        cli.check(Path(_OUTPUT.value), source)
    devices.open_local_devices()
    mesh_config = MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)
    mesh = mesh_lib.make_mesh(mesh_config)
    jax.set_mesh(mesh)
    tell, teller, max_parts = open_model(model, mesh)
    begin, num_texts = time.monotonic(), 0
    with writing(_OUTPUT.value) as file, showing_progress(teller):
        for texts in text_input.batches(source, max_parts):
            for row in tell(texts):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            num_texts += len(texts)
    secs = time.monotonic() - begin
    if isinstance(tell, int8.QuantizationCheck):
        print(f"int8 weights: {tell.summary}", file=sys.stderr)
        secs -= tell.secs
    cut = "".join(f"; {n:,} {words}" for words, n in teller.num_cut.items() if n)
    print(
        f"{num_texts:,} lines in {secs:.1f} s: {num_texts / secs:,.1f} a second with"
        f" compiling{cut}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    flags.DEFINE_string("model", None, "directory of a tuned model")
    flags.DEFINE_string("input", None, "file, an example a line; - for stdin")
    _OUTPUT = flags.DEFINE_string(
        "output", None, "file to write; standard output if absent"
    )
    _BATCH_SIZE = flags.DEFINE_integer(
        "batch_size", 32, "rows at once, over all devices", lower_bound=1
    )
    _COMPUTE_DTYPE = flags.DEFINE_enum(
        "compute_dtype",
        "float32",
        ["float32", "bfloat16"],
        "of the computation; bfloat16 is faster on TPUs and GPUs",
    )
    _WEIGHTS = flags.DEFINE_enum(
        "weights",
        "float32",
        ["float32", "int8"],
        "int8: a quarter of the memory; what that changes is told for the first lines",
    )
    _MAX_LENGTH = flags.DEFINE_integer(
        "max_length", None, "tokens of a row; what the model was made for if absent"
    )
    _NULL_THRESHOLD = flags.DEFINE_float(
        "null_threshold",
        None,
        "a question has no answer where the odds of that are above it; if absent as the"
        " model was tuned, and every question has one where it does not say",
    )
    _THRESHOLD = flags.DEFINE_float(
        "threshold",
        None,
        "of a label's probability, of multi-label models; if this or one of the next"
        " three is absent it is as the model was tuned, or 0.5, 0, 64 and 30",
    )
    _STRIDE = flags.DEFINE_integer(
        "stride",
        None,
        "tokens from a window of a paragraph to the next; 0: half a window, up to 128",
        lower_bound=0,
    )
    _MAX_QUERY_LENGTH = flags.DEFINE_integer(
        "max_query_length", None, "tokens of a question", lower_bound=1
    )
    _MAX_ANSWER_LENGTH = flags.DEFINE_integer(
        "max_answer_length", None, "tokens of an answer", lower_bound=1
    )
    _NUM_BEST = flags.DEFINE_integer(
        "num_best", 3, "answers to tell of each question", lower_bound=1
    )
    cli.run(main, __doc__)
