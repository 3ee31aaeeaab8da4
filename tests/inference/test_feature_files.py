"""A file of features appears only when it is complete."""

import json

import numpy as np
import pytest

from bert_jax.inference import TokenFeatures, feature_files


@pytest.mark.parametrize("name", ["a.jsonl", "a.npz"])
def test_a_failed_command_leaves_no_file(name, tmp_path):
    with pytest.raises(RuntimeError):
        with feature_files.writing(tmp_path / name, ()):
            raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_both_formats_have_the_same_features_over_several_chunks(tmp_path):
    def features(*ids):
        ids = np.array(ids, np.int32)
        return TokenFeatures(
            ids, ids, ids + 1, np.stack([ids, -ids], 1) / np.float32(3)
        )

    chunks = [([("a", "b")], [features(0, 2)]), ([("c",)], [features(1)])]
    for name in ("a.jsonl", "a.npz"):
        with feature_files.writing(tmp_path / name, ("x", "y", "z")) as write:
            for texts, found in chunks:
                write(texts, found)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").open()]
    assert [row["text"] for row in rows] == ["a ||| b", "c"]
    assert [row["tokens"] for row in rows] == [["x", "z"], ["y"]]
    assert rows[0]["features"] == [[0.0, 0.0], [0.666667, -0.666667]]
    arrays = np.load(tmp_path / "a.npz")
    assert arrays["lengths"].tolist() == [2, 1] and arrays["tokens"].tolist() == [
        0,
        2,
        1,
    ]
    np.testing.assert_allclose(arrays["features"][1], [2 / 3, -2 / 3], rtol=1e-6)
