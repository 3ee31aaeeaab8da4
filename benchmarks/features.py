"""Evaluates word features without fine-tuning, with a linear classifier of entities.

    python -m benchmarks.features --model=DIR --train=FILE.conll --dev=FILE.conll
        [--length=64]

Prints a row for each combination of layers that the model has: F1 of entities on the
dev set, compared with the features of the embeddings, which depend on a word but not on
its sentence. As in Devlin et al. 2019, section 5.3, a word's features are those of its
first token. The paper's classifier is an LSTM; this one is scikit-learn's logistic
regression.
"""

import argparse

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import rows
from bert_jax import inference
from bert_jax.finetuning import metrics
from bert_jax.finetuning.data import conll
from bert_jax.finetuning.data.conll import Sentences
from bert_jax.inference import TextEncoder

MAX_ITERATIONS = 1_000  # the default of 100 does not converge on 256 features
WITHOUT_CONTEXT = "first"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()
    model = inference.load(args.model, max_length=args.length)
    train = conll.read(f"conll:{args.train}", "", "")
    dev = conll.read(f"conll:{args.dev}", "", "")
    enough = model.num_layers >= 4
    scores = {
        layers: score(model, layers, train, dev)
        for layers in inference.LAYERS
        if enough or not layers.endswith("last_four")
    }
    for layers, f1 in scores.items():
        rows.print_row(
            "features",
            f"{layers}, linear",
            "F1 of entities",
            [f1],
            WITHOUT_CONTEXT,
            [scores[WITHOUT_CONTEXT]],
        )


def score(model: TextEncoder, layers: str, train: Sentences, dev: Sentences) -> float:
    """Trains a linear classifier and returns its F1 of entities on the dev set."""
    classifier = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS)
    )
    classifier.fit(words(model, layers, train), tags(train))
    found = classifier.predict(words(model, layers, dev))
    ends = np.cumsum([len(sentence) for sentence in dev.words])
    predicted = [part.tolist() for part in np.split(found, ends[:-1])]
    return metrics.tagging(predicted, dev.tags or [])["f1"]


def words(model: TextEncoder, layers: str, sentences: Sentences) -> np.ndarray:
    """Returns the features of all words, float32[words, features]."""
    # Spaces separate words, so they are replaced inside of words.
    texts = [
        " ".join(word.replace(" ", "_") for word in sentence)
        for sentence in sentences.words
    ]
    found = model.features(texts, layers=layers, pooling="words")
    return np.concatenate([features.values for features in found])


def tags(sentences: Sentences) -> list[str]:
    return [tag for sentence in sentences.tags or [] for tag in sentence]


if __name__ == "__main__":
    main()
