"""GoEmotions: predict all of 27 emotions, or neutral, that a comment expresses.

Uses the files of github.com/google-research/google-research, goemotions/data. Learning
rate and batch size are from Demszky et al. 2020, section 5; the other numbers are those
of recipe.py.
"""

import ml_collections

from bert_jax.configs.finetune import recipe

LABELS = tuple(
    "admiration amusement anger annoyance approval caring confusion curiosity desire"
    " disappointment disapproval disgust embarrassment excitement fear gratitude grief"
    " joy love nervousness optimism pride realization relief remorse sadness surprise"
    " neutral".split()
)


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tsv:goemotions/train.tsv"
    config.data.dev = ("tsv:goemotions/dev.tsv",)
    config.data.test = ()
    config.data.header = ("text", "emotions", "id")
    config.task = recipe.text_task("multi_label", ("text",), LABELS)
    config.task.label = "emotions"
    config.recipe.learning_rate = 5e-5
    config.recipe.global_batch_size = 16
    config.metric = "macro_f1"
    return config
