"""Tests of bert_jax.training.input."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bert_jax import phases
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import build
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError
from bert_jax.training.input import find_corpus, training_batches
from tests.commands import write_text
from tests.conftest import make_config, use_mesh


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The config, corpus and mesh of a run of two phases."""
    directory = tmp_path_factory.mktemp("input")
    write_text(directory / "text.txt", 300)
    config = make_config(
        data__sources=(f"text:{directory}/*.txt",),
        data__corpus_dir=str(directory / "corpus"),
        phase={"num_steps": 5},
    )
    second = dataclasses.replace(config.phases[0], num_steps=4, sequence_length=24)
    config = dataclasses.replace(config, phases=(config.phases[0], second))
    return SimpleNamespace(
        config=config,
        corpus=build.find_corpus(config),
        mesh=use_mesh(2, 1, 1),
    )


def test_only_process_0_prepares_a_corpus(run, tmp_path, monkeypatch):
    monkeypatch.setattr(multihost, "SHARED_SECS", 0)
    monkeypatch.setattr(multihost, "is_first", lambda: False)
    assert find_corpus(run.config) == run.corpus
    directory = tmp_path / "corpus"
    data = dataclasses.replace(run.config.data, corpus_dir=str(directory))
    with pytest.raises(ConfigError, match="has no manifest.json"):
        find_corpus(dataclasses.replace(run.config, data=data))
    assert not directory.exists()


def batches_of_phase(run, phase_index):
    return pipeline.batches(
        run.corpus,
        run.config,
        split="train",
        seed=run.config.seed,
        phase_index=phase_index,
        first_step=0,
    )


@pytest.mark.parametrize(
    ("first_step", "skips"),
    [
        (0, ()),
        (3, ()),
        (6, ()),
        (3, (phases.Skip(0, 3, 4),)),
        (2, (phases.Skip(0, 2, 3), phases.Skip(1, 0, 2))),
        (1, (phases.Skip(0, 3, 1), phases.Skip(0, 5, 2), phases.Skip(1, 2, 2))),
    ],
)
def test_each_step_takes_its_batch_across_phases_and_skips(run, first_step, skips):
    use_mesh(2, 1, 1)
    known = [
        list(zip(range(9), batches_of_phase(run, i), strict=False)) for i in (0, 1)
    ]
    found = list(training_batches(run.corpus, run.config, run.mesh, first_step, skips))
    assert len(found) == 9 - first_step
    for step, (number, phase_index, batch) in enumerate(found, start=first_step):
        assert number == step + 1
        expected_phase, batch_number = phases.batch_of(run.config, step, skips)
        assert phase_index == expected_phase
        _, expected = known[phase_index][batch_number]
        for name, rows in expected.items():
            np.testing.assert_array_equal(batch[name], rows, err_msg=name)
    assert isinstance(found[0][2]["input_ids"], jax.Array)


def test_the_dataset_has_the_batches_of_a_run(run):
    use_mesh(2, 1, 1)
    found = training_batches(run.corpus, run.config, run.mesh, 2, ())
    for phase_index, first_step, num_steps in ((0, 2, 3), (1, 0, 4)):
        dataset = pipeline.dataset(
            run.corpus,
            run.config,
            split="train",
            seed=run.config.seed,
            phase_index=phase_index,
            first_step=first_step,
        )
        for expected in dataset.take(num_steps):
            _, phase, batch = next(found)
            assert phase == phase_index and batch.keys() == expected.keys()
            for name, rows in expected.items():
                np.testing.assert_array_equal(batch[name], rows, err_msg=name)
    assert next(found, None) is None
