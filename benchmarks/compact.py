"""What fewer layers and fewer bits cost and save: tuned models of one task compared.

    python -m benchmarks.compact MODEL [MODEL ...] --dev=FILE.tsv [--repeats=5]

MODEL is a WORKDIR/model of `finetune` for classification of sentences; FILE has columns
`sentence` and `label`, a number. A row for each model with float32 and with int8
weights: sentences a second, beside the first model's in float32, and with it `accuracy`
and `parameter_bytes`, which are what predict holds in memory.
"""

import argparse
import csv
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import rows
from bert_jax import int8, sharding, trained
from bert_jax.config import MeshConfig
from bert_jax.tasks import line_input, task
from bert_jax.tasks.config import TextTask
from bert_jax.tasks.predictor import Predictor
from bert_jax.trained import Trained

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
    mesh = sharding.make_mesh(
        MeshConfig(data=-1, fsdp=1, tensor=1, shard_optimizer=False)
    )
    jax.set_mesh(mesh)
    sentences, labels_N = read(args.dev)

    models, predictors = {}, {}
    for path in args.models:
        exact = trained.read_tuned(path)
        layers = f"{path}: {exact.config.num_hidden_layers} layers"
        for weights, model in ("float32", exact), ("int8", int8.quantized(exact)):
            models[f"{layers}, {weights}"] = model
            predictors[f"{layers}, {weights}"] = make(model, mesh, sentences)

    accuracy = {
        case: float(np.mean(predict_().argmax(-1) == labels_N))  # and compiles
        for case, predict_ in predictors.items()
    }
    rates: dict[str, list[float]] = {case: [] for case in predictors}
    for _ in range(args.repeats):  # in turns: the machine's noise hits all alike
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
    model: Trained, mesh: jax.sharding.Mesh, sentences: list[str]
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
    examples = line_input.examples_of(TASK, [(s,) for s in sentences], 1, False)
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
