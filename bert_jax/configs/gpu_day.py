"""BERT-base for a day on one GPU, in rows of 512 tokens: 110 million parameters.

    python -m bert_jax.prepare --config=configs/gpu_day.py
    python -m bert_jax.train --config=configs/gpu_day.py --workdir=DIR

The recipe of configs/base_modern.py, without its phase of short rows: RoBERTa (Liu et
al. 2019) has rows of 512 tokens only, and with one phase the clock can end the run on
any GPU, see config.budget_hours. On an A100, a day is about 84,000 steps (estimated
from rates measured on an H200). This project has not run it. For other text, hours or
GPUs, `python -m bert_jax.plan --config=configs/gpu_day.py` adapts it.
"""

import ml_collections

from bert_jax.configs import base_modern


def get_config() -> ml_collections.ConfigDict:
    config = base_modern.get_config()
    config.budget_hours = 24.0
    # 64 rows at a time; 8 for a GPU of 24 GB, 2 or 1 for one of 80 GB or more.
    config.accumulation_steps = 4

    _, long = config.phases
    long.num_steps = 1_000_000  # more than there is time for
    long.global_batch_size = 256  # RoBERTa's first experiments; Devlin et al. 2019
    config.phases = (long,)

    # Half the rate for a quarter of the batch: the square root, as in You et al. 2019.
    # RoBERTa has 1e-4 for this batch.
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = "wsd"
    config.optimizer.warmup_steps = 5_000  # MosaicBERT: 6% of the steps
    return config
