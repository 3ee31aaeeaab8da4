"""Writes the README.md of an exported model: loading, metrics, curves, data, config.

The front matter between the lines of --- is for the Hugging Face hub.
"""

from pathlib import Path
from typing import Any

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.data.corpus.corpus import Corpus
from bert_jax.data.sources import hub_datasets
from bert_jax.interop import hub_models
from bert_jax.monitoring import terminal, writer

LOAD = {
    "huggingface": """\
```python
from transformers import AutoModel, AutoTokenizer, BertForPreTraining

tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")
encoder = AutoModel.from_pretrained("DIRECTORY")
with_heads = BertForPreTraining.from_pretrained("DIRECTORY")
```

WHERE `BertForMaskedLM` loads it as well,
`BertForSequenceClassification` adds a randomly initialized classifier, and
`sentence_transformers.SentenceTransformer("DIRECTORY")` averages the tokens' states;
pretraining does not train these averages to be comparable.""",
    "google": """\
- google-research/bert: `--bert_config_file=DIRECTORY/bert_config.json
  --vocab_file=DIRECTORY/vocab.txt --init_checkpoint=DIRECTORY/bert_model.ckpt
  --do_lower_case=LOWERCASE`
- TensorFlow: `tf.train.load_checkpoint("DIRECTORY/bert_model.ckpt")`""",
}
IN_DIRECTORY = "DIRECTORY is the directory of this file."
ON_THE_HUB = 'With `revision="TAG"` they load this step.'
BFLOAT16 = (
    "The variables are bfloat16. google-research/bert declares float32 variables and"
    " cannot load them; bert_jax and `tf.train.load_checkpoint` can."
)
NO_NEXT_SENTENCE = (
    "It was trained on masked tokens only: its pooler and next-sentence head are"
    " untrained."
)
ERF_GELU = (
    "This model was trained with the erf form of GELU, which google-research/bert"
    " computed before 2019-02-07; it has computed the tanh form since."
)


def write(
    directory: Path,
    config: ExperimentConfig,
    corpus: corpus_lib.Corpus,
    workdir: str,
    step: int,
    format_name: str,
    dtype: str,
    target: hub_models.Target | None = None,
) -> None:
    model, curves = config.model, ""
    if (directory / terminal.CURVES_FILE).exists():
        curves = f"\n\n![Losses and accuracies over the steps]({terminal.CURVES_FILE})"
    sections = [
        _front_matter(format_name, config),
        f"# BERT with {model.num_hidden_layers} layers of {model.hidden_size}",
        f"{_origin(config, step)} The weights here are {dtype}.",
        f"## Loading\n\n{_load(config, format_name, dtype, target, step)}",
        f"## Held-out metrics\n\n{_metrics(workdir, step)}{curves}",
        f"## Data\n\n{_data(corpus, config)}",
        f"## Config\n\n```json\n{config.to_json()}\n```",
    ]
    text = "\n\n".join(sections) + "\n"
    storage.write(str(directory / "README.md"), text.encode())


def plot(
    directory: Path, workdir: str, step: int, unigram_entropy: float | None
) -> None:
    """Plots the curves up to a step into the directory, if metrics.jsonl has any."""
    if lines := _lines(workdir, step):
        terminal.plot_curves(str(directory), lines, unigram_entropy)


def _lines(workdir: str, step: int) -> list[dict[str, Any]]:
    return [line for line in writer.read(workdir) if line["step"] <= step]


def _front_matter(format_name: str, config: ExperimentConfig) -> str:
    if format_name != "huggingface":
        return "---\ntags:\n- bert\n---"
    lines = ["library_name: transformers", "pipeline_tag: fill-mask"]
    names = map(hub_datasets.repository, config.data.sources)
    if found := sorted(set(filter(None, names))):
        lines += ["datasets:", *(f"- {name}" for name in found)]
    return "\n".join(["---", *lines, "tags:", "- bert", "- pretraining", "---"])


def _origin(config: ExperimentConfig, step: int) -> str:
    start = "from random weights"
    if config.init_from:
        start = f"from the weights in `{config.init_from}`"
    if config.branch_from:
        start += f", from `{config.branch_from}` on as a branch"
    of = f"{config.num_steps:,}"
    if config.budget_hours:
        of = f"a run of {config.budget_hours:g} hours"
    text = f"Pretrained with bert_jax {start}: step {step:,} of {of}."
    averaged = step - (config.num_steps - config.optimizer.average_steps)
    if config.optimizer.average_steps and averaged > 1:
        text += f" The weights are the mean of those after its last {averaged:,} steps."
    return text if config.data.next_sentence else f"{text} {NO_NEXT_SENTENCE}"


def _load(
    config: ExperimentConfig,
    format_name: str,
    dtype: str,
    target: hub_models.Target | None,
    step: int,
) -> str:
    text = LOAD[format_name].replace("LOWERCASE", str(config.tokenizer.lowercase))
    if format_name == "huggingface" and target:
        text = text.replace("WHERE", ON_THE_HUB.replace("TAG", target.tag(step)))
        text = text.replace("DIRECTORY", target.repository)
    text = text.replace("WHERE", IN_DIRECTORY)
    if format_name == "google" and config.model.hidden_act == "gelu":
        text += f"\n\n{ERF_GELU}"
    if format_name == "google" and dtype == "bfloat16":
        text += f"\n\n{BFLOAT16}"
    return text


def _metrics(workdir: str, step: int) -> str:
    """Returns a table of the last evaluation up to `step`."""
    lines = _lines(workdir, step)
    evaluated = [line for line in lines if "eval_masked_lm_loss" in line]
    if not evaluated:
        return "There was no evaluation up to this step."
    newest = evaluated[-1]
    rows = [
        f"| {name} | {value:.6g} |"  # counts, losses and percentages
        for name, value in newest.items()
        if name.startswith(("eval_", writer.PROBE)) and value is not None
    ]
    head = f"| at step {newest['step']:,}; losses in nats, probes in % | |"
    return "\n".join([head, "|---|---|", *rows])


def _data(corpus: Corpus, config: ExperimentConfig) -> str:
    """Returns a table of the corpus's sources, sizes, tokenizer and digest."""
    counts = {
        split: (sum(s.num_documents for s in shards), sum(s.num_tokens for s in shards))
        for split, shards in corpus.shards.items()
    }
    kind = config.tokenizer.kind
    case = "lower-cased" if config.tokenizer.lowercase else "cased"
    rows = [
        ("sources", ", ".join(f"`{source}`" for source in config.data.sources)),
        ("training set", "{:,} documents, {:,} tokens".format(*counts["train"])),
        ("held-out set", "{:,} documents, {:,} tokens".format(*counts["validation"])),
        ("tokenizer", f"{kind}, {len(corpus.tokenizer.vocab):,} tokens, {case}"),
        ("sha256 in manifest.json", f"`{corpus.sha256}`"),
    ]
    cells = (f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows)
    return "\n".join(["| | |", "|---|---|", *cells])
