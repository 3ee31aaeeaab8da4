"""Compares accuracy, speed and memory of fine-tuned models with fewer layers or bits.

    python -m benchmarks.compact MODEL [MODEL ...] --dev=FILE.tsv [--repeats=5]

MODEL is a WORKDIR/model of `finetune` for sentence classification. FILE has the columns
`sentence` and `label`, a number. Prints a row for each model with float32 and with int8
weights: sentences per second, compared with the first model in float32, `accuracy`, and
`parameter_bytes`, the memory that parameters take in predict.
"""

import argparse
import csv
import dataclasses
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import rows
from bert_jax.config import MeshConfig
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.finetuning import task
from bert_jax.finetuning.config import TextTask
from bert_jax.finetuning.predictor import Predictor
from bert_jax.inference import examples as examples_lib
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import PlacedModel
from bert_jax.model import int8

BATCH_SIZE = 32
TASK = TextTask(
    kind="classification",
    text=(),
    label="",
    labels=(),
    glue=(),
    index="",
    threshold=0.5,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--dev", type=pathlib.Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    mesh = mesh_lib.make_mesh(
        MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)
    )
    jax.set_mesh(mesh)
    sentences, labels_N = read(args.dev)

    models, predictors = {}, {}
    for path in args.models:
        exact = model_lib.place(model_lib.read_tuned(path))
        layers = f"{path}: {exact.config.num_hidden_layers} layers"
        small = dataclasses.replace(exact, params=int8.quantize(exact.params))
        for weights, model in ("float32", exact), ("int8", small):
            models[f"{layers}, {weights}"] = model
            predictors[f"{layers}, {weights}"] = make(model, mesh, sentences)

    accuracy = {
        case: float(np.mean(predict_().argmax(-1) == labels_N))  # also compiles
        for case, predict_ in predictors.items()
    }
    rates: dict[str, list[float]] = {case: [] for case in predictors}
    # The models alternate, so that noise of the machine affects all equally.
    for _ in range(args.repeats):
        for case, predict_ in predictors.items():
            start = time.perf_counter()
            predict_()
            rates[case].append(len(sentences) / (time.perf_counter() - start))
    first = next(iter(predictors))
    for case, model in models.items():
        rows.print_row(
            "compact",
            case,
            "sentences/s",
            rates[case],
            first,
            rates[first],
            accuracy=round(accuracy[case], 4),
            parameter_bytes=sum(x.nbytes for x in jax.tree.leaves(model.params)),
        )


def read(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    labels = [int(row["label"]) for row in table]
    return [row["sentence"] for row in table], np.array(labels)


def make(
    model: PlacedModel, mesh: jax.sharding.Mesh, sentences: list[str]
) -> Callable[[], np.ndarray]:
    """Returns a function that computes the logits of all sentences."""
    assert model.head is not None
    predictor = Predictor(
        model.graphdef,
        length=model.max_length,
        batch_size=BATCH_SIZE,
        dtype=jnp.dtype("float32"),
        mesh=mesh,
    )
    examples = examples_lib.examples_of(TASK, [(s,) for s in sentences], False)
    features = task.featurize(
        TASK,
        examples,
        model.head.labels,
        model.tokenizer,
        model.max_length,
        is_training=False,
    )
    return lambda: predictor(model.params, features)


if __name__ == "__main__":
    main()
