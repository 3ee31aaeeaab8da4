"""Distillation on SST-2: a student with half the layers of a fine-tuned teacher.

The student starts from the first layers of --model, which is usually the teacher:

    python -m bert_jax.finetune --config=configs/finetune/distill.py
        --model=TUNED --config.distill.teacher=TUNED

TUNED is the WORKDIR/model of a run of configs/finetune/glue.py:sst2. For another task,
copy this file and start from that task's config.
"""

import ml_collections

from bert_jax.configs.finetune import glue


def get_config() -> ml_collections.ConfigDict:
    config = glue.get_config("sst2")
    config.num_layers = 6  # Sanh et al. 2019, section 3: half of BERT-base's
    config.distill.teacher = "runs/finetune-glue-sst2/model"
    # The weights and the temperature of transformers' run_squad_w_distillation.py.
    config.distill.label_weight = 0.5
    config.distill.logits_weight = 0.5
    config.distill.temperature = 2.0
    config.distill.states_weight = 1.0  # our choice, not compared with other values
    return config
