"""Formats, plots and summarizes the metrics of a run."""

import math
import os
import shlex
from typing import Any

from bert_jax import storage
from bert_jax.monitoring import goodput
from bert_jax.monitoring.progress import format_duration
from bert_jax.monitoring.writer import MAJORITY, PROBE

CURVES_FILE = "loss_curves.png"
# A model whose masked-LM loss is less than this many nats below the unigram entropy is
# not useful. Tiny models 0.6 below it fine-tuned to worse results than random weights:
# CoNLL-2003 0.491 against 0.551, ChnSentiCorp 0.506 against 0.848. A larger difference
# does not show that a model is useful, see docs/evidence.md.
USEFUL_NATS = 1.0
# The share of the less frequent label's pairs that a model gets right, beyond always
# giving the other one, if it has learned pairs. The model of configs/tiny.py reached
# 0.09 on novels, and 0.52 on documentation (mean of three seeds).
LEARNED_PAIRS = 0.2


def format_steps(metrics: dict[str, float]) -> str:
    """Formats the metrics of a log line, in columns of constant width."""
    next_sentence = rates = ""
    if "next_sentence_accuracy" in metrics:
        next_sentence = f"  nsp acc {metrics['next_sentence_accuracy']:.3f}"
    if "sequences_per_sec" in metrics:
        rates = (
            f"  {metrics['sequences_per_sec']:6,.0f} seq/s"
            f"  {metrics['tokens_per_sec']:9,.0f} tok/s"
        )
    if "mfu" in metrics:
        rates += f"  mfu {metrics['mfu']:5.1%}"
    return (
        f"loss {metrics['loss']:<6.3f}"
        f"  mlm acc {metrics['masked_lm_accuracy']:.3f}{next_sentence}"
        f"  padding {1 - metrics['padding_efficiency']:5.1%}{rates}"
    )


def format_held_out(line: dict[str, float]) -> str:
    """Formats the metrics of a held-out evaluation."""
    text = f"masked LM loss {line['eval_masked_lm_loss']:.3f}"
    text += f" accuracy {line['eval_masked_lm_accuracy']:.3f}"
    if "eval_next_sentence_loss" in line:
        text += (
            f", next sentence loss {line['eval_next_sentence_loss']:.3f}"
            f" accuracy {line['eval_next_sentence_accuracy']:.3f}"
        )
    if MAJORITY in line:
        text += f" ({line[MAJORITY]:.3f} for the more frequent label)"
    for name in probes_in([line]):
        text += f", {name.removeprefix(PROBE)} {line[name]:.1f}%"
    return text


def probes_in(lines: list[dict[str, Any]]) -> list[str]:
    """Returns the sorted keys of the probes in lines of metrics."""
    return sorted({name for line in lines for name in line if name.startswith(PROBE)})


def plot_curves(
    workdir: str, lines: list[dict[str, Any]], unigram_entropy: float | None
) -> str:
    """Plots losses, accuracies and probes, and returns the path of the image.

    The entropy of the held-out tokens is in nats, None without held-out text.
    """
    from matplotlib.figure import Figure  # takes a second to import

    train = [line for line in lines if "loss" in line]
    probes = probes_in(lines)
    num_plots = 3 if probes else 2
    figure = Figure(figsize=(5.5 * num_plots, 4.2), layout="constrained")
    left, right, *others = plots = figure.subplots(1, num_plots)

    def draw(axes: Any, name: str, label: str, color: str) -> None:
        style = {"color": color, "alpha": 0.45, "linewidth": 1}
        _plot(axes, train, name, label=f"{label}, training", **style)
        style = {"color": color, "marker": "o", "linewidth": 2}
        _plot(axes, lines, f"eval_{name}", label=f"{label}, held out", **style)

    for axes, kind in ((left, "loss"), (right, "accuracy")):
        draw(axes, f"masked_lm_{kind}", "masked LM", "tab:blue")
        draw(axes, f"next_sentence_{kind}", "next sentence", "tab:orange")
    grey: dict[str, Any] = {"color": "grey", "linestyle": ":"}
    if unigram_entropy is not None:
        left.axhline(unigram_entropy, label="guessing tokens by frequency", **grey)
    left.set(xlabel="step", ylabel="loss (nats)", ylim=(0, None), title="Losses")
    _plot(
        right,
        lines,
        MAJORITY,
        drawstyle="steps-pre",  # it changes where a phase begins
        marker="_",  # a single evaluation has no line
        label="next sentence, more frequent label",
        **grey,
    )
    right.set(xlabel="step", ylabel="accuracy", ylim=(0, 1), title="Accuracies")
    for axes in others:
        for name in probes:
            label = name.removeprefix(PROBE)
            _plot(axes, lines, name, marker="o", linewidth=2, label=label)
        lowest = min(axes.get_ylim()[0], 0)  # a correlation may be negative
        axes.set(xlabel="step", ylabel="percent", ylim=(lowest, 100), title="Probes")
    for axes in plots:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path = os.path.join(workdir, CURVES_FILE)
    storage.write_with(path, lambda tmp: figure.savefig(tmp, dpi=120, format="png"))
    return path


