"""SQuAD 1.1: find the span of a paragraph that answers a question.

Devlin et al. 2019, table 2, reports exact match 80.8 and F1 88.5 for BERT-base on the
dev set. To use the dataset's own files:

    --config.data.train=squad:train-v1.1.json
    --config.data.dev="('squad:dev-v1.1.json',)"

For Chinese or Japanese data in the same format, such as CMRC 2018, set
--config.task.answer_units=characters to compute the scores of CMRC's evaluation.
"""

import ml_collections

from bert_jax.configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:squad/v1.1:train"
    config.data.dev = ("tfds:squad/v1.1:validation",)
    config.data.test = ()
    config.task = ml_collections.ConfigDict()
    config.task.kind = "question_answering"
    config.task.stride = 0  # run_squad.py's doc_stride of 128, or less in short rows
    config.task.max_query_length = 64  # run_squad.py
    config.task.max_answer_length = 30  # run_squad.py
    config.task.num_best = 20  # run_squad.py n_best_size
    config.task.null_threshold = 0.0  # run_squad.py null_score_diff_threshold
    config.task.answer_units = "words"
    config.dropout.head_prob = 0.0  # run_squad.py has no dropout in the head
    config.sequence_length = 384  # run_squad.py max_seq_length
    config.recipe.learning_rate = 5e-5  # section 4.2, with batches of 32 and 3 epochs
    config.recipe.learning_rates = (5e-5, 3e-5, 2e-5)  # appendix A.3
    config.metric = "f1"
    return config
