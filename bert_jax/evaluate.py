"""Evaluates a checkpoint, or a published model, on held-out text.

    python -m bert_jax.evaluate --workdir=DIR [--step=N] [--corpus_dir=DIR]
        [--probes=blimp:DIR,stsb:DIR]
    python -m bert_jax.evaluate --config=configs/continue.py --config.init_from=MODEL
        [--config.KEY=VALUE ...] [--probes=...]

With --config, evaluates the model of config.init_from, before the first step of a run,
on the corpus of the config.

Prints one JSON object: step, masked_lm_loss, masked_lm_accuracy, next_sentence_loss,
next_sentence_accuracy, unigram_entropy (of the held-out tokens, in nats; it is the
masked-LM loss of guessing by frequency) and next_sentence_majority (the accuracy of
always predicting the more frequent label). With config.data.next_sentence=False, there
are no next-sentence metrics. Pairs and masks are the same in every call. The results of
probes are probe/blimp and probe/stsb; by default the probes are those of the run
(config.eval.probes), and --probes= is none.
"""

import contextlib
import json
import sys

from absl import flags

from bert_jax import cli, probes
from bert_jax.errors import ConfigError
from bert_jax.loading import new_run
from bert_jax.loading import trained_run as run_lib
from bert_jax.training import evaluation


def main() -> None:
    given = _PROBES.value
    chosen = None if given is None else probes.read(given, "--probes")
    if _CONFIG.value:
        cli.exclude("config", "workdir", "step", "corpus_dir")
        config = new_run.complete(cli.load_values(_CONFIG), cli.given_keys())
        with contextlib.redirect_stdout(sys.stderr):  # it may prepare a corpus
            run, notes = run_lib.open_start(config)
            print("".join(f"{note}\n" for note in notes), end="")
    else:
        (workdir,) = cli.require("workdir")
        workdir = cli.directory("workdir", workdir)
        run = run_lib.open_run(workdir, _STEP.value, _CORPUS_DIR.value)
    if chosen is None:
        key = "config.eval.probes of the run (--probes overrides it)"
        chosen = probes.read(run.config.eval.probes, key)
    if not run.corpus.shards["validation"]:
        raise ConfigError(
            f"the corpus in {run.config.data.corpus_dir!r} has no held-out documents;"
            " prepare one with config.data.validation_fraction above 0"
        )
    batches = evaluation.eval_batches(run.corpus, run.config, run.phase_index)
    metrics = evaluation.evaluate(
        run.eval_step, run.params, batches, run.mesh, run.accumulation_steps
    )
    result: dict[str, float | None] = {"step": run.step, **metrics}
    result["unigram_entropy"] = evaluation.unigram_entropy(run.corpus)
    if run.config.data.next_sentence:
        result["next_sentence_majority"] = evaluation.next_sentence_majority(batches)
    target = probes.Target(run.config, run.corpus.tokenizer, run.graphdef, run.mesh)
    result |= probes.prepare(chosen, target)(run.params)
    print(json.dumps(result))


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    cli.define_path("workdir", "directory of a training run")
    _STEP = flags.DEFINE_integer(
        "step", None, "step of the checkpoint; default: the newest"
    )
    _CORPUS_DIR = cli.define_path(
        "corpus_dir", "directory of the run's corpus, if it was moved"
    )
    _PROBES = flags.DEFINE_list(
        "probes", None, "probes, KIND:DIR; default: those of the run"
    )
    cli.run(main, __doc__)
