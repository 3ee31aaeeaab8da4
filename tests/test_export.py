"""Tests of bert_jax.export as a command, on a run of 20 steps."""

import pytest
import safetensors.numpy

from tests.commands import run, run_well


def test_writes_every_file_with_every_tensor(trained, tmp_path):
    output = tmp_path / "exported"
    stdout = run_well(
        "bert_jax.export", f"--workdir={trained / 'run'}", f"--output={output}"
    )
    assert "its logits differ from the run's by 0 at most" in stdout
    assert sorted(path.name for path in output.iterdir()) == [
        "README.md",
        "SHA256SUMS",
        "config.json",
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
    again = run("bert_jax.export", f"--workdir={trained / 'run'}", f"--output={output}")
    assert again.returncode == 2 and "is in use" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workdir=RUN"], "--output is missing"),
        (["--workdir=RUN", "--output=O", "--format=onnx"], "huggingface"),
    ],
)
def test_mistakes_are_one_line(trained, arguments, message):
    arguments = [a.replace("RUN", str(trained / "run")) for a in arguments]
    result = run("bert_jax.export", *arguments)
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""
