"""Sentence embeddings: a dual encoder, trained with or without scored pairs.

    similarity.py           on the scored pairs of STS-B
    similarity.py:pairs     on pairs of texts that belong together, such as questions
                            and answers; the negatives are the others of the batch
    similarity.py:simcse    on plain texts: two embeddings of a text, with different
                            dropout, belong together

All are evaluated on the dev set of STS-B. WORKDIR/model loads in sentence-transformers.
To compute the embeddings of texts:

    python -m bert_jax.extract --model=WORKDIR/model --input=FILE --output=X.npz
        --pooling=mean

To use GLUE's own files:

    --config.data.train=tsv:STS-B/train.tsv --config.data.dev="('tsv:STS-B/dev.tsv',)"
    --config.task.label=score

Reimers and Gurevych 2019, table 2, reports Spearman 84.67 on the test set for BERT-base
fine-tuned on STS-B only.
"""

import ml_collections

from bert_jax.configs.finetune import recipe
from bert_jax.errors import ConfigError

POSITIVES = {"scores": (), "pairs": ("anchor", "positive"), "simcse": ("text",)}


def get_config(train_on: str = "scores") -> ml_collections.ConfigDict:
    if train_on not in POSITIVES:
        raise ConfigError(
            f"--config=similarity.py:{train_on}: give one of {', '.join(POSITIVES)}"
        )
    config = recipe.get_config()
    config.data.train = "tfds:glue/stsb:train"
    config.data.dev = ("tfds:glue/stsb:validation",)
    config.data.test = ()
    config.task = ml_collections.ConfigDict()
    config.task.kind = "similarity"
    config.task.text = ("sentence1", "sentence2")
    config.task.label = "label"
    config.task.max_label = 5.0
    config.task.positives = POSITIVES[train_on]
    config.task.temperature = 0.05  # Gao et al. 2021, table D.1
    config.recipe.num_epochs = 4  # sentence-transformers training_stsbenchmark.py
    config.recipe.global_batch_size = 16  # Reimers and Gurevych 2019, section 3.1
    if train_on != "scores":
        config.data.train = "csv:train.csv"
        config.recipe.num_epochs = 1  # Gao et al. 2021, appendix A
        config.recipe.global_batch_size = 64  # appendix A, BERT-base
        config.recipe.learning_rate = 3e-5  # appendix A, BERT-base
    config.metric = "spearman"  # section 4
    return config
