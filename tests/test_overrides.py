"""Flags --config.KEY=VALUE: plain values of lists, and names that do not exist."""

import pytest
from absl import flags
from ml_collections import config_flags

from bert_jax import errors, overrides
from bert_jax.configs import tiny
from bert_jax.configs.finetune import glue

FLAGS = ("config", "workdir")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("batch_size", "phases[0].global_batch_size"),
        ("learning_rate", "optimizer.learning_rate"),
        ("evals.every_steps", "eval.every_steps"),
        ("optimizer.lr", "optimizer.learning_rate"),
        ("data.lowercase", "tokenizer.lowercase"),
        ("data.sources[0]", "data.sources"),
        ("zzz", None),
    ],
)
def test_a_key_is_compared_as_a_whole_and_by_its_last_part(key, nearest):
    arguments = ["--config.seed=3", f"--config.{key}=1"]
    with pytest.raises(errors.ConfigError) as error:
        overrides.check_keys(arguments, tiny.get_config(), "tiny.py")
    remedy = (
        f"the nearest is --config.{nearest}" if nearest else "the keys are in tiny.py"
    )
    assert str(error.value) == f"--config.{key} is not a config key; {remedy}"


@pytest.mark.parametrize(
    ("config", "name", "nearest"),
    [
        (tiny.get_config(), "steps", "config.phases[0].num_steps"),
        (tiny.get_config(), "epochs", "config.phases[0].num_steps"),
        (tiny.get_config(), "batch_size", "config.phases[0].global_batch_size"),
        (tiny.get_config(), "model", "config.init_from"),
        (tiny.get_config(), "output_dir", "workdir"),
        (tiny.get_config(), "wrokdir", "workdir"),
        (tiny.get_config(), "zzz", None),
        (glue.get_config("rte"), "epochs", "config.recipe.num_epochs"),
        (None, "wrokdir", "workdir"),
        (None, "steps", None),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest_flag_or_key(
    config, name, nearest
):
    remedy = f"the nearest is --{nearest}" if nearest else "see --help"
    found = overrides.unknown_flag(name, FLAGS, config)
    assert found == f"--{name} is not a flag; {remedy}"


@pytest.mark.parametrize(
    ("values", "sources"),
    [
        (["text:a b/*.md,jsonl:c.jsonl#text"], ("text:a b/*.md", "jsonl:c.jsonl#text")),
        (["text:a b", "text:c"], ("text:a b", "text:c")),
        (["'text:a,b.txt'"], ("text:a,b.txt",)),
        (["('text:a b', 'text:c,d')"], ("text:a b", "text:c,d")),
        ([""], ()),
    ],
)
@pytest.mark.parametrize("is_one_word", [True, False])
def test_a_list_is_given_plainly_or_as_a_tuple(values, sources, is_one_word):
    config, key = tiny.get_config(), "--config.data.sources"
    arguments = ["program", "--config.seed=3"]
    for value in values:
        arguments += [f"{key}={value}"] if is_one_word else [key, value]
    arguments = overrides.with_tuples(arguments, config)
    values_of_flags = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", config, flag_values=values_of_flags, sys_argv=arguments
    )
    values_of_flags(arguments)
    assert config.data.sources == sources and config.seed == 3


def test_numbers_and_other_types_are_left_as_they_are():
    arguments = [
        "--config.profile=100,5",
        "--config.seed=1,2",
        "--config.trackers=wandb",
    ]
    found = overrides.with_tuples(arguments, tiny.get_config())
    assert found == [*arguments[:2], "--config.trackers=('wandb',)"]


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--config.seed=abc", "it must be of type int"),
        ("--config.data.stream=perhaps", "it must be True or False"),
        ("--config.data.sources=('a", "it must be a list, for example A,B or"),
        ("--workers=0", ""),
    ],
)
def test_an_invalid_value_is_answered_with_the_type(argument, reason):
    assert reason in (found := overrides.expected(argument, tiny.get_config()))
    assert bool(found) == bool(reason)
