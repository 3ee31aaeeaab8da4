"""Continued pretraining of a trained BERT on text of your own domain.

    python -m bert_jax.train --config=configs/continue.py --workdir=DIR
        --config.init_from=MODEL "--config.data.sources=text:texts/*.txt"

MODEL is the name of a model on the Hugging Face Hub, a directory with safetensors, a
TF1 checkpoint with its vocab.txt, a directory written by `export`, or a workdir of
`train`. Loads the weights and resets the optimizer. The sizes, the vocabulary and the
case are those of the model, and one that was trained without dropout continues without
it. The learning rate is from the google-research/bert README, "Pre-training tips and
caveats". The other numbers are ours and were not tuned.
"""

import ml_collections

from bert_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.init_from = "google-bert/bert-base-uncased"
    config.data.sources = ("text:texts/*.txt",)
    config.data.corpus_dir = "corpora/continue"
    config.data.num_shards = 16
    config.data.num_streams = 16
    config.data.validation_fraction = 0.02
    config.phases = config.phases[:1]
    config.phases[0].num_steps = 50_000
    config.optimizer.learning_rate = 2e-5
    config.optimizer.warmup_steps = 1_000
    config.eval.every_steps = 1_000
    config.checkpoint.every_steps = 1_000
    return config
