"""Fine-tunes a trained model on a labelled task.

    python -m bert_jax.finetune --config=configs/finetune/X.py --model=DIR
        [--workdir=DIR] [--seeds=0,1,2] [--sweep] [--from_scratch]
        [--lowercase=true|false] [--config.KEY=VALUE ...]

DIR is a directory of `export`, any Hugging Face BERT or its name on the Hub, a TF1
checkpoint of google-research/bert, or a workdir of `train`. Each learning rate and seed
is one run in WORKDIR/runs; rerun the same command to resume. The model that is best on
the dev set is written to WORKDIR/model, which transformers and `python -m
bert_jax.predict` load.
"""

from collections.abc import Sequence

from absl import flags

from bert_jax import cli
from bert_jax.distributed import multihost, preemption
from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as config_lib
from bert_jax.finetuning import metrics, sweep
from bert_jax.finetuning.setup import Start
from bert_jax.loading import source
from bert_jax.monitoring import trackers


def seeds_of(values: Sequence[str]) -> list[int]:
    """Parses --seeds."""
    try:
        seeds = [int(seed) for seed in values]
    except ValueError:
        seeds = []
    is_valid = all(0 <= seed < 2**32 for seed in seeds)
    if not is_valid or not 0 < len({*seeds}) == len(values):
        raise ConfigError(
            f"--seeds={','.join(values)} must be different integers >= 0, as in 0,1,2"
        )
    return seeds


def main() -> None:
    metrics.check_installed()
    config = config_lib.from_config_dict(cli.load_values(_CONFIG))
    (model,) = cli.require("model")
    name = cli.config_name(_CONFIG)
    workdir = f"runs/finetune-{name}" if _WORKDIR.value is None else _WORKDIR.value
    workdir = cli.local_directory("workdir", workdir)
    seeds = seeds_of(_SEEDS.value)
    recipe = config.recipe
    rates = recipe.learning_rates if _SWEEP.value else (recipe.learning_rate,)
    model = source.pinned(model, "--model")
    start = Start(model, _FROM_SCRATCH.value, _LOWERCASE.value, cli.given_keys())
    multihost.join(config)
    preemption.exit_on_signals()
    multihost.agree("trackers", lambda: trackers.check_installed(config.trackers))
    sweep.sweep(config, start, workdir, rates, seeds)


if __name__ == "__main__":
    _CONFIG = cli.define_config("finetune")
    cli.define_path("model", "the trained model to fine-tune")
    _WORKDIR = cli.define_path(
        "workdir", "directory of the runs; default: runs/finetune-CONFIG"
    )
    _SEEDS = flags.DEFINE_list("seeds", ["0"], "one run for each, for example 0,1,2")
    _SWEEP = flags.DEFINE_bool(
        "sweep", False, "one run for each of config.recipe.learning_rates"
    )
    _FROM_SCRATCH = flags.DEFINE_bool(
        "from_scratch",
        False,
        "use only the sizes and tokenizer of the model, to measure the gain from"
        " pretraining",
    )
    _LOWERCASE = flags.DEFINE_bool(
        "lowercase",
        None,
        "whether the model was trained on lower-cased text, if it does not record it",
    )
    cli.run(main, __doc__)
