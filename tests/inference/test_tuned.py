"""The API for predictions: results equal those of transformers for every kind."""

import numpy as np
import pytest

from bert_jax import inference
from bert_jax.errors import ConfigError
from bert_jax.inference.tuned import check_form
from tests.conftest import use_mesh
from tests.finetuning import tuned
from tests.models import change_json, keep_one_segment

KIND_INPUTS = {
    "classification": [("w1 w2 w3", "w4"), ("w5", "w6")],
    "regression": ["w1 w2", "w3 w4"],
    "multi_label": ["w1 w2", "w3"],
    "tagging": ["w1 w2 nowhere", "w3", ""],
    "question_answering": [("w1 w2", "w3 w4 w5"), ("w1", "w7 w8")],
    "multiple_choice": [("w1", "w2 w3", "w4"), ("w5", "w6", "w7")],
    "similarity": [("w1 w2 w3", "w4"), ("w5", "w5")],
}


def load(directory, kind, **options):
    tuned.write(directory, kind)
    use_mesh(1, 1, 1)
    if kind == "question_answering":
        options = {"max_query_length": 8, "stride": 4, "num_best": 2} | options
    return inference.load_tuned(directory, **{"batch_size": 2} | options)


@pytest.mark.parametrize("kind", KIND_INPUTS)
def test_each_kind_has_its_form_whatever_the_batch(kind, tmp_path):
    model, inputs = load(tmp_path, kind), KIND_INPUTS[kind]
    rows = model.predict(inputs)
    alone = [model.predict([text])[0] for text in inputs]
    assert model.kind == kind and model.predict([]) == []
    for row, other in zip(rows, alone, strict=True):
        assert row.keys() == other.keys()
        if "probabilities" in row:
            assert row["probabilities"] == pytest.approx(
                other["probabilities"], abs=1e-5
            )
    first = rows[0]
    if kind == "classification":
        assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        best = max(first["probabilities"], key=first["probabilities"].get)
        assert first["label"] == best and set(first["probabilities"]) == {*tuned.NAMES}
    elif kind == "multi_label":
        expected = [n for n, p in first["probabilities"].items() if p > 0.5]
        assert first["labels"] == expected
    elif kind == "tagging":
        assert first["words"] == ["w1", "w2", "nowhere"] and len(first["tags"]) == 3
        assert rows[2] == {"words": [], "tags": []}
    elif kind == "question_answering":
        assert first["answer"] in ("w3", "w4", "w5", "w3 w4", "w4 w5", "w3 w4 w5")
        assert first["best"][0]["text"] == first["answer"] and len(first["best"]) == 2
    elif kind == "multiple_choice":
        assert first["choice"] in (0, 1)
        assert set(first["probabilities"]) == {"0", "1"}
    elif kind == "similarity":
        assert -1 <= first["similarity"] < 0.999
        assert rows[1]["similarity"] == pytest.approx(1, abs=1e-5)  # equal texts
    else:
        assert isinstance(first["score"], float)


TEXTS = [("w1 " * n + "w2", "w3 w4") for n in (1, 12, 3, 20, 5)]


