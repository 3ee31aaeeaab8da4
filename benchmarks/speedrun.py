"""Times training from scratch to a held-out loss, for docs/performance.md.

    python -m benchmarks.speedrun --config=FILE [--config.KEY=VALUE ...]
        --change=TEXT [--track=cpu] [--seeds=0,1,2] [--workdir=runs/speedrun]
        [--logs=benchmarks/results/speedrun]

Runs `prepare`, and for each seed `train` until a held-out evaluation reaches the target
of the track. `evaluate` verifies the checkpoint of that step. Prints a row with the
median seconds, and writes a log with the config and every evaluation. The same
command resumes after the seeds that are complete.
"""

import dataclasses
import datetime
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
from absl import flags

from benchmarks import rows, speedrun_tracks
from benchmarks.speedrun_tracks import Track
from bert_jax import cli
from bert_jax.config import ExperimentConfig, from_config_dict
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.errors import ConfigError
from bert_jax.monitoring import writer
from bert_jax.phases import phase_of
from bert_jax.training import evaluation

LOGS = Path(__file__).parent / "results/speedrun"
POLL_SECS = 0.2
# The parts of a run's time that count. Start-up, compilation, evaluations and saves do
# not: they measure the machine's disk and caches rather than the recipe.
COUNTED = ("seconds_steps", "seconds_data")


def main() -> None:
    (change,) = cli.require("change")
    config = from_config_dict(cli.load_values(_CONFIG))
    track = speedrun_tracks.TRACKS[_TRACK.value]
    speedrun_tracks.check_rules(config, track)
    workdir = Path(cli.local_directory("workdir", _WORKDIR.value))
    arguments = shlex.split(cli.config_arguments())
    corpus_dir = workdir / "corpus"
    shared = [*arguments, f"--config.data.corpus_dir={corpus_dir}"]
    run_command("prepare", *shared)
    data = dataclasses.replace(config.data, corpus_dir=str(corpus_dir))
    corpus = corpus_lib.read(dataclasses.replace(config, data=data))
    target = evaluation.unigram_entropy(corpus) - track.nats
    results = []
    for seed in map(int, _SEEDS.value):
        run = Run(config, track, target, workdir / f"seed{seed}")
        results.append(run.result([*shared, f"--config.seed={seed}"], corpus.sha256))
    name = log_name(_TRACK.value, cli.config_name(_CONFIG), change)
    write_log(Path(_LOGS.value) / name, change, config, results)
    last = results[-1]
    rows.print_row(
        "speedrun",
        change,
        "s",
        [result["seconds"] for result in results],
        track=_TRACK.value,
        target=round(target, 3),
        unigram_entropy=round(last["unigram_entropy"], 3),
        steps=statistics.median(result["step"] for result in results),
        masked_lm_loss=round(max(r["masked_lm_loss"] for r in results), 3),
        seeds=[int(seed) for seed in _SEEDS.value],
        corpus=corpus.sha256[:12],
        date=str(datetime.date.today()),
        log=name,
        device=jax.devices()[0].device_kind,
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that ends at the target."""

    config: ExperimentConfig  # of the entry
    track: Track
    target: float  # the held-out masked-LM loss to reach
    workdir: Path

    def result(self, arguments: list[str], corpus: str) -> dict[str, Any]:
        """Trains to the target, if needed, and returns what `evaluate` found."""
        file = self.workdir.with_suffix(".json")
        entry = dataclasses.asdict(self.config), dataclasses.asdict(self.track)
        of = json.dumps([*entry, arguments, corpus])
        if file.is_file() and (done := json.loads(file.read_text()))["of"] == of:
            return done
        shutil.rmtree(self.workdir, ignore_errors=True)
        line = self.train(arguments)
        step = line["step"]
        found = json.loads(
            run_command("evaluate", f"--workdir={self.workdir}", f"--step={step}")
        )
        logged = line["eval_masked_lm_loss"]
        assert found["masked_lm_loss"] <= self.target, f"{found}, but logged {logged}"
        found |= {
            "of": of,
            "seconds": counted_seconds(line),
            "lines": [x for x in self.evaluations() if x["step"] <= step],
        }
        file.write_text(json.dumps(found))
        return found

    def train(self, arguments: list[str]) -> dict[str, Any]:
        """Runs `train` to the first evaluation at the target, and returns its line."""
        command = [
            *(sys.executable, "-m", "bert_jax.train", *arguments),
            f"--workdir={self.workdir}",
            f"--config.eval.every_steps={self.track.every_steps}",
            f"--config.checkpoint.every_steps={self.track.every_steps}",
            "--config.checkpoint.keep=3",  # that of the target and two later ones
        ]
        process = subprocess.Popen(command, stdout=sys.stderr)
        try:
            while True:
                has_ended = process.poll() is not None  # before its lines are read
                for line in self.evaluations():
                    if self.counts(line) and line["eval_masked_lm_loss"] <= self.target:
                        return line
                if has_ended:
                    break
                time.sleep(POLL_SECS)
        finally:
            process.terminate()  # it saves a checkpoint
            process.wait()
        if process.returncode:
            sys.exit(f"{shlex.join(command)} failed, see its messages above")
        losses = [x["eval_masked_lm_loss"] for x in self.evaluations()]
        raise ConfigError(
            f"the run in {self.workdir} ended at a held-out loss of {losses[-1]:.3f},"
            f" above the target {self.target:.3f}; train longer, or change the recipe"
        )

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the lines of finite held-out losses that the run has written."""
        lines = writer.read(str(self.workdir))
        return [x for x in lines if x.get(writer.HELD_OUT_LOSS) is not None]

    def counts(self, line: dict[str, Any]) -> bool:
        """Returns whether the rows of an evaluation have the length of the track."""
        phase, _ = phase_of(self.config, line["step"] - 1)
        return self.config.phases[phase].sequence_length == self.track.length


def run_command(name: str, *arguments: str) -> str:
    """Runs a command of bert_jax and returns what it printed."""
    command = [sys.executable, "-m", f"bert_jax.{name}", *arguments]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"{name} {shlex.join(arguments)} failed, see its messages above")
    return result.stdout


