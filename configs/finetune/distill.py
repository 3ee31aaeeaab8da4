"""A model of half the layers that learns SST-2 from one that was tuned on it.

It begins as the first layers of --model, most often the teacher itself:

    python -m bert_jax.finetune --config=configs/finetune/distill.py
        --model=TUNED --config.distill.teacher=TUNED

where TUNED is the WORKDIR/model that configs/finetune/sst2.py left. Another task: copy
this file and begin with that task's config.
"""

import ml_collections

from configs.finetune import sst2


def get_config() -> ml_collections.ConfigDict:
    config = sst2.get_config()
    config.num_layers = 6  # Sanh et al. 2019, section 3: half of BERT-base's
    config.distill.teacher = "runs/finetune-sst2/model"
    # The weights and the temperature of transformers' run_squad_w_distillation.py.
    config.distill.label_weight = 0.5
    config.distill.logits_weight = 0.5
    config.distill.temperature = 2.0
    config.distill.states_weight = 1.0  # ours, compared with no other
    return config
