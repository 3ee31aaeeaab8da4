"""Sentence embeddings: a dual encoder trained on the scored pairs of STS-B.

Reimers and Gurevych 2019, table 2, reports Spearman 84.67 on the test set for BERT-base
fine-tuned this way on STS-B only. WORKDIR/model loads in sentence-transformers. To
compute the embeddings of texts:

    python -m bert_jax.extract --model=WORKDIR/model --input=FILE --output=X.npz
        --pooling=mean

To use GLUE's own files:

    --config.data.train=tsv:STS-B/train.tsv --config.data.dev="('tsv:STS-B/dev.tsv',)"
    --config.task.label=score
"""

import ml_collections

from bert_jax.configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:glue/stsb:train"
    config.data.dev = ("tfds:glue/stsb:validation",)
    config.data.test = ()
    config.task = ml_collections.ConfigDict(
        {
            "kind": "similarity",
            "text": ("sentence1", "sentence2"),
            "label": "label",
            "max_label": 5.0,
        }
    )
    config.recipe.num_epochs = 4  # sentence-transformers training_stsbenchmark.py
    config.recipe.global_batch_size = 16  # Reimers and Gurevych 2019, section 3.1
    config.metric = "spearman"  # section 4
    return config
