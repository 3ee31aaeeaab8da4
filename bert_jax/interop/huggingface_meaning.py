"""What Hugging Face's config.json says by silence."""

# What a config.json means that leaves a key out: transformers' BertConfig.
MEANT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}
