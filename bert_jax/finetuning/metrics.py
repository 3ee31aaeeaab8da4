"""Metrics of a dev set, computed by scikit-learn, SciPy and nervaluate.

The metrics of SQuAD are in squad_metrics.py. The libraries are imported inside the
functions that use them: importing them takes longer than the rest of a command's
start-up, and most commands compute no metric.

Shapes: N example, C class.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import ConfigError

# F1 of a class that occurs in neither predictions nor labels. The type is Any because
# scikit-learn's stubs declare `zero_division` as str only.
_UNDEFINED: Any = 0


def check_installed() -> None:
    """Raises ConfigError if a library of the metrics is not installed."""
    for package in ("sklearn", "nervaluate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"fine-tuning needs {package}, which is not installed; pip install"
                " 'bert_jax[finetune]'"
            )


def classification(
    predicted_N: np.ndarray, labels_N: np.ndarray, num_classes: int
) -> dict[str, float]:
    """Returns accuracy, Matthews correlation and F1.

    F1 is "f1", that of class 1, for two classes, and "macro_f1" otherwise.
    """
    import sklearn.metrics

    found = {
        "accuracy": sklearn.metrics.accuracy_score(labels_N, predicted_N),
        "matthews": sklearn.metrics.matthews_corrcoef(labels_N, predicted_N),
    }
    if num_classes == 2:
        found["f1"] = sklearn.metrics.f1_score(
            labels_N, predicted_N, zero_division=_UNDEFINED
        )
    else:
        found["macro_f1"] = sklearn.metrics.f1_score(
            labels_N,
            predicted_N,
            labels=np.arange(num_classes),
            average="macro",
            zero_division=_UNDEFINED,
        )
    return {name: float(value) for name, value in found.items()}


def regression(predicted_N: np.ndarray, labels_N: np.ndarray) -> dict[str, float]:
    """Returns Pearson and Spearman correlation; both are 0 if one side is constant."""
    import scipy.stats

    if min(np.ptp(predicted_N), np.ptp(labels_N)) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    pearson: Any = scipy.stats.pearsonr(predicted_N, labels_N)
    spearman: Any = scipy.stats.spearmanr(predicted_N, labels_N)
    return {
        "pearson": float(pearson.statistic),
        "spearman": float(spearman.statistic),
    }


def multi_label(predicted_NC: np.ndarray, labels_NC: np.ndarray) -> dict[str, float]:
    """Returns micro F1, over all decisions, and macro F1, the mean over classes.

    A class that occurs in neither predictions nor labels has an F1 of 0.
    """
    import sklearn.metrics

    # scikit-learn would interpret a single column as two classes.
    is_one = labels_NC.shape[1] == 1
    return {
        f"{average}_f1": float(
            sklearn.metrics.f1_score(
                labels_NC,
                predicted_NC,
                average="binary" if is_one else average,
                zero_division=_UNDEFINED,
            )
        )
        for average in ("micro", "macro")
    }


def tagging(
    predicted: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns precision, recall and F1 of entities.

    An entity is correct if its start, end and type are.

    Args:
      predicted: predicted BIO tags, one per word of each sentence.
      tags: reference tags of the same sentences.
    """
    from nervaluate.evaluator import Evaluator

    types = sorted({t[2:] for side in (predicted, tags) for s in side for t in s})
    found = Evaluator(
        [list(sentence) for sentence in tags],
        [list(sentence) for sentence in predicted],
        tags=[type_ for type_ in types if type_],
        loader="list",
    ).evaluate()["overall"]["strict"]
    return {
        "precision": float(found.precision),
        "recall": float(found.recall),
        "f1": float(found.f1),
    }
