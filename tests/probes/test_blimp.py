"""Minimal pairs: how they are read, sampled and judged."""

import numpy as np
import pytest

from bert_jax.errors import ConfigError
from bert_jax.probes import blimp
from bert_jax.probes.blimp import Pairs
from tests.probes import tasks


def test_a_sample_is_evenly_spaced_and_the_same_in_every_call(tmp_path):
    tasks.write_blimp(tmp_path, 40)
    everything = blimp.read(tmp_path, None, "--data")
    assert len(everything.good) == len(everything.bad) == 80
    assert everything.terms == ["order"] * 40 + ["agreement"] * 40
    found = blimp.read_probe(tmp_path, "config.eval.probes")
    assert found == blimp.read_probe(tmp_path, "config.eval.probes")
    assert len(found.good) == 2 * blimp.PROBED_PAIRS == 20
    assert found.good == everything.good[::4] and found.bad == everything.bad[::4]


def test_short_files_are_read_whole(tmp_path):
    tasks.write_blimp(tmp_path, 3)
    everything = blimp.read(tmp_path, None, "")
    assert blimp.read(tmp_path, 10, "") == everything and len(everything.good) == 6
    assert len(blimp.read(tmp_path, 2, "").good) == 4


def test_terms_are_file_names_where_a_file_has_none(tmp_path):
    line = '{"sentence_good": "a b", "sentence_bad": "b a"}\n'
    (tmp_path / "own.jsonl").write_text(line)
    assert blimp.read(tmp_path, None, "") == Pairs(["a b"], ["b a"], ["own"])


def test_a_pair_is_correct_if_the_good_sentence_scores_higher():
    pairs = Pairs(["aaa", "b", "cc"], ["a", "bb", "dd"], ["x"] * 3)

    def length(texts):
        return np.array([float(len(text)) for text in texts])

    assert blimp.are_correct(pairs, length).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no .jsonl files; give the directory of BLiMP's data"),
        ('{"sentence_good": "a"}', "has no column 'sentence_bad'; its columns are"),
        ('{"sentence_good": "a", "sentence_bad": 3}', "has 3 as a sentence"),
        ("a b", "a.jsonl:1 is not JSON"),
        ("", "has no rows"),
    ],
)
def test_other_files_are_errors(content, message, tmp_path):
    if content is not None:
        (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        blimp.read(tmp_path, None, "--data")
    assert "\n" not in str(error.value)
