"""Tests of bert_jax.data.corpus.segments."""

import random

import numpy as np
import pytest

from bert_jax.data.corpus import segments
from bert_jax.data.corpus.encoding import Entry

UINT16 = np.dtype(np.uint16)


def entries(count, seed=0, num_keys=10**6):
    """Returns random documents; documents with equal keys are equal."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        content = random.Random(rng.randrange(num_keys))
        lengths = [content.randint(1, 5) for _ in range(content.randint(1, 4))]
        ids = [content.randrange(60_000) for _ in range(sum(lengths))]
        found.append(
            Entry(
                content.randbytes(16),
                content.randrange(2),
                np.array(lengths, np.uint32).tobytes(),
                np.array(ids, np.uint16).tobytes(),
            )
        )
    return found


def to_entries(segment):
    """Returns the documents of a segment as a list."""
    result, sentence, token = [], 0, 0
    for record in segment.records:
        after, end = sentence + record["num_sentences"], token + record["num_tokens"]
        result.append(
            Entry(
                record["key"].astype(">u8").tobytes(),
                int(record["copy"]),
                segment.sentence_lengths[sentence:after].tobytes(),
                segment.token_ids[token:end].tobytes(),
            )
        )
        sentence, token = after, end
    assert (sentence, token) == tuple(map(len, segment[1:]))
    return result


def test_documents_are_ordered_by_key():
    found = entries(50)
    assert to_entries(segments.from_entries(found, UINT16)) == sorted(found)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_distinct_and_select_keep_one_of_equal_documents(count):
    found = entries(count, num_keys=15)
    pieces = [segments.from_entries(found[i::3], UINT16) for i in range(3)]
    everything = segments.concatenate(pieces)
    order, num_repeated = segments.distinct(everything.records)
    assert to_entries(segments.select(everything, order)) == sorted(set(found))
    left = list(found)
    for entry in set(found):
        left.remove(entry)
    assert num_repeated == sum(entry.copy == 0 for entry in left)


@pytest.mark.parametrize("num_tokens", [1, 20, 10**6])
def test_blocks_hold_all_documents_in_order(num_tokens):
    segment = segments.from_entries(entries(60), UINT16)
    order = np.random.default_rng(0).permutation(60)
    blocks = list(segments.blocks(segment.records, order, num_tokens))
    np.testing.assert_array_equal(np.concatenate(blocks), order)
    sizes = segment.records["num_tokens"]
    for block in blocks[:-1]:
        assert sizes[block].sum() >= num_tokens > sizes[block[:-1]].sum()
