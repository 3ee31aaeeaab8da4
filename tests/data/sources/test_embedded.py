"""Tests of bert_jax.data.sources.embedded: prose that is on every machine."""

import itertools

import numpy as np

from bert_jax.data.sources import embedded


def test_gives_hundreds_of_documents_of_prose_the_same_every_time():
    found = list(itertools.islice(embedded.documents(), 400))
    assert len({name for name, _ in found}) == 400
    documents = [document for _, document in found]
    assert sum(len(document) >= 2 for document in documents) > 200
    words = [len(s.split()) for document in documents for s in document]
    assert min(words) >= 3
    assert 8 < np.mean(words) < 40
    assert list(itertools.islice(embedded.documents(), 120)) == found[:120]
