"""Reports the progress of a run, and plots and summarizes its results."""

import contextlib
import os
import shlex
import time
from typing import Any

import rich.progress

from bert_jax import storage
from bert_jax.monitoring import goodput
from bert_jax.monitoring.progress import has_terminal
from bert_jax.monitoring.writer import MAJORITY, PROBE

CURVES_FILE = "loss_curves.png"
# The longest time without a line in a log file while steps complete.
QUIET_SECS = 30.0
# The masked-LM loss of a useful model is this many nats below the unigram entropy. Tiny
# models 0.6 below it fine-tuned to worse results than random weights: CoNLL-2003 0.491
# against 0.551, ChnSentiCorp 0.506 against 0.848.
USEFUL_NATS = 1.0


class StepProgress:
    """Prints metrics as lines, on a terminal above a progress bar."""

    def __init__(self, first_step: int, num_steps: int):
        self._num_steps = num_steps
        self._width = len(_place(num_steps, num_steps))
        self._timed_from: tuple[int, float] | None = None  # step, seconds
        self._done = first_step
        self._printed_at = time.monotonic()
        self._bar = None
        if has_terminal():
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("step"),
                rich.progress.MofNCompleteColumn(),
                rich.progress.BarColumn(),
                rich.progress.TimeRemainingColumn(),
                rich.progress.TextColumn("left"),
            )
            self._task = self._bar.add_task(
                "step", total=num_steps, completed=first_step
            )
            self._bar.start()

    def set_num_steps(self, num_steps: int) -> None:
        """Changes the number of steps of the whole run."""
        self._num_steps = num_steps
        if self._bar is not None:
            self._bar.update(self._task, total=num_steps)

    def advance(self, step: int) -> None:
        """Records that `step` is complete.

        The time left is estimated from the first completed step, because the time
        before it includes compilation.
        """
        if self._timed_from is None:
            self._timed_from = step, time.monotonic()
            self._printed_at = time.monotonic()
        self._done = step
        self.tick("")

    def tick(self, text: str) -> None:
        """Prints the step and a text if the log file had no line for QUIET_SECS."""
        now = time.monotonic()
        if self._bar is None and now - self._printed_at >= QUIET_SECS:
            self.print(f"{_place(self._done, self._num_steps)}{text}{self._left()}")

    def update(self, step: int, text: str) -> None:
        """Prints a log line; `text` is its formatted metrics."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
            self.print(f"step {step:,}  {text}")
        else:
            place = _place(step, self._num_steps)
            self.print(f"{place:<{self._width}}  {text}{self._left()}")

    def _left(self) -> str:
        if self._timed_from is None or self._done == self._timed_from[0]:
            return ""
        step, when = self._timed_from
        secs_per_step = (time.monotonic() - when) / (self._done - step)
        return (
            f"  {format_duration(secs_per_step * (self._num_steps - self._done))} left"
        )

    def print(self, text: str) -> None:
        """Prints a line above the bar.

        A terminal that has been closed is ignored, so that the run continues.
        """
        self._printed_at = time.monotonic()
        try:
            if self._bar is not None:
                self._bar.console.print(text, highlight=False, markup=False)
            else:
                print(text, flush=True)
        except BrokenPipeError:  # the reader of the pipe stopped on purpose
            raise
        except OSError:
            pass

    def close(self) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()


def _place(step: int, num_steps: int) -> str:
    return f"step {step:,}/{num_steps:,}"


def format_duration(seconds: float) -> str:
    """Formats seconds as 45 s, 3 min 20 s or 2 h 05 min."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {secs:02d} s" if minutes else f"{secs} s"


def format_steps(metrics: dict[str, float]) -> str:
    """Formats the metrics of a log line, in columns of constant width."""
    next_sentence = rates = ""
    if "next_sentence_accuracy" in metrics:
        next_sentence = f"  nsp acc {metrics['next_sentence_accuracy']:.3f}"
    if "sequences_per_sec" in metrics:
        rates = (
            f"  {metrics['sequences_per_sec']:6,.0f} seq/s"
            f"  {metrics['tokens_per_sec']:9,.0f} tok/s"
            f"  mfu {metrics['mfu']:5.1%}"
        )
    return (
        f"loss {metrics['loss']:<6.3f}"
        f"  mlm acc {metrics['masked_lm_accuracy']:.3f}{next_sentence}"
        f"  padding {1 - metrics['padding_efficiency']:5.1%}{rates}"
    )


