"""Tests of bert_jax.data.tokenizers.base; what kinds share is in test_tokenizers."""

from bert_jax.data.tokenizers import base


def test_sample_is_counted_in_bytes():
    documents = [["\u4f60\u597d", "a"], ["b"], ["c"]]  # seven bytes of UTF-8
    assert list(base.text_sample(documents, 6)) == documents[:1]
    assert list(base.text_sample(documents, 7)) == documents[:2]
    assert list(base.text_sample(documents, 100)) == documents
