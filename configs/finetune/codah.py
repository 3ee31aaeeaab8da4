"""CODAH: which of four endings makes sense, of questions made to be hard for BERT?

The files are those of github.com/Websail-NU/CODAH. Numbers as in swag.py; the CODAH
paper tunes on SWAG first, which is not done here.
"""

import ml_collections

from configs.finetune import swag


def get_config() -> ml_collections.ConfigDict:
    config = swag.get_config()
    config.data.train = "tsv:codah/cv_split/fold_0/train.tsv"
    config.data.dev = ("tsv:codah/cv_split/fold_0/dev.tsv",)
    config.data.header = ("kind", "prompt", "a0", "a1", "a2", "a3", "label")
    config.task.text = ("prompt",)
    config.task.choices = ("a0", "a1", "a2", "a3")
    return config