def format_held_out(line: dict[str, float]) -> str:
    """Formats the metrics of a held-out evaluation."""
    text = (
        f"masked LM loss {line['eval_masked_lm_loss']:.3f}"
        f" accuracy {line['eval_masked_lm_accuracy']:.3f}"
    )
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

    Args:
      unigram_entropy: entropy of the held-out tokens in nats; None without held-out
        text.
    """
    from matplotlib.figure import Figure  # takes a second to import

    train = [line for line in lines if "loss" in line]
    held_out = [line for line in lines if "eval_masked_lm_loss" in line]
    probes = probes_in(lines)
    num_plots = 3 if probes else 2
    figure = Figure(figsize=(5.5 * num_plots, 4.2), layout="constrained")
    left, right, *others = plots = figure.subplots(1, num_plots)

    def draw(axes: Any, name: str, label: str, colour: str) -> None:
        axes.plot(
            [line["step"] for line in train],
            [line[name] for line in train],
            color=colour,
            alpha=0.45,
            linewidth=1,
            label=f"{label}, training",
        )
        if held_out:
            axes.plot(
                [line["step"] for line in held_out],
                [line[f"eval_{name}"] for line in held_out],
                color=colour,
                marker="o",
                linewidth=2,
                label=f"{label}, held out",
            )

    draw(left, "masked_lm_loss", "masked LM", "tab:blue")
    has_pairs = any("next_sentence_loss" in line for line in train)
    if has_pairs:
        draw(left, "next_sentence_loss", "next sentence", "tab:orange")
    if unigram_entropy is not None:
        left.axhline(
            unigram_entropy,
            color="grey",
            linestyle=":",
            label="guessing tokens by frequency",
        )
    left.set(xlabel="step", ylabel="loss (nats)", ylim=(0, None), title="Losses")
    draw(right, "masked_lm_accuracy", "masked LM", "tab:blue")
    if has_pairs:
        draw(right, "next_sentence_accuracy", "next sentence", "tab:orange")
    if guesses := [line for line in held_out if MAJORITY in line]:
        right.plot(
            [line["step"] for line in guesses],
            [line[MAJORITY] for line in guesses],
            color="grey",
            linestyle=":",
            drawstyle="steps-pre",  # it changes where a phase begins
            marker="_",  # a single evaluation has no line
            label="next sentence, more frequent label",
        )
    right.set(xlabel="step", ylabel="accuracy", ylim=(0, 1), title="Accuracies")
    if probes:
        _draw_probes(others[0], probes, lines)
    for axes in plots:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path = os.path.join(workdir, CURVES_FILE)
    storage.write_with(path, lambda tmp: figure.savefig(tmp, dpi=120, format="png"))
    return path


def _draw_probes(axes: Any, names: list[str], lines: list[dict[str, Any]]) -> None:
    for name in names:
        # The value of a step is null if it was not finite.
        found = [line for line in lines if line.get(name) is not None]
        axes.plot(
            [line["step"] for line in found],
            [line[name] for line in found],
            marker="o",
            linewidth=2,
            label=name.removeprefix(PROBE),
        )
    lowest = min(axes.get_ylim()[0], 0)  # a correlation may be negative
    axes.set(xlabel="step", ylabel="percent", ylim=(lowest, 100), title="Probes")


def _warnings(loss: float, unigram_entropy: float) -> list[str]:
    """Returns a warning if random weights would fine-tune as well as the model."""
    if loss <= unigram_entropy - USEFUL_NATS:
        return []
    learned = "has learned little more than word frequencies"
    if loss > unigram_entropy + 0.1:
        learned = "has not even learned word frequencies"
    return [
        f"WARNING: the model {learned} and is no better a start for fine-tuning than"
        f" random weights (the loss must be {USEFUL_NATS:g} nat below the unigram"
        " entropy): train longer (config.phases[i].num_steps), on more text, or with"
        " the recipe of configs/tiny.py or configs/laptop.py."
    ]


def summary(
    workdir: str,
    num_steps: int,
    seconds: float,
    lines: list[dict[str, Any]],
    unigram_entropy: float | None,
    num_processes: int,
) -> str:
    """Returns the results of a run, and the commands to run next.

    Args:
      unigram_entropy: entropy of the held-out tokens in nats; None without held-out
        text.
    """
    held_out = [line for line in lines if "eval_masked_lm_loss" in line]
    sentences = [
        f"Trained to step {num_steps:,} ({format_duration(seconds)} in this call)."
    ]
    sentences += [text for text in [goodput.summary(lines)] if text]
    if held_out and unigram_entropy is not None:
        last = held_out[-1]
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
        sentences += _warnings(loss, unigram_entropy)
    run, model = (shlex.quote(f"--{x}={workdir}") for x in ("workdir", "model"))
    output = shlex.quote(f"--output={workdir}-export")
    one, all_ = "", ""
    if num_processes > 1:
        one, all_ = " (on one host)", " (on all hosts, like train)"
    return "\n".join(
        [
            " ".join(sentences),
            f"Curves: {workdir}/{CURVES_FILE}",
            f"Next: evaluate the model again{one}, export it for Hugging Face"
            f" transformers{one}, or fine-tune it on train.csv and dev.csv, with the"
            f" columns text and label{all_}:",
            f"  python -m bert_jax.evaluate {run}",
            f"  python -m bert_jax.export {run} {output}",
            f"  python -m bert_jax.finetune --config=configs/finetune/own.py {model}",
        ]
    )
