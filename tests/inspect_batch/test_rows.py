"""The rows that are shown equal the batch that `train` uses in the step."""

import dataclasses
import itertools

import numpy as np
import pytest

from bert_jax.config import PhaseConfig
from bert_jax.data.batches import pipeline
from bert_jax.inspect_batch import rows
from tests import corpora
from tests.corpora import changed, make_config, make_documents, write

PHASES = [
    {
        "num_steps": 5,
        "sequence_length": 16,
        "global_batch_size": 8,
        "max_predictions": 4,
        "max_sequences_per_row": 1,
    },
    {
        "num_steps": 3,
        "sequence_length": 64,
        "global_batch_size": 4,
        "max_predictions": 12,
        "max_sequences_per_row": 4,
    },
]


@pytest.fixture(params=[True, False], ids=["pairs", "masked_lm_only"])
def made(tmp_path, request):
    config = make_config(tmp_path, next_sentence=request.param)
    phases = tuple(PhaseConfig(**phase) for phase in PHASES)
    config = dataclasses.replace(config, phases=phases)
    return config, write(config, make_documents(80, max_sentences=12))


def batch_of(config, found, step):
    """Returns the step's batch by iterating from the start of its phase."""
    phase_index, first = (0, step - 1) if step <= 5 else (1, step - 6)
    options = {"seed": config.seed, "phase_index": phase_index}
    batches = corpora.batches(found, config, **options)
    return next(itertools.islice(batches, first, None))


@pytest.mark.parametrize("number", [1, 5, 6, 8])
def test_tokens_equal_the_batch_of_the_step(made, number):
    config, found = made
    step = rows.read_step(found, config, number)
    batch = batch_of(config, found, number)
    assert (step.number, step.num_steps, step.phase_index) == (number, 8, number > 5)
    assert len(step.rows) == len(batch["input_ids"])
    id_of = {piece: i for i, piece in enumerate(found.tokenizer.vocab)}
    for i, row in enumerate(step.rows):
        tokens = [token for pair in row.pairs for token in pair.tokens]
        real = batch["sequence_ids"][i] > 0
        assert row.num_padding == np.count_nonzero(~real)
        ids = [id_of[token.piece] for token in tokens]
        assert ids == batch["input_ids"][i][real].tolist()
        positions = [token.position for token in tokens]
        assert positions == batch["position_ids"][i][real].tolist()
        used = batch["masked_lm_weights"][i] > 0
        places = [place for place, token in enumerate(tokens) if token.mask]
        assert places == batch["masked_lm_positions"][i][used].tolist()
        labels = [id_of[tokens[place].original] for place in places]
        assert labels == batch["masked_lm_ids"][i][used].tolist()
        weights = batch["next_sentence_weights"][i] > 0
        assert [pair.is_random for pair in row.pairs if len(pair.segments) == 2] == (
            batch["next_sentence_labels"][i][weights] == 1
        ).tolist()
    index, first = (0, number - 1) if number <= 5 else (1, number - 6)
    places = pipeline.places(
        found, config, seed=config.seed, phase_index=index, step=first
    )
    assert [(row.shard, row.epoch, row.index) for row in step.rows] == [
        (shard, epoch, i) for shard, epoch, a, b in places for i in range(a, b)
    ]


@pytest.mark.parametrize("number", [2, 7])
def test_segments_are_excerpts_of_their_documents(made, number):
    config, found = made
    step = rows.read_step(found, config, number)
    shards = {shard.file: shard for shard in found.shards["train"]}
    seen_b = 0
    for row in step.rows:
        ids, documents = found.load(shards[row.shard])
        starts = documents.token_offsets[documents.sentence_offsets]
        words = [found.tokenizer.vocab[i] for i in ids]
        for pair in row.pairs:
            for part, excerpt in zip("ab", pair.segments, strict=False):
                text = [t.original for t in pair.tokens if t.part == part]
                first = starts[excerpt.document] + excerpt.first
                assert text == words[first : first + excerpt.length]
                begins = excerpt.beginning.removesuffix(" ...").split()
                assert begins == words[starts[excerpt.document] :][: len(begins)]
                assert len(begins) == min(
                    excerpt.document_length, rows.BEGINNING_TOKENS
                )
                seen_b += part == "b"
            if pair.is_random is False:
                a, b = pair.segments
                assert b.document == a.document
                # Unless the pair was truncated.
                is_full = a.length + b.length == step.sequence_length - 3
                assert is_full or b.first == a.first + a.length
    assert bool(seen_b) == config.data.next_sentence


def test_masks_are_classified_by_their_replacement(made):
    config, found = made
    config = changed(config, "data", mask_replace_prob=0.4, mask_random_prob=0.3)
    step = rows.read_step(found, config, 6)
    for pair in step.pairs:
        for token in pair.tokens:
            if token.mask in ("", "kept"):
                assert token.piece == token.original
            elif token.mask == "masked":
                assert token.piece == "[MASK]" != token.original
            else:
                assert token.mask == "random" and token.piece != token.original
    counts = step.count_masks()
    assert min(counts[kind] for kind in ("", "masked", "random", "kept")) > 0
    assert counts.total() == sum(
        token.piece not in ("[CLS]", "[SEP]") or bool(token.mask)
        for pair in step.pairs
        for token in pair.tokens
    )
    # Only [CLS] and [SEP] are "special", although a random replacement may be either.
    for pair in step.pairs:
        special = [token for token in pair.tokens if token.part == "special"]
        assert [t.piece for t in special] == ["[CLS]", "[SEP]", "[SEP]"][
            : 1 + len(pair.segments)
        ]


def test_the_summary_counts_the_whole_batch(made):
    config, found = made
    step = rows.read_step(found, config, 1)
    first, pairs, masks = rows.summary(step)
    assert first.startswith("step 1 of 8, phases[0]: 8 rows of 16 tokens, ")
    batch = batch_of(config, found, 1)
    assert f"{np.mean(batch['sequence_ids'] == 0):.1%} padding" in first
    num_masked = int(batch["masked_lm_weights"].sum())
    assert masks.startswith(f"masks: {num_masked} of ")
    if config.data.next_sentence:
        num_random = int(batch["next_sentence_labels"].sum())
        assert pairs.startswith(f"pairs: 8, {num_random} with random B")
        guess = max(num_random, 8 - num_random) / 8
        assert pairs.endswith(f"the more frequent label has accuracy {guess:.0%}")
    else:
        assert pairs == "pairs: 8, no next sentence prediction"
