"""Submission files have the format of gluebenchmark.com."""

import numpy as np

from bert_jax.finetuning.tasks import glue


def test_values_are_numbers_names_or_scores_by_index(tmp_path):
    names = ("entailment", "not_entailment")
    index = np.array([1, 0])
    predicted = np.array([0, 1])
    path = glue.write(tmp_path, "rte", predicted, names, index)
    assert path == tmp_path / "RTE.tsv"
    assert path.read_bytes() == (
        b"index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    )
    path = glue.write(tmp_path, "sst2", predicted, names, index)
    assert path.read_text() == "index\tprediction\n0\t1\n1\t0\n"
    scores = np.array([-0.2, 3.14159, 5.6], np.float32)
    path = glue.write(tmp_path, "stsb", scores, ("score",), np.arange(3))
    assert path.read_text().splitlines()[1:] == ["0\t0.000", "1\t3.142", "2\t5.000"]
