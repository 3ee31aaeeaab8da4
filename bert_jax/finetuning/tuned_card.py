"""Writes the model card of a fine-tuned model: loading, metrics, labels and config.

The lines between --- are metadata for the Hugging Face Hub.
"""

from pathlib import Path

from bert_jax import storage
from bert_jax.finetuning.config import ChoiceTask, Task, TextTask
from bert_jax.finetuning.setup import Setup

# Kind -> the pipeline tag of the Hub, and the transformers class that has the head.
CLASSES = {
    "classification": ("text-classification", "AutoModelForSequenceClassification"),
    "regression": ("text-classification", "AutoModelForSequenceClassification"),
    "multi_label": ("text-classification", "AutoModelForSequenceClassification"),
    "tagging": ("token-classification", "AutoModelForTokenClassification"),
    "question_answering": ("question-answering", "AutoModelForQuestionAnswering"),
    "multiple_choice": ("multiple-choice", "AutoModelForMultipleChoice"),
    "similarity": ("sentence-similarity", "AutoModel"),
}
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


def write(directory: Path, setup: Setup, scores: dict[str, dict[str, float]]) -> None:
    """Writes README.md into the directory of a fine-tuned model.

    Args:
      directory: the model's directory.
      setup: the setup of the sweep.
      scores: metrics of the dev sets, keyed by their specs.
    """
    config = setup.config
    pipeline, cls = CLASSES[config.task.kind]
    sections = [
        f"{METADATA}pipeline_tag: {pipeline}\n---",
        f"# BERT for {config.task.kind.replace('_', ' ')}",
        f"Fine-tuned with bert_jax on `{config.data.train}`.",
        f"## Loading\n\n{LOADING.format(cls=cls)}",
        f"## Metrics\n\n{_metrics(scores)}",
        f"## Input\n\n{_input(config.task, config.sequence_length)}",
        *_labels(setup.datasets.names),
        f"## Config\n\n```json\n{config.to_json()}\n```",
    ]
    text = "\n\n".join(sections) + "\n"
    storage.write(str(directory / "README.md"), text.encode())


def _metrics(scores: dict[str, dict[str, float]]) -> str:
    rows = [
        f"| `{spec.replace('|', '&#124;')}` | {name} | {value:.4g} |"
        for spec, found in scores.items()
        for name, value in found.items()
    ]
    return "\n".join(["| dev set | metric | |", "|---|---|---|", *rows])


def _input(task: Task, length: int) -> str:
    is_pair = isinstance(task, TextTask) and len(task.text) == 2
    text = LENGTH.format(length=length)
    return f"{text} {PAIRS}" if is_pair or isinstance(task, ChoiceTask) else text


def _labels(names: tuple[str, ...]) -> list[str]:
    return [f"## Labels\n\n{', '.join(f'`{name}`' for name in names)}"] if names else []
