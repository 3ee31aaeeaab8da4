"""CODAH: choose the most sensible of four endings, in questions adversarial to BERT.

Uses the files of github.com/Websail-NU/CODAH. The numbers are those of swag.py. The
CODAH paper fine-tunes on SWAG first; this config does not.
"""

import ml_collections

from bert_jax.configs.finetune import swag


def get_config() -> ml_collections.ConfigDict:
    config = swag.get_config()
    config.data.train = "tsv:codah/cv_split/fold_0/train.tsv"
    config.data.dev = ("tsv:codah/cv_split/fold_0/dev.tsv",)
    config.data.header = ("kind", "prompt", "a0", "a1", "a2", "a3", "label")
    config.task.text = ("prompt",)
    config.task.choices = ("a0", "a1", "a2", "a3")
    return config
