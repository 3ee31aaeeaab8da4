"""Masked rows: every token of every text is masked once, in few row lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.inference import pseudo_likelihood
from bert_jax.inference.pseudo_likelihood import Scorer
from tests.models import TOKENIZER

TEXTS = ["w1 w2", "w3", "", " ".join(["w4"] * 40), "w5 w6 w7"]
MASK, SEP = 4, 3


@pytest.fixture
def scored(monkeypatch):
    """The scores of TEXTS by a model whose log-probability is minus the id, and the
    batches that it was given."""
    seen = []

    def forward(params, batch):
        seen.append({name: np.asarray(rows) for name, rows in batch.items()})
        return -batch["masked_lm_ids"][:, 0].astype(jnp.float32)

    monkeypatch.setattr(pseudo_likelihood, "_forward", lambda *_: forward)
    scorer = Scorer(
        None,  # type: ignore[arg-type]
        TOKENIZER,
        max_length=32,
        batch_size=5,
        dtype=jnp.dtype(jnp.float32),
        mesh=jax.sharding.get_mesh(),
    )
    return scorer(None, TEXTS), seen


def test_scores_are_sums_over_the_tokens_of_a_text(scored):
    scores, _ = scored
    ids = [[TOKENIZER.id(word) for word in text.split()][:30] for text in TEXTS]
    assert scores.values.tolist() == [-sum(text) for text in ids]
    assert scores.num_tokens.tolist() == [2, 1, 0, 30, 3]
    assert scores.num_truncated == 1


def test_each_row_has_one_mask_in_place_of_its_token(scored):
    _, batches = scored
    assert [len(batch["input_ids"]) for batch in batches] == [5] * 8  # 36 rows
    assert [batch["input_ids"].shape[1] for batch in batches] == [16] + [32] * 7
    places = []
    for batch in batches:
        for ids, (place,), (true,) in zip(
            batch["input_ids"],
            batch["masked_lm_positions"],
            batch["masked_lm_ids"],
            strict=True,
        ):
            assert np.flatnonzero(ids == MASK).tolist() == [place]
            assert TOKENIZER.vocab[true].startswith("w")
            assert 1 <= place < np.flatnonzero(ids == SEP)[0]
            places.append(place)
    assert places[:6] == [1, 1, 2, 1, 2, 3] and places[6:36] == [*range(1, 31)]
