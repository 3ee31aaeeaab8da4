"""The field's metrics of a dev set, from libraries; squad_metrics.py has SQuAD's.

The libraries are imported where they are used: they take longer than the rest of a
command's start, and most commands compute no metric.

Shapes: N example, C class.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

_UNDEFINED: Any = 0  # F1 of a class that is nowhere; scikit-learn declares str alone


def classification(
    predicted_N: np.ndarray, labels_N: np.ndarray, num_classes: int
) -> dict[str, float]:
    """Returns accuracy, Matthews' correlation, F1: of class 1 of two, else macro_f1."""
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
    """Returns Pearson's and Spearman's correlation; 0 where one side is constant."""
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
    """Returns F1 over all decisions and the mean of the classes' F1.

    A class that is nowhere, in neither, counts as 0 in the mean.
    """
    import sklearn.metrics

    is_one = labels_NC.shape[1] == 1  # which scikit-learn would take for two classes
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
    """Returns precision, recall and F1 of entities, right in both ends and type.

    Args:
      predicted: BIO tags of every word of each sentence.
      tags: the right ones.
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
