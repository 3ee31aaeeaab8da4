"""Scores equal those of transformers computed one masked sentence at a time.

Every token of every text is masked once, in few row lengths.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import inference
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_write
from bert_jax.model import bert, parameters
from tests.conftest import make_config, use_mesh
from tests.finetuning import tuned
from tests.models import TOKENIZER, VOCAB, tensors_of

TEXTS = [
    "w1 w2 w3",
    "",
    "w9",
    " ".join(f"w{i}" for i in range(30)),  # exactly 32 tokens
    " ".join(f"w{i}" for i in range(40)),  # truncated
    "W5 nowhere w7 w7",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Writes a random model whose weights are larger than initial ones."""
    use_mesh(1, 1, 1)
    path = tmp_path_factory.mktemp("model")
    config = make_config()
    _, params = bert.build(config.model, len(VOCAB), jax.random.key(3))
    random = np.random.default_rng(0)
    arrays = {
        name: array + random.normal(0, 0.1, array.shape).astype(np.float32)
        for name, array in parameters.by_name(params).items()
    }
    params = parameters.place(params, arrays)
    huggingface_write.write(path, params, config, TOKENIZER)
    return path


def load(directory, **changes):
    return inference.load_masked_lm(directory, **{"batch_size": 8} | changes)


def their_scores(directory, texts):
    """Returns what transformers computes for unpadded sentences, one at a time."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.BertForMaskedLM.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    scores, counts = [], []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=32)["input_ids"]
        total = 0.0
        for place in range(1, len(ids) - 1):
            masked = [*ids]
            masked[place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(torch.tensor([masked])).logits[0, place]
            total += torch.log_softmax(logits, -1)[ids[place]].item()
        scores.append(total)
        counts.append(len(ids) - 2)
    return np.array(scores), counts


def test_scores_equal_transformers(directory):
    model = load(directory)
    done: list[int] = []
    found = model.score(TEXTS, on_batch=done.append)
    expected, counts = their_scores(directory, TEXTS)
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-4)
    assert found.num_tokens.tolist() == counts == [3, 0, 1, 30, 30, 4]
    assert found.values[1] == 0 and np.ptp(expected) > 10
    assert sum(done) == model.num_tokens == 68 and max(done) == 8
    assert model.num_truncated == 1


@pytest.mark.slow
def test_a_score_does_not_depend_on_the_batch_or_the_mesh(directory):
    expected = load(directory, batch_size=3).score(TEXTS).values
    (alone,) = load(directory).score(TEXTS[:1]).values
    assert alone == pytest.approx(expected[0], abs=1e-5)
    use_mesh(4, 1, 2)
    found = load(directory).score(TEXTS).values
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_model_of_transformers_without_other_heads_is_read(directory, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForMaskedLM.from_pretrained(directory)
    theirs.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(tmp_path)
    assert not any("seq_relationship" in name for name in tensors_of(tmp_path))
    found = load(tmp_path).score(TEXTS).values
    np.testing.assert_array_equal(found, load(directory).score(TEXTS).values)


def test_no_texts_have_no_scores(directory):
    for texts in ([], ["", " "]):
        found = load(directory).score(texts)
        assert found.values.tolist() == [0.0] * len(texts)
        assert found.num_tokens.tolist() == [0] * len(texts)


@pytest.mark.slow
def test_bfloat16_changes_scores_little(directory):
    exact = load(directory).score(TEXTS).values
    found = load(directory, compute_dtype="bfloat16").score(TEXTS).values
    np.testing.assert_allclose(found, exact, rtol=0.03, atol=0.05)
    assert not np.array_equal(found, exact)


def test_invalid_texts_are_errors(directory):
    with pytest.raises(TypeError, match="not the string 'w1'"):
        load(directory).score("w1")
    with pytest.raises(TypeError, match="texts must be strings, not \\('w1', 'w2'\\)"):
        load(directory).score([("w1", "w2")])


def test_a_model_without_a_masked_lm_head_is_an_error(directory, tmp_path):
    tuned.write(tmp_path, "tagging")
    with pytest.raises(ConfigError, match=r"model=\S+ has no masked-LM head; use a"):
        load(tmp_path)


def test_each_row_has_one_mask_in_place_of_its_token(directory, monkeypatch):
    """The log-probability of a token is replaced by minus its id."""
    texts = ["w1 w2", "w3", "", " ".join(["w4"] * 40), "w5 w6 w7"]
    seen = []

    def forward(params, batch):
        seen.append({name: np.asarray(rows) for name, rows in batch.items()})
        return -batch["masked_lm_ids"][:, 0].astype(jnp.float32)

    model = load(directory, batch_size=5)
    monkeypatch.setattr(model._scorer._predictor, "_forward", forward)
    scores = model.score(texts)
    ids = [[TOKENIZER.id(word) for word in text.split()][:30] for text in texts]
    assert scores.values.tolist() == [-sum(text) for text in ids]
    assert [batch["input_ids"].shape for batch in seen] == [(5, 16)] + [(5, 32)] * 7
    places = []
    for batch in seen:
        for row, (place,) in zip(
            batch["input_ids"], batch["masked_lm_positions"], strict=True
        ):
            assert np.flatnonzero(row == TOKENIZER.id("[MASK]")).tolist() == [place]
            assert 1 <= place < np.flatnonzero(row == TOKENIZER.id("[SEP]"))[0]
            places.append(place)
    assert places[:6] == [1, 1, 2, 1, 2, 3] and places[6:36] == [*range(1, 31)]
