"""Checks of the corpus and the number of devices."""

import pytest

from bert_jax.data.corpus import build
from bert_jax.errors import ConfigError
from bert_jax.preflight import check
from bert_jax.training import optimizer
from tests import corpora
from tests.conftest import make_config
from tests.data.corpus.test_streamed import write_jsonl


def test_a_corpus_is_checked_against_the_config(tmp_path):
    config = corpora.make_config(tmp_path)
    corpora.write(config, corpora.make_documents(60))
    found = check.check_corpus(config)
    assert "matches the config's tokenizer" in found[0]
    assert found[1].startswith("phase 1 takes ")
    other = corpora.changed(
        config, "tokenizer", lowercase=not config.tokenizer.lowercase
    )
    with pytest.raises(ConfigError, match="lowercase"):
        check.check_corpus(other)


def test_a_batch_is_checked_against_a_number_of_devices():
    config = make_config(
        mesh__fsdp=4, accumulation_steps=2, phase={"global_batch_size": 64}
    )
    line = check.check_devices(config, 16, 1)
    assert "mesh data 4 x fsdp 4 x tensor 1" in line
    assert "init_from" not in line
    assert "64 sequences, 2 per device and microbatch" in line
    for num_devices, message in (
        (24, "global_batch_size=64 must .* = 48; try 48 or 96"),
        (6, r"does not fit 6 device\(s\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            check.check_devices(config, num_devices, 1)


def test_weights_and_a_schedule_that_is_all_warmup_are_noted(tmp_path):
    phase = {"global_batch_size": 8, "num_steps": 3}
    changes = {"optimizer__warmup_steps": 3, "init_from": f"{tmp_path}/nope"}
    config = make_config(**changes, phase=phase)
    (note,) = optimizer.schedule_notes(config)
    weights = f"the weights in config.init_from='{tmp_path}/nope' were not checked"
    assert check.check_devices(config, 8, 1).endswith(f"; {note}; {weights}")
    assert {note, weights} <= {*check.check_corpus(config)}


def test_changed_files_of_streamed_text_are_an_error(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", corpora.make_documents(40))
    spec = f"jsonl:{tmp_path}/a.jsonl#text"
    config = corpora.make_config(tmp_path, sources=(spec,), stream=True)
    assert "no corpus" in check.check_corpus(config)[0]
    build.prepare(config, 1)
    assert check.check_corpus(config)[1].startswith("phase 1 takes ")
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(ConfigError, match="no file matches"):
        check.check_corpus(config)
