"""Tests of bert_jax.data.tokenizers.base; see also test_tokenizers.py."""

from bert_jax.data.tokenizers import base


def test_text_sample_is_limited_in_bytes():
    documents = [["\u4f60\u597d", "a"], ["b"], ["c"]]  # seven bytes of UTF-8
    assert list(base.text_sample(documents, 6)) == documents[:1]
    assert list(base.text_sample(documents, 7)) == documents[:2]
    assert list(base.text_sample(documents, 100)) == documents
