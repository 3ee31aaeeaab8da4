"""Settings shared by all fine-tuning tasks, from Devlin et al. 2019 and its code.

This is not a complete config; the other files in this directory start from it.
"""

from typing import Any

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.compute_dtype = "auto"  # bfloat16 on TPU and GPU
    config.accumulation_steps = 1
    config.remat = "none"
    config.log_every_steps = 20
    config.eval_every_steps = 0  # once per epoch
    config.early_stop_evals = 0  # never stop early
    config.max_bad_steps = 10
    config.compilation_cache_dir = "auto"
    config.trackers = ()

    config.mesh = {"data": -1, "fsdp": 1, "tensor": 1, "shard_optimizer": False}

    config.data = ml_collections.ConfigDict()
    config.data.header = ()  # column names of a tsv or csv without a header line

    config.dropout = ml_collections.ConfigDict()  # the released bert_config.json
    config.dropout.hidden_prob = 0.1
    config.dropout.attention_prob = 0.1
    config.dropout.head_prob = 0.1  # run_classifier.py

    config.recipe = ml_collections.ConfigDict()
    config.recipe.num_epochs = 3  # Devlin et al. 2019, section 4.1
    config.recipe.global_batch_size = 32  # section 4.1
    config.recipe.group_by_length = False  # random order, as in run_classifier.py
    config.recipe.optimizer = "adamw_bert"  # optimization.py
    config.recipe.learning_rate = 2e-5  # README, "Sentence (and sentence-pair)"
    config.recipe.learning_rates = (5e-5, 4e-5, 3e-5, 2e-5)  # section 4.1
    config.recipe.warmup_fraction = 0.1  # run_classifier.py warmup_proportion
    config.recipe.weight_decay = 0.01  # optimization.py
    config.recipe.beta1 = 0.9  # optimization.py
    config.recipe.beta2 = 0.999  # optimization.py
    config.recipe.epsilon = 1e-6  # optimization.py
    config.recipe.clip_norm = 1.0  # optimization.py

    config.sequence_length = 128  # run_classifier.py max_seq_length
    config.num_layers = 0  # all

    config.distill = ml_collections.ConfigDict()  # see distill.py
    config.distill.teacher = ""
    config.distill.label_weight = 1.0
    config.distill.logits_weight = 0.0
    config.distill.temperature = 1.0
    config.distill.states_weight = 0.0
    return config


def text_task(
    kind: str, text: tuple[str, ...], labels: tuple[str, ...]
) -> dict[str, Any]:
    """Returns a text task with the column names of GLUE in TensorFlow Datasets."""
    return {
        "kind": kind,
        "text": text,
        "label": "label",
        "labels": labels,
        "glue": (),
        "index": "",
        "threshold": 0.5,
    }
