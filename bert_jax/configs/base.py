"""BERT-base as published: 12 layers, hidden size 768, 110 million parameters.

    python -m bert_jax.prepare --config=configs/base.py
    python -m bert_jax.train --config=configs/base.py --workdir=DIR

The recipe is that of google-research/bert (README, modeling.py, optimization.py,
create_pretraining_data.py) and Devlin et al. 2019, section 3 and appendix A.2. With
this budget and a good corpus, expect a held-out masked-LM loss near 1.4 nats (bert#90)
and a next-sentence accuracy of 97 to 98% (bert#749). This project has not run it in
full.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.seed = 12345  # create_pretraining_data.py random_seed
    config.init_from = ""
    config.branch_from = ""
    config.budget_hours = 0.0
    config.compute_dtype = "auto"  # bfloat16 on TPU and GPU
    config.gradient_reduction_dtype = "float32"  # bfloat16: half the bytes
    config.accumulation_steps = 1
    config.remat = "none"
    config.log_every_steps = 100
    config.compilation_cache_dir = "auto"
    config.trackers = ()
    config.profile = ()

    config.data = ml_collections.ConfigDict()
    # The paper uses Wikipedia and BookCorpus. The latter is no longer distributed, so
    # this config uses the books of Project Gutenberg instead.
    config.data.sources = ("tfds:wikipedia/20230601.en#text", "tfds:pg19#book_text")
    config.data.source_weights = ()  # all sources have weight 1
    config.data.corpus_dir = "corpora/wikipedia_pg19_uncased"
    config.data.stream = False
    # The corpus has about 5 billion tokens, so a shard has about 2.5 million, or 5 MB.
    # A process that reads all 64 streams holds at most two shards of each.
    config.data.num_shards = 2048
    config.data.num_streams = 64  # must divide the batch of 256 and the shards
    config.data.validation_fraction = 0.002  # about 10 million tokens
    config.data.invalid_utf8 = "error"
    # The longest paragraph in 28 MB of novels is 15 kB long.
    config.data.max_line_bytes = 2**20
    # Bounds memory, and exceeds nearly any book (War and Peace is 3.3 MB long).
    config.data.max_document_bytes = 4 * 2**20
    config.data.word_segmented = False
    config.data.short_seq_prob = 0.1  # create_pretraining_data.py
    config.data.next_sentence = True
    config.data.masked_lm_prob = 0.15  # create_pretraining_data.py
    config.data.final_masked_lm_prob = 0.0
    config.data.mask_replace_prob = 0.8  # create_pretraining_data.py
    config.data.mask_random_prob = 0.1  # create_pretraining_data.py
    config.data.mask_random_special = True  # create_pretraining_data.py
    config.data.whole_word_mask = False
    config.data.mask_ngram_max = 1

    config.tokenizer = ml_collections.ConfigDict()
    config.tokenizer.kind = "wordpiece"  # or sentencepiece_unigram, sentencepiece_bpe
    config.tokenizer.vocab_file = ""  # train one; or give the released vocab.txt
    config.tokenizer.vocab_size = 30522  # the released uncased vocabulary
    config.tokenizer.lowercase = True

    config.model = ml_collections.ConfigDict()  # the released bert_config.json
    config.model.hidden_size = 768
    config.model.num_hidden_layers = 12
    config.model.num_attention_heads = 12
    config.model.intermediate_size = 3072
    config.model.hidden_act = "gelu_new"  # modeling.py since 2019-02-07; "gelu" before
    config.model.hidden_dropout_prob = 0.1
    config.model.attention_probs_dropout_prob = 0.1
    config.model.max_position_embeddings = 512
    config.model.type_vocab_size = 2
    config.model.initializer_range = 0.02
    config.model.layer_norm_eps = 1e-12  # tf.contrib.layers.layer_norm

    # Appendix A.2: 1M steps of 256 sequences, the last tenth of them at 512 tokens.
    config.phases = (
        ml_collections.ConfigDict(
            {
                "num_steps": 900_000,
                "sequence_length": 128,
                "global_batch_size": 256,
                "max_predictions": 20,  # README: sequence_length * masked_lm_prob
                "max_sequences_per_row": 1,
            }
        ),
        ml_collections.ConfigDict(
            {
                "num_steps": 100_000,
                "sequence_length": 512,
                "global_batch_size": 256,
                "max_predictions": 80,  # NVIDIA DeepLearningExamples, phase 2
                "max_sequences_per_row": 1,
            }
        ),
    )

    config.loss_weights = ml_collections.ConfigDict(
        {"masked_lm": 1.0, "next_sentence": 1.0, "z_loss": 0.0}  # run_pretraining.py
    )

    config.optimizer = ml_collections.ConfigDict()
    config.optimizer.name = "adamw_bert"  # optimization.py
    config.optimizer.schedule = "linear"  # optimization.py
    config.optimizer.schedule_by_phase = False
    config.optimizer.reset_moments_by_phase = False
    config.optimizer.learning_rate = 1e-4  # appendix A.2
    config.optimizer.warmup_steps = 10_000  # appendix A.2
    config.optimizer.decay_steps = 0  # for schedule wsd
    config.optimizer.weight_decay = 0.01  # appendix A.2; except LayerNorm and biases
    config.optimizer.beta1 = 0.9  # appendix A.2
    config.optimizer.beta2 = 0.999  # appendix A.2
    config.optimizer.epsilon = 1e-6  # optimization.py
    config.optimizer.mu_dtype = "float32"
    config.optimizer.clip_norm = 1.0  # optimization.py
    config.optimizer.average_steps = 0

    config.mesh = ml_collections.ConfigDict(
        {"data": -1, "fsdp": 1, "tensor": 1, "shard_optimizer": False}
    )
    config.checkpoint = ml_collections.ConfigDict()
    config.checkpoint.every_steps = 5_000
    config.checkpoint.every_minutes = 30.0  # bounds the work lost to a preemption
    config.checkpoint.keep = 3
    config.checkpoint.keep_every_steps = 100_000  # keeps ten over the whole run
    config.checkpoint.keep_steps = ()
    config.checkpoint.keep_best = 1
    config.guard = ml_collections.ConfigDict(
        {"max_bad_steps": 10, "max_rollbacks": 0, "replay_every_steps": 0}
    )
    config.eval = ml_collections.ConfigDict(
        {"every_steps": 5_000, "num_sequences": 8_192, "masked_lm_prob": 0.15}
    )
    config.eval.probes = ()
    return config
