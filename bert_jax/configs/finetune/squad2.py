"""SQuAD 2.0: find the span that answers a question, or detect that there is none.

Devlin et al. 2019, table 3, reports exact match 78.7 and F1 81.9 for BERT-large on the
dev set. To use the dataset's own files:

    --config.data.train=squad:train-v2.0.json
    --config.data.dev="('squad:dev-v2.0.json',)"
"""

import ml_collections

from bert_jax.configs.finetune import squad1


def get_config() -> ml_collections.ConfigDict:
    config = squad1.get_config()
    config.data.train = "tfds:squad/v2.0:train"
    config.data.dev = ("tfds:squad/v2.0:validation",)
    config.recipe.num_epochs = 2  # section 4.3
    config.recipe.global_batch_size = 48  # section 4.3
    config.recipe.learning_rate = 5e-5  # section 4.3
    return config
