"""SQuAD 1.1: the words of a paragraph that answer a question.

Devlin et al. 2019, table 2, has BERT-base at 80.8 exact match and 88.5 F1 on the dev
set. From the dataset's own files:

    --config.data.train=squad:train-v1.1.json
    --config.data.dev="('squad:dev-v1.1.json',)"

For Chinese or Japanese, as CMRC 2018 in the same format, --config.task.answer_units=
characters gives the scores of CMRC's evaluation.
"""

import ml_collections

from configs.finetune import recipe


def get_config() -> ml_collections.ConfigDict:
    config = recipe.get_config()
    config.data.train = "tfds:squad/v1.1:train"
    config.data.dev = ("tfds:squad/v1.1:validation",)
    config.data.test = ()
    config.task = ml_collections.ConfigDict()
    config.task.kind = "question_answering"
    config.task.stride = 0  # 128 as run_squad.py's doc_stride, less in short rows
    config.task.max_query_length = 64  # run_squad.py
    config.task.max_answer_length = 30  # run_squad.py
    config.task.num_best = 20  # run_squad.py n_best_size
    config.task.null_threshold = 0.0  # run_squad.py null_score_diff_threshold
    config.task.answer_units = "words"
    config.dropout.head_prob = 0.0  # run_squad.py has none
    config.sequence_length = 384  # run_squad.py max_seq_length
    config.recipe.learning_rate = 5e-5  # section 4.2, with batches of 32, 3 epochs
    config.recipe.learning_rates = (5e-5, 3e-5, 2e-5)  # appendix A.3
    config.metric = "f1"
    return config
