"""Table of the keys of config.json and tokenizer_config.json, and of their effects.

Every key that transformers defines for a BERT is read, has one supported value, or has
no effect here. Other keys are ignored: transformers only stores them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import ConfigError

# Keys of config.json that are read -> their use.
CONFIG_READ = {
    "architectures": "the kind of task head",
    "attention_probs_dropout_prob": "dropout in training",
    "classifier_dropout": "dropout of the task head in training",
    "hidden_act": "`gelu`, `gelu_new` and its other names",
    "hidden_dropout_prob": "dropout in training",
    "hidden_size": "size of the model",
    "id2label": "names of the classes",
    "initializer_range": "initial weights of a new head",
    "intermediate_size": "size of the model",
    "layer_norm_eps": "LayerNorm",
    "max_position_embeddings": "maximum tokens of a row",
    "num_attention_heads": "size of the model",
    "num_hidden_layers": "size of the model",
    "num_labels": "number of classes, if there is no id2label",
    "problem_type": "the kind of classification",
    "tie_word_embeddings": "must be true where the masked-LM head is read",
    "tokenizer_class": "used if tokenizer_config.json has none",
    "type_vocab_size": "pairs of texts are refused if it is 1",
    "vocab_size": "rows of the table of tokens",
}
# Keys of config.json with one supported value.
CONFIG_FIXED = {
    "add_cross_attention": False,
    "auto_map": None,  # code in the repository
    "is_decoder": False,
    "is_encoder_decoder": False,
    "model_type": "bert",
    "per_layer_config": None,
    "position_embedding_type": "absolute",
    "pruned_heads": None,
    "quantization_config": None,
}
# Keys of config.json that do not change results -> the reason.
CONFIG_IGNORED = {
    "_name_or_path": "information",
    "bos_token_id": "rows begin with [CLS]",
    "chunk_size_feed_forward": "memory only",
    "dtype": "weights are converted to float32",
    "eos_token_id": "rows end with [SEP]",
    "gradient_checkpointing": "memory only",
    "label2id": "id2label is read",
    "output_attentions": "output format",
    "output_hidden_states": "output format",
    "pad_token_id": "attention leaves out padding",
    "return_dict": "output format",
    "torch_dtype": "weights are converted to float32",
    "transformers_version": "information",
    "use_cache": "generation only",
}
# The same for tokenizer_config.json. Names of special tokens are also read from
# special_tokens_map.json.
TOKENIZER_READ = {
    "added_tokens_decoder": "tokens added to the vocabulary",
    "additional_special_tokens": "tokens added to the vocabulary",
    "do_lower_case": "with BertTokenizer; must otherwise agree with tokenizer.json",
    "extra_special_tokens": "tokens added to the vocabulary",
    "max_len": "the older name of model_max_length",
    "model_input_names": "must have token_type_ids",
    "model_max_length": "maximum tokens of a row",
    "strip_accents": "with BertTokenizer",
    "tokenize_chinese_chars": "with BertTokenizer",
    "tokenizer_class": "BertTokenizer, or PreTrainedTokenizerFast with tokenizer.json",
}
TOKENIZER_FIXED = {
    "auto_map": None,  # code in the repository
    "clean_text": True,
    "cls_token": "[CLS]",
    "do_basic_tokenize": True,
    "mask_token": "[MASK]",
    "never_split": None,
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "truncation_side": "right",
    "unk_token": "[UNK]",
    "wordpieces_prefix": "##",
}
TOKENIZER_IGNORED = {
    "add_bos_token": "rows are [CLS] A [SEP] or [CLS] A [SEP] B [SEP]",
    "add_eos_token": "rows are [CLS] A [SEP] or [CLS] A [SEP] B [SEP]",
    "backend": "information",
    "bos_token": "rows begin with [CLS]",
    "chat_control_tokens": "chats only",
    "chat_template": "chats only",
    "clean_up_tokenization_spaces": "only for the text of ids",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (
        "only for the text of ids"
    ),
    "eos_token": "rows end with [SEP]",
    "name_or_path": "information",
    "padding_side": "rows are padded at the end, and attention leaves out padding",
    "processor_class": "information",
    "response_schema": "chats only",
    "response_template": "chats only",
    "split_special_tokens": "text never becomes one of the five special tokens",
    "verbose": "information",
}


def check_fixed(
    values: Mapping[str, Any], fixed: Mapping[str, Any], path: Path
) -> None:
    """Raises ConfigError if a key has another value than the supported one.

    Args:
      fixed: CONFIG_FIXED or TOKENIZER_FIXED.
    """
    for key, only in fixed.items():
        value = values.get(key, only)
        if isinstance(value, dict) and "content" in value:  # an added token
            value = value["content"]
        if value != only and (value or only):
            raise ConfigError(
                f"{path} has {key}={values[key]!r}; only {only!r} is supported"
            )
