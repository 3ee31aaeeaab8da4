"""The README.md of an exported model: how to load it, how good, what it was made of.

What stands between the lines of --- is for the Hugging Face hub.
"""

from pathlib import Path

from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.monitoring import writer

LOAD = {
    "huggingface": """\
```python
from transformers import AutoModel, AutoTokenizer, BertForPreTraining

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
encoder = AutoModel.from_pretrained("DIRECTORY")
with_heads = BertForPreTraining.from_pretrained("DIRECTORY")
```

DIRECTORY is where this file is. `BertForMaskedLM` loads it too,
`BertForSequenceClassification` with a classifier of new weights, and
`sentence_transformers.SentenceTransformer("DIRECTORY")`, which averages the tokens'
states; nothing in pretraining made those averages comparable.""",
    "google": """\
- google-research/bert: `--bert_config_file=DIRECTORY/bert_config.json
  --vocab_file=DIRECTORY/vocab.txt --init_checkpoint=DIRECTORY/bert_model.ckpt
  --do_lower_case=LOWERCASE`
- TensorFlow: `tf.train.load_checkpoint("DIRECTORY/bert_model.ckpt")`""",
}
METRICS = {
    "eval_masked_lm_loss": "masked-LM loss, nats",
    "eval_masked_lm_accuracy": "masked-LM accuracy",
    "eval_next_sentence_loss": "next-sentence loss, nats",
    "eval_next_sentence_accuracy": "next-sentence accuracy",
}
HALF = (
    "The variables are bfloat16. google-research/bert declares float32 ones and refuses"
    " them; bert_jax and `tf.train.load_checkpoint` read them."
)
NO_NEXT_SENTENCE = (
    "It was trained on masks alone: its pooler and next-sentence head are untrained."
)
ERF_GELU = (
    "This model was trained with the erf form of GELU, as Google's code was before"
    " 2019-02-07; that code computes the tanh form since."
)


def write(
    directory: Path,
    config: ExperimentConfig,
    corpus: corpus_lib.Corpus,
    workdir: str,
    step: int,
    format_name: str,
    dtype: str,
) -> None:
    """Writes README.md into the directory of an export.

    Args:
      directory: of the export.
      config: of the run.
      corpus: that the run was trained on.
      workdir: of the run; its metrics.jsonl is read.
      step: of the exported checkpoint.
      format_name: a key of LOAD.
      dtype: of the exported weights.
    """
    model = config.model
    sections = [
        _front_matter(format_name),
        f"# BERT with {model.num_hidden_layers} layers of {model.hidden_size}",
        f"{_origin(config, step)} The weights here are {dtype}.",
        f"## Loading\n\n{_load(config, format_name, dtype)}",
        f"## Held-out metrics\n\n{_metrics(workdir, step)}",
        f"## Data\n\n{_data(corpus, config)}",
        f"## Config\n\n```json\n{config.to_json()}\n```",
    ]
    text = "\n\n".join(sections) + "\n"
    (directory / "README.md").write_text(text, encoding="utf-8")


def _front_matter(format_name: str) -> str:
    if format_name != "huggingface":
        return "---\ntags:\n- bert\n---"
    return (
        "---\nlibrary_name: transformers\npipeline_tag: fill-mask\n"
        "tags:\n- bert\n- pretraining\n---"
    )


def _origin(config: ExperimentConfig, step: int) -> str:
    began = "from random weights"
    if config.init_from:
        began = f"from the weights in `{config.init_from}`"
    text = f"Pretrained with bert_jax {began}: step {step:,} of {config.num_steps:,}."
    return text if config.data.next_sentence else f"{text} {NO_NEXT_SENTENCE}"


def _load(config: ExperimentConfig, format_name: str, dtype: str) -> str:
    text = LOAD[format_name].replace("LOWERCASE", str(config.tokenizer.lowercase))
    if format_name == "google" and config.model.hidden_act == "gelu":
        text += f"\n\n{ERF_GELU}"
    if format_name == "google" and dtype == "bfloat16":
        text += f"\n\n{HALF}"
    return text


def _metrics(workdir: str, step: int) -> str:
    """Returns a table of the newest evaluation up to the step."""
    lines = writer.read(workdir)
    evaluated = [x for x in lines if x["step"] <= step and "eval_masked_lm_loss" in x]
    if not evaluated:
        return "None are at hand."
    newest = evaluated[-1]
    rows = [
        f"| {words} | {newest[name]:.4f} |"
        for name, words in METRICS.items()
        if name in newest
    ]
    return "\n".join([f"| at step {newest['step']:,} | |", "|---|---|", *rows])


def _data(corpus: Corpus, config: ExperimentConfig) -> str:
    """Returns a table of what the corpus's manifest says."""
    counts = {
        split: (sum(s.num_documents for s in shards), sum(s.num_tokens for s in shards))
        for split, shards in corpus.shards.items()
    }
    kind = config.tokenizer.kind
    case = "lower-cased" if config.tokenizer.lowercase else "cased"
    rows = [
        ("sources", ", ".join(f"`{source}`" for source in config.data.sources)),
        ("to train on", "{:,} documents, {:,} tokens".format(*counts["train"])),
        ("held out", "{:,} documents, {:,} tokens".format(*counts["validation"])),
        ("tokenizer", f"{kind}, {len(corpus.tokenizer.vocab):,} tokens, {case}"),
        ("sha256 that manifest.json names", f"`{corpus.sha256}`"),
    ]
    cells = (f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows)
    return "\n".join(["| | |", "|---|---|", *cells])