def counted_seconds(line: dict[str, Any]) -> float:
    return sum(line[part] for part in COUNTED)


def log_name(track: str, config_name: str, change: str) -> str:
    """Returns the file name of an entry's log, which differs between changes."""
    words = re.sub(r"[^a-z0-9]+", "-", change.lower()).strip("-")[:80]
    return f"{datetime.date.today()}_{track}_{config_name}_{words}.log"


def write_log(
    path: Path, change: str, config: ExperimentConfig, results: list[dict[str, Any]]
) -> None:
    """Writes the config, the results and every evaluation."""
    text = [change, json.dumps(dataclasses.asdict(config))]
    for result in results:
        kept = {k: v for k, v in result.items() if k not in ("lines", "of")}
        text.append(json.dumps(kept))
        text += [
            f"step {line['step']:6,}  {counted_seconds(line):8.2f} s"
            f"  masked LM {line['eval_masked_lm_loss']:.4f}"
            f"  next sentence {line['eval_next_sentence_accuracy']:.4f}"
            for line in result["lines"]
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    flags.DEFINE_string("change", None, "what the entry changes, in a few words")
    _TRACK = flags.DEFINE_enum(
        "track", "cpu", list(speedrun_tracks.TRACKS), "the track"
    )
    _SEEDS = flags.DEFINE_list("seeds", "0,1,2", "seeds of the runs")
    _WORKDIR = flags.DEFINE_string("workdir", "runs/speedrun", "directory of the runs")
    _LOGS = flags.DEFINE_string("logs", str(LOGS), "directory of the log file")
    cli.run(main, __doc__)
