"""Tests of the schema with the config files of the package."""

import dataclasses
import json
import runpy
import shutil

import pytest

from bert_jax import cli, errors
from bert_jax import config as config_lib
from bert_jax.configs import babylm, base, base_modern, large, sizes
from tests.commands import run_code
from tests.conftest import make_config


@pytest.mark.parametrize("path", sorted(cli.SHIPPED.glob("[a-z]*.py")))
def test_every_config_file_is_valid_and_round_trips_through_json(path):
    module = runpy.run_path(str(path))
    config = config_lib.from_config_dict(module["get_config"]())
    assert config_lib.from_saved(json.loads(config.to_json())) == config
    assert module["__doc__"], "a config documents its command and expected results"


# Run in a copy of the package whose schema has one more key, optimizer.new.
ONE_MORE_KEY = """
import importlib, json, pathlib, sys
from bert_jax import config as config_lib
from bert_jax.checkpoint.workdir import changed_keys

for path in pathlib.Path("bert_jax/configs").glob("[a-z]*.py"):
    values = importlib.import_module(f"bert_jax.configs.{path.stem}").get_config()
    assert config_lib.from_config_dict(values).optimizer.new == 0.5, path
older = config_lib.from_saved(json.loads(sys.argv[1]))  # of a run that began before
assert older.optimizer.new == 0.0
values.optimizer.new = 0.7
now = config_lib.from_config_dict(values)
resumed = list(changed_keys(older, now, {config_lib.MayChange.ON_RESUME}))
assert "optimizer.new" not in [key for key, *_ in resumed]
"""


def test_a_new_key_is_a_line_in_the_schema_and_one_in_base(tmp_path):
    shutil.copytree(cli.SHIPPED.parent, tmp_path / "bert_jax")
    for name, after, line in (
        (
            "config/schema.py",
            "    clip_norm: Positive  # ",
            "    new: Annotated[Resumable[NotNegative], Added(0.0)]\n",
        ),
        ("configs/base.py", "    config.mesh = ", "    config.optimizer.new = 0.5\n"),
    ):
        path = tmp_path / "bert_jax" / name
        before, found, rest = path.read_text().partition(after)
        assert found
        path.write_text(before + line + found + rest)
    values = make_config().to_json()
    done = run_code(ONE_MORE_KEY, values, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr


def sizes_of(model):
    heads, inner = model.num_attention_heads, model.intermediate_size
    return model.num_hidden_layers, model.hidden_size, heads, inner


def test_base_and_large_equal_the_published_recipe():
    for module, expected in (
        (base, (12, 768, 12, 3072)),
        (large, (24, 1024, 16, 4096)),
    ):
        config = config_lib.from_config_dict(module.get_config())
        assert sizes_of(config.model) == expected
        phases = [
            (p.num_steps, p.sequence_length, p.max_predictions, p.global_batch_size)
            for p in config.phases
        ]
        assert phases == [(900_000, 128, 20, 256), (100_000, 512, 80, 256)]
        assert config.optimizer.learning_rate == 1e-4
        assert config.optimizer.warmup_steps == 10_000
        assert config.num_steps == 1_000_000


def test_modern_recipe_has_the_model_and_data_of_base():
    """Held-out text is masked at the rate of base, so that losses are comparable."""
    faithful, modern = (
        config_lib.from_config_dict(m.get_config()) for m in (base, base_modern)
    )
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    assert dataclasses.replace(modern.model, **dropout) == faithful.model
    data = dataclasses.replace(modern.data, masked_lm_prob=0.15)
    assert data == faithful.data
    assert modern.eval == faithful.eval and faithful.eval.masked_lm_prob == 0.15
    assert modern.tokenizer == faithful.tokenizer


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("tiny", (2, 128, 2, 512)),
        ("mini", (4, 256, 4, 1024)),
        ("small", (4, 512, 8, 2048)),
        ("medium", (8, 512, 8, 2048)),
        ("base", (12, 768, 12, 3072)),
        ("10,768", (10, 768, 12, 3072)),
    ],
)
def test_sizes_equal_the_released_models(size, expected):
    """Source: google-research/bert README, "Smaller BERT Models"."""
    config = config_lib.from_config_dict(sizes.get_config(size))
    assert sizes_of(config.model) == expected
    rest = config_lib.from_config_dict(base.get_config())
    assert dataclasses.replace(config, model=rest.model) == rest


def test_babylm_reads_ten_times_its_tokens_and_keeps_the_checkpoints_of_the_track():
    config = config_lib.from_config_dict(babylm.get_config("13456789"))
    tokens = sum(
        phase.num_steps * phase.global_batch_size * phase.sequence_length
        for phase in config.phases
    )
    assert 0.985 * 134_567_890 < tokens <= 134_567_890
    shares = [step / config.num_steps for step in config.checkpoint.keep_steps]
    ten_millions = [i / 10 for i in range(1, 11)]
    assert shares == [i / 100 for i in range(1, 10)] + ten_millions


@pytest.mark.parametrize("size", ["mni", "4", "4,100", "0,128", "4,0", "4,-64", ""])
def test_invalid_size_is_rejected(size):
    with pytest.raises(errors.ConfigError, match="give LAYERS,HIDDEN|multiple of"):
        sizes.get_config(size)