def _plot(axes: Any, lines: list[dict[str, Any]], name: str, **style: Any) -> None:
    # The value of a step is null if it was not finite.
    shown = [line for line in lines if line.get(name) is not None]
    if shown:
        axes.plot([x["step"] for x in shown], [x[name] for x in shown], **style)


def _verdicts(last: dict[str, Any], unigram_entropy: float) -> list[str]:
    """Returns what a held-out line shows about the model, and what it does not."""
    loss = last["eval_masked_lm_loss"]
    sentences = [
        "Whether it helps a task, only fine-tuning shows: compare with --from_scratch."
    ]
    if loss > unigram_entropy - USEFUL_NATS:
        learned = "has learned little more than word frequencies"
        if loss > unigram_entropy + 0.1:
            learned = "has not even learned word frequencies"
        sentences = [
            f"WARNING: the model {learned} and is no better a start for fine-tuning"
            f" than random weights (the loss must be {USEFUL_NATS:g} nat below the"
            " unigram entropy): train longer (config.phases[i].num_steps, in a new"
            " --workdir), on more text, or as configs/tiny.py or configs/laptop.py."
        ]
    guessed = last.get(MAJORITY, 1.0)
    least = guessed + LEARNED_PAIRS * (1.0 - guessed)
    if guessed < 1.0 and last["eval_next_sentence_accuracy"] < least:
        sentences.append(
            "WARNING: the model has not learned next-sentence prediction: train longer"
            " in a new --workdir, or without it (config.data.next_sentence=False)."
        )
    return sentences


def summarize(
    workdir: str,
    num_steps: int,
    seconds: float,
    lines: list[dict[str, Any]],
    unigram_entropy: float | None,
    num_processes: int,
) -> str:
    """Returns the results of a run, and the commands to run next."""
    held_out = [line for line in lines if "eval_masked_lm_loss" in line]
    sentences = [
        f"Trained to step {num_steps:,} ({format_duration(seconds)} in this call)."
    ]
    sentences += [text for text in [goodput.summary(lines)] if text]
    verdicts: list[str] = []
    if held_out and unigram_entropy is not None:
        # A loss is null if it was not finite.
        last = {k: math.inf if v is None else v for k, v in held_out[-1].items()}
        loss, accuracy = last["eval_masked_lm_loss"], last["eval_masked_lm_accuracy"]
        pairs = ""
        if MAJORITY in last:
            pairs = (
                "; its next-sentence accuracy is"
                f" {last['eval_next_sentence_accuracy']:.0%}, against"
                f" {last[MAJORITY]:.0%} for the more frequent label"
            )
        sentences.append(
            f"On held-out text, the model's masked-LM loss is {loss:.2f} nats, against"
            f" {unigram_entropy:.2f} for guessing by word frequency, and it predicts"
            f" {accuracy:.0%} of the masked tokens correctly{pairs}."
        )
        verdicts = _verdicts(last, unigram_entropy)
    run, model = (shlex.quote(f"--{x}={workdir}") for x in ("workdir", "model"))
    output = shlex.quote(f"--output={workdir}-export")
    one, all_ = "", ""
    if num_processes > 1:
        one, all_ = " (on one host)", " (on all hosts, like train)"
    evaluate = f"evaluate the model again{one}, " if held_out else ""
    return "\n".join(
        [
            " ".join(sentences),
            *verdicts,
            f"Curves: {workdir}/{CURVES_FILE}",
            f"Next: {evaluate}export it for Hugging Face transformers{one}, or"
            " fine-tune it on train.csv and dev.csv, with the columns text and"
            f" label{all_}:",
            *([f"  python -m bert_jax.evaluate {run}"] if held_out else []),
            f"  python -m bert_jax.export {run} {output}",
            f"  python -m bert_jax.finetune --config=configs/finetune/own.py {model}",
        ]
    )
