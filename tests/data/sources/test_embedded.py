"""Tests of bert_jax.data.sources.embedded: prose from the installed Python."""

import itertools

import numpy as np

from bert_jax.data.sources import embedded


def test_yields_hundreds_of_documents_of_prose_in_a_fixed_order():
    found = list(itertools.islice(embedded.documents(), 200))
    assert len({name for name, _ in found}) == 200
    documents = [document for _, document in found]
    assert sum(len(document) >= 2 for document in documents) > 100
    words = [len(s.split()) for document in documents for s in document]
    assert min(words) >= 3
    assert 8 < np.mean(words) < 40
    assert list(itertools.islice(embedded.documents(), 60)) == found[:60]
