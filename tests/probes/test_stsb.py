"""The correlation equals that of features of `inference.load` and SciPy."""

import jax
import pytest
import scipy.stats

from bert_jax import inference
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_write
from bert_jax.model import bert
from bert_jax.probes import stsb
from bert_jax.probes.target import Target
from tests.conftest import make_config, slow, use_mesh
from tests.models import TOKENIZER, VOCAB

PAIRS = [(f"w{i} w{i + 3} w1", f"w{i} w{3 * i}", i * 7 % 11 / 2) for i in range(25)]


@pytest.fixture
def texts(tmp_path):
    lines = ["sentence1\tsentence2\tscore"]
    lines += [f"{a}\t{b}\t{min(score, 5.0):.1f}" for a, b, score in PAIRS]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    return stsb.read_probe(tmp_path, "config.eval.probes")


@pytest.mark.parametrize("mesh", [(1, 1, 1), slow((2, 2, 1))])
def test_the_correlation_of_cosines_and_labels(mesh, texts, tmp_path):
    devices = use_mesh(*mesh)
    config = make_config()
    graphdef, params = bert.build(config.model, len(VOCAB), jax.random.key(5))
    (tmp_path / "model").mkdir()
    huggingface_write.write(tmp_path / "model", params, config, TOKENIZER)
    probe = stsb.make_probe(texts, Target(config, TOKENIZER, graphdef, devices))
    model = inference.load(tmp_path / "model")
    a, b = (model.features([pair[i] for pair in PAIRS]) for i in range(2))
    cosines = (a * b).sum(1) / ((a * a).sum(1) * (b * b).sum(1)) ** 0.5
    labels = [min(score, 5.0) for _, _, score in PAIRS]
    expected = 100 * scipy.stats.spearmanr(cosines, labels).statistic
    assert probe(params) == pytest.approx(expected, abs=0.1)
    assert abs(expected) > 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no dev.tsv; give the directory of GLUE's STS-B"),
        ("sentence1\tsentence2\na\tb\n", "has no column 'score'"),
        (
            "sentence1\tsentence2\tscore\na\tb\t7\n",
            "must be between 0 and the highest score of .*=5",
        ),
    ],
)
def test_other_files_are_errors(content, message, tmp_path):
    if content is not None:
        (tmp_path / "dev.tsv").write_text(content)
    with pytest.raises(ConfigError, match=message):
        stsb.read_probe(tmp_path, "config.eval.probes")
