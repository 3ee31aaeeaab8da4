"""What a corpus and a directory must be like before a run is paid for."""

import json

import pytest

from bert_jax import config as config_lib
from bert_jax import preflight_checks
from bert_jax.config import ConfigError


def test_a_corpus_is_held_against_the_config(trained):
    manifest = json.loads((trained / "run" / "config.json").read_text())
    config = config_lib.from_json(json.dumps(manifest))
    found = preflight_checks.check(config, None)
    assert "was made with this tokenizer" in found[0]
    assert found[1].startswith("phase 0 takes ")
    manifest["tokenizer"]["lowercase"] = not manifest["tokenizer"]["lowercase"]
    other = config_lib.from_json(json.dumps(manifest))
    with pytest.raises(ConfigError, match="lowercase"):
        preflight_checks.check(other, None)


def test_a_workdir_that_cannot_be_written_is_refused(tmp_path):
    preflight_checks.check_writable(str(tmp_path / "new" / "run"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        preflight_checks.check_writable(str(tmp_path / "file" / "run"))
    with pytest.raises(ConfigError, match="--workdir=/proc/run: /proc cannot be"):
        preflight_checks.check_writable("/proc/run")