def their_logits(directory, name, texts):
    """Returns the logits that transformers computes."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, name).from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**encoded).logits.numpy(), encoded


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_texts_have_the_probabilities_and_scores_of_transformers(kind, tmp_path):
    model = load(tmp_path, kind)
    name = "BertForSequenceClassification"
    logits, _ = their_logits(tmp_path, name, [list(pair) for pair in TEXTS])
    for row, expected in zip(model.predict(TEXTS), logits, strict=True):
        if kind == "regression":
            assert row["score"] == pytest.approx(expected[0], abs=2e-5)
            continue
        found = np.array([*row["probabilities"].values()])
        odds = np.exp(expected)
        probs = odds / (odds.sum() if kind == "classification" else 1 + odds)
        np.testing.assert_allclose(found, probs, atol=1e-5)


def test_words_have_the_tags_of_transformers(tmp_path):
    tuned.write(tmp_path, "tagging")
    labels = np.array(["NOUN", "DET", "VERB"])  # no B- and I-, which would be repaired
    change_json(tmp_path, "config.json", id2label=dict(enumerate(labels)))
    use_mesh(1, 1, 1)
    model = inference.load_tuned(tmp_path)
    texts = [a for a, _ in TEXTS]
    name = "BertForTokenClassification"
    logits, encoded = their_logits(tmp_path, name, texts)
    counts = encoded["attention_mask"].sum(1).tolist()
    for row, ids_C, count in zip(model.predict(texts), logits, counts, strict=True):
        assert row["tags"] == labels[ids_C.argmax(-1)[1 : count - 1]].tolist()


def test_a_question_may_have_no_answer(tmp_path):
    model = load(tmp_path, "question_answering", null_threshold=-1e9)
    rows = model.predict(KIND_INPUTS["question_answering"])
    assert [row["answer"] for row in rows] == ["", ""]


def test_settings_of_the_model_apply_unless_given(tmp_path):
    tuned.write(tmp_path, "multi_label")
    (tmp_path / "decisions.json").write_text('{"num_texts": 1, "threshold": 0.0}')
    use_mesh(1, 1, 1)
    (row,) = inference.load_tuned(tmp_path).predict(["w1"])
    assert row["labels"] == [*tuned.NAMES]
    (row,) = inference.load_tuned(tmp_path, threshold=0.99).predict(["w1"])
    assert row["labels"] == []
    with pytest.raises(ConfigError, match="2 texts; each input must be a text$"):
        inference.load_tuned(tmp_path).predict([("w1", "w2")])


def test_truncated_rows_and_words_are_counted(tmp_path):
    model = load(tmp_path, "classification", max_length=8)
    counts: list[int] = []
    model.predict(["w1", "w1 " * 20, "w2 " * 9], on_batch=counts.append)
    assert model.num_truncated == 2 and counts == [2, 1]
    tagger = load(tmp_path, "tagging", max_length=8)
    (row,) = tagger.predict(["w1 " * 10])
    assert tagger.num_cut_words == 4 and row["tags"][6:] == ["O"] * 4


@pytest.mark.slow
def test_bfloat16_and_int8_change_probabilities_little(tmp_path):
    exact = load(tmp_path, "classification").predict(TEXTS)
    for options in ({"compute_dtype": "bfloat16"}, {"weights": "int8"}):
        model = load(tmp_path, "classification", **options)
        found = model.predict(TEXTS)
        sizes = "int8 weights: 0.0 MB instead of 0.1 MB"
        assert (sizes in model.notes) == ("weights" in options)
        assert found != exact
        for row, other in zip(found, exact, strict=True):
            assert row["probabilities"] == pytest.approx(
                other["probabilities"], abs=0.05
            )


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("classification", {"max_length": 33}, "max_length=33 .* the model's 32 posit"),
        ("classification", {"threshold": 0.4}, "threshold=0.4 does not apply to a mod"),
        ("tagging", {"stride": 4}, "stride=4 does not apply to .* for tagging"),
        ("question_answering", {"stride": -1}, "stride=-1 must be at least 0"),
        ("question_answering", {"max_query_length": 29}, "=29 leaves no room for"),
        ("question_answering", {"stride": 22}, "=22 leaves gaps .* hold 21 tokens"),
    ],
)
def test_an_invalid_option_is_an_error(kind, options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, kind, **options)


def test_invalid_inputs_are_errors(tmp_path):
    model = load(tmp_path, "classification")
    with pytest.raises(TypeError, match="not the string"):
        model.predict("w1 w2")
    with pytest.raises(ConfigError, match="input 1 .'w1'. has 1 text; .* as the first"):
        model.predict([("w1", "w2"), "w1"])
    change_json(tmp_path, "config.json", id2label={"0": "a", "1": "a", "2": "b"})
    with pytest.raises(
        ConfigError, match=r"id2label=\('a', 'a', 'b'\) has a duplicate"
    ):
        inference.load_tuned(tmp_path)


def test_pairs_need_two_segments(tmp_path):
    """With the sizes of such a model, any pair is refused and single texts are not."""
    tuned.write(tmp_path, "classification")
    keep_one_segment(tmp_path)
    use_mesh(1, 1, 1)
    model = inference.load_tuned(tmp_path, batch_size=2)
    assert len(model.predict(["w1 w2"])) == 1
    with pytest.raises(ConfigError, match="type_vocab_size=1, so it reads single"):
        model.predict([("w1", "w2")])
    with pytest.raises(ConfigError, match="type_vocab_size=1, so it reads single"):
        inference.load(tmp_path).features([("w1", "w2")])


@pytest.mark.parametrize(
    ("kind", "num_texts", "lines", "message"),
    [
        ("classification", 0, [("a", "b"), ("c",)], "a text, or two .* as the first"),
        ("classification", 2, [("a", "b"), ("c",)], "1 text; .* be text ||| text$"),
        ("classification", 1, [("a", "b")], "2 texts; each input must be a text$"),
        ("question_answering", 0, [("a",)], "input must be question ||| paragraph$"),
        ("multiple_choice", 0, [("a", "b")], "each input must be context"),
        ("multiple_choice", 0, [tuple("abc"), tuple("abcd")], "as the first"),
    ],
)
def test_an_input_with_too_few_or_too_many_texts_fails(kind, num_texts, lines, message):
    keys = {"text": ("",) * num_texts} if num_texts else {}
    form = tuned.make_task(kind, **keys).form
    with pytest.raises(ConfigError, match=message.replace("|||", r"\|\|\|")):
        check_form(form, lines)
