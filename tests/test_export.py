"""Tests of bert_jax.export, on a run of 20 steps."""

import dataclasses
import hashlib
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from bert_jax import export, storage
from bert_jax.errors import ConfigError
from bert_jax.interop import google_tf1, hub_models, huggingface_write
from bert_jax.lazy_tensorflow import tf
from bert_jax.loading import trained_run as run_lib
from bert_jax.model import parameters
from tests.commands import flip, run_well
from tests.conftest import slow
from tests.interop.test_huggingface_write import LINES


@pytest.fixture
def opened(newest):
    """The newest checkpoint, on its mesh."""
    jax.set_mesh(newest.mesh)
    return newest


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The directory of the newest step in Hugging Face's format."""
    output = tmp_path_factory.mktemp("exported") / "new"
    stdout = run_well(
        "bert_jax.export", f"--workdir={trained / 'run'}", f"--output={output}"
    )
    assert "It was read back, and has the run's weights." in stdout
    return output


def test_writes_every_file_with_every_tensor(trained, exported):
    output = exported
    assert sorted(path.name for path in output.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
        "loss_curves.png",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    tensors = safetensors.numpy.load_file(output / "model.safetensors")
    assert tensors["cls.seq_relationship.weight"].shape == (2, 32)
    assert tensors["bert.encoder.layer.1.intermediate.dense.weight"].shape == (64, 32)
    # embeddings 3 + norm 2, a layer 16, pooler 2, transform 4, bias 1, next sentence 2
    assert len(tensors) == 5 + 2 * 16 + 2 + 4 + 1 + 2


@pytest.mark.slow
def test_every_file_except_the_card_has_a_digest(trained, tmp_path):
    output = tmp_path / "exported"
    arguments = [f"--workdir={trained / 'run'}", f"--output={output}"]
    run_well("bert_jax.export", *arguments, "--format=google", "--step=10")
    sums = dict(x.split()[::-1] for x in (output / "SHA256SUMS").open())
    names = {path.name for path in output.iterdir()} - {"README.md", "SHA256SUMS"}
    assert sums.keys() == names
    for name, digest in sums.items():
        assert hashlib.sha256((output / name).read_bytes()).hexdigest() == digest
    reader = tf.train.load_checkpoint(str(output / "bert_model.ckpt"))
    assert reader.get_tensor("cls/seq_relationship/output_weights").shape == (2, 32)
    card = (output / "README.md").read_text()
    assert "step 10 of 20" in card and "--init_checkpoint" in card


@pytest.mark.parametrize(
    ("format_", "dtype"),
    [
        (huggingface_write, "bfloat16"),
        slow(google_tf1, "float32"),
        slow(huggingface_write, "float32"),
        slow(google_tf1, "bfloat16"),
    ],
)
def test_an_export_is_read_back_in_its_dtype(opened, tmp_path, format_, dtype):
    tokenizer = opened.corpus.tokenizer
    format_.write(tmp_path, opened.params, opened.config, tokenizer, dtype)
    export.read_back(tmp_path, opened, dtype)
    if dtype != "float32":  # a weight that is not rounded would differ
        with pytest.raises(export.ExportError, match="differs from the run's weights"):
            export.read_back(tmp_path, opened, "float32")


def test_a_changed_weight_is_an_error(opened, exported, tmp_path):
    """A weight may change on its way to the disk."""
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    flip(tmp_path / "model.safetensors", -2)  # a bit of the exponent
    (tmp_path / "SHA256SUMS").unlink()
    with pytest.raises(export.ExportError, match="differs from the run's weights"):
        export.read_back(tmp_path, opened, "float32")


def test_a_diverged_run_is_an_error(opened, tmp_path, monkeypatch):
    bias = np.full(2, np.nan, np.float32)
    params = parameters.place(opened.params, {"next_sentence.bias": bias})
    diverged = dataclasses.replace(opened, params=params)
    monkeypatch.setattr(run_lib, "open_run", lambda *_: diverged)
    with pytest.raises(ConfigError, match="NaN or infinity in next_sentence.bias"):
        export.export("run", str(tmp_path / "out"), "huggingface")
    assert not (tmp_path / "out").exists()


def test_an_existing_output_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "lost").symlink_to(tmp_path / "nothing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    for name in ("file", "link", "lost", "full"):
        with pytest.raises(ConfigError, match=f"{name} already exists; use a new"):
            export.export("run", str(tmp_path / name), "huggingface")
    to = hub_models.target("user/name", None)
    pushed = f"push it as it is: hf upload user/name {tmp_path}/full . --revision=main$"
    with pytest.raises(ConfigError, match=pushed):
        export.export("run", str(tmp_path / "full"), "huggingface", to=to)
    with pytest.raises(ConfigError, match="is inside --workdir="):
        export.export(str(tmp_path), f"{tmp_path}/checkpoints/7", "huggingface")


@pytest.mark.slow
def test_an_upload_that_failed_is_repeated(trained, bucket):
    workdir = str(trained / "run")
    storage.write("gs://b/run/checkpoints/1/file", b"")
    storage.write("gs://b/other/notes.txt", b"")
    with pytest.raises(ConfigError, match="gs://b/run already exists"):
        export.export(workdir, "gs://b/run", "huggingface")
    with pytest.raises(ConfigError, match="gs://b/other already exists"):
        export.export(workdir, "gs://b/other", "huggingface")
    storage.write("gs://b/out/vocab.txt", b"part")
    export.export(workdir, "gs://b/out", "huggingface")
    assert {"SHA256SUMS", "vocab.txt", "README.md"} <= set(storage.names("gs://b/out"))
    with pytest.raises(ConfigError, match="gs://b/out already exists; use a new"):
        export.export(workdir, "gs://b/out", "huggingface")


def test_an_output_that_cannot_be_created_is_an_error(trained):
    with pytest.raises(ConfigError, match="--output=/proc/x: No such file"):
        export.export(str(trained / "run"), "/proc/x", "huggingface")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_classes_load_the_export(opened, exported, tmp_path, dtype):
    transformers = pytest.importorskip("transformers")
    ours, directory = opened.corpus.tokenizer, exported
    if dtype == "bfloat16":
        directory = tmp_path
        huggingface_write.write(directory, opened.params, opened.config, ours, dtype)
    new = {
        "AutoModel": set(),
        "BertForPreTraining": set(),
        "BertForMaskedLM": set(),
        "BertForSequenceClassification": {"classifier.weight", "classifier.bias"},
    }
    for name, missing in new.items():
        model, report = getattr(transformers, name).from_pretrained(
            directory, output_loading_info=True
        )
        assert set(report["missing_keys"]) == missing
        assert not report["mismatched_keys"] and not report["error_msgs"]
        assert str(model.dtype) == f"torch.{dtype}"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    encode, cls, sep = ours.encoder(), ours.id("[CLS]"), ours.id("[SEP]")
    for line in LINES:
        assert tokenizer(line)["input_ids"] == [cls, *encode([line])[0], sep]


def test_sentence_transformers_loads_the_export(exported):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(exported), device="cpu")
    vectors = model.encode(["The river follows the garden.", "An engine."])
    assert vectors.shape == (2, 32) and np.isfinite(vectors).all()
    assert not np.allclose(vectors[0], vectors[1])
