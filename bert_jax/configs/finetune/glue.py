"""GLUE: classify sentences and pairs of sentences, or score their similarity.

    python -m bert_jax.finetune --config=configs/finetune/glue.py:rte --model=MODEL

The argument after the colon is the task. Devlin et al. 2019, table 1, reports these
scores for BERT-base on GLUE's test sets:

    cola  is a sentence acceptable English?        Matthews correlation 52.1
    mnli  entailment, neutral or contradiction?    accuracy 84.6, mismatched 83.4
    mrpc  are two sentences paraphrases?           F1 88.9
    qnli  does a sentence answer a question?       accuracy 90.5
    qqp   have two questions the same meaning?     F1 71.2
    rte   does a sentence follow from another?     accuracy 66.4
    sst2  is a film review positive?               accuracy 93.5
    stsb  similarity of two sentences, 0 to 5      Spearman correlation 85.8
    wnli  does a sentence with a pronoun resolved follow from the original?

The paper does not report WNLI: sentences of its dev set occur in the training set with
the opposite label, so always predicting the majority class scores better.

The data sets are those of TensorFlow Datasets. To use GLUE's own files, for example of
sst2:

    --config.data.train=tsv:SST-2/train.tsv --config.data.dev="('tsv:SST-2/dev.tsv',)"
    --config.data.test="('tsv:SST-2/test.tsv',)" --config.task.index=index

Other columns have other names in GLUE's files:

    mnli  --config.task.text="('sentence1', 'sentence2')" --config.task.label=gold_label
    mrpc  --config.task.text="('#1 String', '#2 String')" --config.task.label=Quality
    qqp   --config.task.index=id --config.task.label=is_duplicate
    stsb  --config.task.label=score
    cola  --config.data.header="('source', 'label', 'star', 'sentence')"
          --config.data.test="()" --config.task.glue="()"

CoLA's training and dev sets have no header, but its test set has one and different
columns, so that it cannot be read in the same call.
"""

import dataclasses

import ml_collections

from bert_jax.configs.finetune import recipe
from bert_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Task:
    text: tuple[str, ...]  # columns
    labels: tuple[str, ...]
    metric: str = "accuracy"  # GLUE's metric
    kind: str = "classification"


PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), "matthews"),
    "mnli": Task(("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "mrpc": Task(PAIR, ("not_equivalent", "equivalent"), "f1"),
    "qnli": Task(("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), "f1"),
    "rte": Task(PAIR, ("entailment", "not_entailment")),
    "sst2": Task(("sentence",), ("negative", "positive")),
    "stsb": Task(PAIR, ("score",), "spearman", "regression"),
    "wnli": Task(PAIR, ("not_entailment", "entailment")),
}


def get_config(name: str = "") -> ml_collections.ConfigDict:
    if name not in TASKS:
        raise ConfigError(
            f"{name!r} is not a GLUE task; append one to the file name, as in"
            f" glue.py:rte: {', '.join(TASKS)}"
        )
    task = TASKS[name]
    # MNLI has two dev and two test sets, of the training set's genres and of others.
    parts = ("_matched", "_mismatched") if name == "mnli" else ("",)
    config = recipe.get_config()
    config.data.train = f"tfds:glue/{name}:train"
    config.data.dev = tuple(f"tfds:glue/{name}:validation{part}" for part in parts)
    config.data.test = tuple(f"tfds:glue/{name}:test{part}" for part in parts)
    config.task = recipe.text_task(task.kind, task.text, task.labels)
    config.task.glue = tuple(f"{name}{part}" for part in parts)
    config.task.index = "idx"
    config.metric = task.metric
    return config
