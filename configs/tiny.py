"""A BERT small enough to learn from the installed documentation in minutes on a CPU.

python -m bert_jax.train --config=configs/tiny.py
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.seed = 12345  # google-research/bert create_pretraining_data.py
    config.init_from = ""
    config.compute_dtype = "auto"
    config.gradient_reduction_dtype = "float32"
    config.accumulation_steps = 1
    config.remat = "none"
    config.log_every_steps = 20
    config.compilation_cache_dir = ""

    config.data = ml_collections.ConfigDict()
    config.data.sources = ("embedded:",)
    config.data.source_weights = ()  # each counts once
    config.data.corpus_dir = "corpora/tiny"
    config.data.num_shards = 1
    config.data.num_streams = 1
    config.data.validation_fraction = 0.05  # some 100,000 tokens
    config.data.invalid_utf8 = "error"
    # The longest paragraph of 28 MB of novels has 15 kB.
    config.data.max_line_bytes = 2**20
    # Room for nearly any book (War and Peace has 3.3 MB), in bounded memory.
    config.data.max_document_bytes = 4 * 2**20
    config.data.word_segmented = False
    config.data.short_seq_prob = 0.1
    config.data.next_sentence = True
    config.data.masked_lm_prob = 0.15
    config.data.mask_replace_prob = 0.8
    config.data.mask_random_prob = 0.1
    config.data.mask_random_special = True
    config.data.whole_word_mask = False
    config.data.mask_ngram_max = 1

    config.tokenizer = ml_collections.ConfigDict()
    config.tokenizer.kind = "wordpiece"  # or sentencepiece_unigram, _bpe
    config.tokenizer.vocab_file = ""
    config.tokenizer.vocab_size = 4000  # 8,000 learnt less in the same time
    config.tokenizer.lowercase = True

    config.model = ml_collections.ConfigDict()
    config.model.hidden_size = 128  # with 2 layers and 2 heads: BERT-tiny's sizes
    config.model.num_hidden_layers = 2
    config.model.num_attention_heads = 2
    config.model.intermediate_size = 512
    config.model.hidden_act = "gelu_new"
    config.model.hidden_dropout_prob = 0.0  # too short a run to overfit
    config.model.attention_probs_dropout_prob = 0.0
    config.model.max_position_embeddings = 64
    config.model.type_vocab_size = 2
    config.model.initializer_range = 0.02
    config.model.layer_norm_eps = 1e-12

    config.phases = (
        ml_collections.ConfigDict(
            {
                "num_steps": 1600,
                "sequence_length": 64,
                "global_batch_size": 64,
                "max_predictions": 10,
                "max_sequences_per_row": 1,
            }
        ),
    )

    config.loss_weights = ml_collections.ConfigDict(
        {"masked_lm": 1.0, "next_sentence": 1.0}
    )

    config.optimizer = ml_collections.ConfigDict()
    config.optimizer.name = "adamw_bert"
    config.optimizer.schedule = "linear"
    config.optimizer.schedule_by_phase = False
    config.optimizer.reset_moments_by_phase = False
    config.optimizer.learning_rate = 4e-3  # better than 1.5e-3 in trials
    config.optimizer.warmup_steps = 160  # a tenth of the steps
    config.optimizer.weight_decay = 0.01
    config.optimizer.beta1 = 0.9
    config.optimizer.beta2 = 0.98  # the moments must settle within 1,600 steps
    config.optimizer.epsilon = 1e-6
    config.optimizer.mu_dtype = "float32"
    config.optimizer.clip_norm = 1.0

    config.mesh = ml_collections.ConfigDict(
        {"data": -1, "fsdp": 1, "tensor": 1, "shard_optimizer": False}
    )
    config.checkpoint = ml_collections.ConfigDict()
    config.checkpoint.every_steps = 400
    config.checkpoint.every_minutes = 0.0
    config.checkpoint.keep = 2
    config.checkpoint.keep_every_steps = 0
    config.checkpoint.keep_best = 0
    config.guard = ml_collections.ConfigDict(
        {"max_bad_steps": 10, "max_rollbacks": 0, "replay_every_steps": 0}
    )
    config.eval = ml_collections.ConfigDict(
        {"every_steps": 400, "num_sequences": 1024, "masked_lm_prob": 0.15}
    )
    return config
