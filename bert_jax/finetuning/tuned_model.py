"""Writes the directory of a fine-tuned model, and reads the settings in it.

decisions.json has the settings that determine how logits are converted to predictions,
for which Hugging Face's config.json has no keys. `predict` reads them, so that its
predictions equal those of the fine-tuning run.
"""

import dataclasses
import os
import shutil
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bert_jax import config as config_lib
from bert_jax import digests, storage
from bert_jax.config.validation import Range
from bert_jax.errors import ConfigError
from bert_jax.finetuning.tasks import TASKS
from bert_jax.finetuning.tasks.base import Examples, Task
from bert_jax.interop import files, huggingface_write
from bert_jax.small_files import read_json, write_json

if TYPE_CHECKING:
    from bert_jax.finetuning.setup import Setup

DIRECTORY = "model"
SETTINGS_FILE = "decisions.json"
# The types of settings that are no keys of config.task.
TYPES = {"num_texts": Annotated[int, Range(min=0, max=2)], "has_impossible": bool}
# The front matter is for the Hugging Face Hub.
METADATA = "---\nlibrary_name: transformers\ntags:\n- bert\n"
LOADING = """\
```python
from transformers import {cls}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
model = {cls}.from_pretrained("DIRECTORY")
```

or `python -m bert_jax.predict --model=DIRECTORY --input=FILE`. DIRECTORY is the
directory of this file."""
LENGTH = (
    "The model was fine-tuned on rows of up to {length} tokens. Longer texts are"
    " truncated at the end."
)
PAIRS = (
    "A pair that is too long loses tokens from the end of the longer text; if both are"
    " equally long, from the second (google-research/bert run_classifier.py)."
    ' `truncation="longest_first"` of transformers\' fast tokenizers differs by one'
    " token if rows have an even number N of tokens, both texts have N/2 - 1 or more,"
    " and the second has at least as many as the first: it then keeps one token more of"
    " the second and one less of the first."
)


def write(
    setup: "Setup", params: Any, workdir: str, scores: dict[str, dict[str, float]]
) -> None:
    """Writes a model for transformers and `predict`, in the place of an earlier one."""
    target = Path(workdir) / DIRECTORY
    old = target.with_name(f".{DIRECTORY}.unfinished.old")
    # A killed process leaves its unfinished directory.
    for unfinished in target.parent.glob(f".{DIRECTORY}.unfinished.*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    with files.new_directory(target) as tmp:
        tokenizer, length = setup.encoder.tokenizer, setup.config.sequence_length
        huggingface_write.write_tuned(
            tmp, params, setup.model, setup.head, tokenizer, length
        )
        write_settings(tmp, setup.config.task, setup.datasets.train.examples)
        digests.write_sums(tmp)
        write_card(tmp, setup, scores)  # has no digest, because users edit it
        if target.exists():
            os.replace(target, old)
    shutil.rmtree(old, ignore_errors=True)


def write_settings(directory: Path, task: Task, train: Examples) -> None:
    """Writes decisions.json if a task has settings, attributes of it or its data."""
    if task.settings:
        values = {
            key: getattr(task if hasattr(task, key) else train, key)
            for key in task.settings
        }
        write_json(directory / SETTINGS_FILE, values)


def read_settings(directory: Path, kind: str, **given: Any) -> dict[str, Any]:
    """Reads a model's settings; `given` ones that are not None replace them."""
    cls, path = TASKS[kind], directory / SETTINGS_FILE
    types = typing.get_type_hints(cls, include_extras=True) | TYPES
    found = dict(cls.settings)
    if found and path.is_file():
        stored = read_json(files.file(directory, SETTINGS_FILE))
        for key, value in found.items():
            value = stored.get(key, value)
            found[key] = config_lib.build(types[key], value, f"{path}: {key}")
    for key, value in given.items():
        if value is None:
            continue
        if key not in found:
            raise ConfigError(
                f"{key}={value} does not apply to a model fine-tuned for {kind}; remove"
                " it"
            )
        found[key] = config_lib.build(types[key], value, key)
    return found


def task_of(
    kind: str, labels: tuple[str, ...], settings: dict[str, Any], num_best: int
) -> Task:
    """Returns the task of a model; keys that do not affect predictions are None."""
    cls: Any = TASKS[kind]
    values = {"kind": kind, "labels": labels, "num_best": num_best} | settings
    if "num_texts" in settings:
        values["text"] = ("",) * settings["num_texts"]
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: values.get(name) for name in names})


def write_card(
    directory: Path, setup: "Setup", scores: dict[str, dict[str, float]]
) -> None:
    """Writes README.md into the directory of a fine-tuned model."""
    config, names = setup.config, setup.datasets.names
    task = config.task
    cls = task.head.architecture.removeprefix("Bert").removeprefix("Model")
    limits = [LENGTH.format(length=config.sequence_length), *[PAIRS] * task.cuts_pairs]
    metrics = [
        f"| `{spec.replace('|', '&#124;')}` | {name} | {value:.4g} |"
        for spec, found in scores.items()
        for name, value in found.items()
    ]
    sections = [
        f"{METADATA}pipeline_tag: {task.pipeline}\n---",
        f"# BERT for {task.kind.replace('_', ' ')}",
        f"Fine-tuned with bert_jax on `{config.data.train}`.",
        f"## Loading\n\n{LOADING.format(cls='AutoModel' + cls)}",
        "\n".join(["## Metrics\n\n| dev set | metric | |\n|---|---|---|", *metrics]),
        f"## Input\n\n{' '.join(limits)}",
        f"## Labels\n\n{', '.join(f'`{name}`' for name in names)}" if names else "",
        f"## Config\n\n```json\n{config.to_json()}\n```",
    ]
    text = "\n\n".join(filter(None, sections)) + "\n"
    storage.write(str(directory / "README.md"), text.encode())
