"""Tests of bert_jax.finetune: from a model and a table to a fine-tuned model."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest

from bert_jax import finetune, inference
from bert_jax.errors import ConfigError
from bert_jax.finetuning import config as tasks_config
from bert_jax.finetuning import results, sweep
from bert_jax.finetuning import run as tuning
from bert_jax.finetuning import setup as setup_lib
from bert_jax.loading import model as model_lib
from bert_jax.monitoring import writer
from tests.commands import error_of, run_well
from tests.conftest import make_config
from tests.finetuning import labelled, tuned
from tests.finetuning.test_config import config_dict
from tests.launch.test_local import run_processes
from tests.models import TOKENIZER, change_json, export_to, keep_one_segment

STUDENT = "--config.num_layers=1"
SWEEP = ("--sweep", "--seeds=0", "--config.recipe.learning_rates=(3e-3, 1e-3)")


def command(directory, *rest, **more):
    values = labelled.changes_of("classification", directory) | more
    return [
        "--config=configs/finetune/glue.py:sst2",
        f"--model={directory / 'source'}",
        f"--workdir={directory / 'run'}",
        *(f"--config.{key}={value}" for key, value in values.items()),
        *rest,
    ]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of two learning rates: its directory and its output."""
    directory = tmp_path_factory.mktemp("swept")
    (directory / "source").mkdir()
    export_to(directory / "source")
    return directory, run_well("bert_jax.finetune", *command(directory, *SWEEP))


def test_a_sweep_reports_each_run_and_keeps_the_best(swept):
    directory, stdout = swept
    assert "learning rate 0.003" in stdout and "learning rate 0.001" in stdout
    assert "Best by accuracy" in stdout
    summary = json.loads((directory / "run" / "results.json").read_text())
    assert len(summary["runs"]) == 2
    best = max(r["metrics"]["accuracy"] for r in summary["runs"])
    (dev,) = summary["dev"].values()
    assert dev["accuracy"] == best >= 0.8
    names = {p.name for p in (directory / "run").iterdir()}
    assert {"dev_curves.png", "confusion.png", "model", "predictions"} <= names
    lines = (directory / "run/predictions/dev/predictions.jsonl").read_text()
    assert lines.count("\n") == 30


@pytest.mark.slow
def test_two_processes_compute_the_results_of_one(swept, tmp_path):
    directory, _ = swept
    rest = [f"--workdir={tmp_path / 'run'}", "--config.recipe.learning_rate=3e-3"]
    stdout = run_processes(2, "--command=finetune", *command(directory, *rest))
    assert stdout.count("Best by accuracy") == 1
    (found,) = results.read_all(str(tmp_path / "run"))
    one = results.read(str(directory / "run" / "runs" / "lr0.003_seed0"))
    assert one is not None and found.metrics == one.metrics

    def losses(path):
        return [line["loss"] for line in writer.read(str(path)) if "loss" in line]

    expected = losses(directory / "run" / "runs" / "lr0.003_seed0")
    np.testing.assert_allclose(
        losses(tmp_path / "run/runs/lr0.003_seed0"), expected, rtol=1e-5
    )
    found, expected = (tuned.read(x / "run" / "model") for x in (tmp_path, directory))
    assert found.head == expected.head


@pytest.mark.slow
def test_no_model_is_written_if_all_runs_diverge(source, tmp_path):
    directory = source[0].parent
    more = {"recipe.clip_norm": 1e30, "recipe.learning_rate": 1e38, "max_bad_steps": 2}
    arguments = command(directory, f"--workdir={tmp_path / 'run'}", **more)
    error = error_of("bert_jax.finetune", *arguments, code=77)
    assert "every run diverged before its first evaluation" in error
    assert not (tmp_path / "run" / "model").exists()


def test_the_written_model_has_the_reported_metrics(swept):
    """The model is read from its directory alone."""
    directory, _ = swept
    read = tuned.read(directory / "run" / "model")
    assert read.head is not None and read.head.labels == ("against", "for")
    assert read.config.hidden_dropout_prob == 0  # as in pretraining
    model = model_lib.place(read)
    summary = json.loads((directory / "run" / "results.json").read_text())
    setup = labelled.make_setup(directory)
    found = setup.evaluate(model.params, setup.datasets.dev[0])
    (dev,) = summary["dev"].values()
    assert found == dev


def assert_refused(directory, changes, message):
    """Asserts that opening the inputs of a synthetic task raises ConfigError."""
    values = config_dict("sst2")
    of_kind = labelled.changes_of("classification", directory)
    values.update_from_flattened_dict(of_kind | changes)
    with pytest.raises(ConfigError, match=re.escape(message)):
        config = tasks_config.from_config_dict(values)
        start = setup_lib.Start(str(directory / "source"), False, None, changes)
        setup_lib.open_inputs(config, start)


# Kind -> a value of its metric that a model exceeds only if it has learned the task.
LEARNED = {
    "regression": 0.5,
    "multi_label": 0.85,
    "tagging": 0.8,
    "question_answering": 80.0,
    "multiple_choice": 0.6,
    "similarity": 0.5,
}


def inputs_of(kind, examples):
    """Returns the examples of a set as inputs of `TunedModel.predict`."""
    if kind == "tagging":
        return [" ".join(words) for words in examples.words]
    if kind == "question_answering":
        paragraphs = examples.paragraphs
        return [(q.text, paragraphs[q.paragraph]) for q in examples.questions]
    if kind == "multiple_choice":
        pairs = zip(examples.contexts, examples.choices, strict=True)
        return [(context, *choices) for context, choices in pairs]
    if examples.b is None:
        return examples.a
    return list(zip(examples.a, examples.b, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNED)
def test_every_kind_is_fine_tuned_and_predicts(kind, tmp_path, capsys):
    """The written model, read back, has the metric and the predictions of the run."""
    more = {"task__threshold": 0.45} if kind == "multi_label" else {}
    setup = labelled.make_setup(tmp_path, kind=kind, **more)
    rate = setup.config.recipe.learning_rate
    workdir = str(tmp_path / "run")
    directory = results.directory_of(workdir, rate, 0)
    result = tuning.tune(setup, rate, 0, directory)
    sweep.write(setup, workdir, [result], 1.0)
    assert result.metrics[setup.config.metric] > LEARNED[kind], result
    assert f"Best by {setup.config.metric}" in capsys.readouterr().out
    read = tuned.read(tmp_path / "run" / "model")
    assert read.head == setup.head
    (dev,) = setup.datasets.dev
    params = model_lib.place(read).params
    assert setup.evaluate(params, dev) == result.metrics
    assert list((tmp_path / "run" / "predictions" / "dev").iterdir())
    task, names = setup.config.task, setup.datasets.names
    logits = setup.predictor(params, dev.features)
    predicted = task.predict(dev.examples, dev.features, logits, names)
    expected = task.results(dev.examples, predicted, logits, names)
    # Rows, windows and thresholds are those of the task, none a default.
    model = inference.load_tuned(tmp_path / "run" / "model")
    found = model.predict(inputs_of(kind, dev.examples))
    for row, other in zip(found, expected, strict=True):
        for key in row.keys() & {"score", "similarity"}:
            assert row[key] == pytest.approx(other[key], abs=1e-4)
        for key in row.keys() & {"label", "labels", "choice", "tags", "answer"}:
            assert row[key] == other[key]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [("sentence1", "sentence2"), ("sentence1",)])
def test_embeddings_are_learned_without_scores(columns, tmp_path):
    """From pairs of texts about the same, and from the texts alone."""
    setup = labelled.make_setup(
        tmp_path,
        kind="similarity",
        is_from_scratch=True,
        data__train=labelled.write_positives(tmp_path / "positives.tsv", 192, 2),
        task__positives=columns,
        recipe__global_batch_size=16,
    )
    _, params = setup.build(jax.random.key(0))
    untrained = setup.evaluate(params, setup.datasets.dev[0])
    rate = setup.config.recipe.learning_rate
    result = tuning.tune(setup, rate, 0, str(tmp_path / "run"))
    assert result.metrics["spearman"] > untrained["spearman"] + 0.1, result


@pytest.mark.slow
def test_a_student_with_fewer_layers_learns_from_the_fine_tuned_model(swept, tmp_path):
    directory, _ = swept
    teacher = str(directory / "run" / "model")
    arguments = [x.replace("glue.py:sst2", "distill.py") for x in command(directory)]
    arguments += [f"--model={teacher}", f"--workdir={tmp_path / 'run'}", STUDENT]
    taught = f"--config.distill.teacher={teacher}"
    stdout = run_well("bert_jax.finetune", *arguments, taught)
    assert "1 layer of 32" in stdout and f"teacher: {teacher}, 2 layers" in stdout
    student = tuned.read(tmp_path / "run" / "model")
    assert student.config.num_hidden_layers == 1
    summary = json.loads((tmp_path / "run" / "results.json").read_text())
    (dev,) = summary["dev"].values()
    assert dev["accuracy"] >= 0.8
    # The run resumes with a teacher that was moved, but not with a different one.
    moved = shutil.copytree(teacher, tmp_path / "moved")
    again = [*arguments, f"--config.distill.teacher={moved}"]
    assert "Best by accuracy" in run_well("bert_jax.finetune", *again)
    (moved / "SHA256SUMS").unlink()
    change_json(moved, "config.json", layer_norm_eps=1e-6)
    error = error_of("bert_jax.finetune", *again)
    assert "the model in config.distill.teacher has changed since" in error


@pytest.mark.parametrize(
    "more, message",
    [
        ({"distill.teacher": "/nowhere"}, "config.distill.teacher=/nowhere does not"),
        ({"distill.logits_weight": 0.0}, "has no effect: set"),
        ({"distill.teacher": ""}, "must name a fine-tuned model"),
        ({"task.labels": ("for", "against")}, "labels against, for, but the task"),
        ({"num_layers": 3}, "config.num_layers=3, but the model has 2"),
    ],
)
def test_invalid_distillation_is_an_error(more, message, swept):
    directory, _ = swept
    teaching = {
        "distill.teacher": str(directory / "run" / "model"),
        "distill.logits_weight": 0.5,
    }
    assert_refused(directory, teaching | more, message)


def check_student(teacher, **changes):
    """Checks a teacher for a student of its sizes, except for `changes`."""
    values = config_dict("distill")
    values.distill.teacher = "TEACHER"
    sizes = {"hidden_size": changes.pop("hidden_size", teacher.config.hidden_size)}
    encoder = dataclasses.replace(
        teacher, config=dataclasses.replace(teacher.config, **sizes), **changes
    )
    config = tasks_config.from_config_dict(values)
    setup_lib.check_teacher(teacher, encoder, config, ("against", "for"))


def test_a_teacher_must_fit_its_student_and_the_task(swept, tmp_path):
    teacher = tuned.read(swept[0] / "run" / "model")
    check_student(teacher)
    upper = dataclasses.replace(TOKENIZER, lowercase=not TOKENIZER.lowercase)
    tuned.write(tmp_path, "regression")
    for other, changes, message in (
        (teacher, {"tokenizer": upper}, "another tokenizer than --model"),
        (teacher, {"hidden_size": 64}, "hidden_size=32, but --model has 64; set"),
        (tuned.read(tmp_path), {}, "fine-tuned for regression, but config.task"),
    ):
        with pytest.raises(ConfigError, match=f"teacher=TEACHER .*{message}"):
            check_student(other, **changes)


@pytest.mark.parametrize(
    ("name", "most", "given", "expected"),
    [
        ("sst2", 512, (), 128),
        ("sst2", 64, (), 64),
        ("sst2", 64, ("metric", "recipe.num_epochs"), 64),
        ("sst2", 64, ("sequence_length",), "config.sequence_length=128, but --model=m"),
        ("squad1", 100, (), 100),
        ("squad1", 64, (), "rows of 64 tokens; lower it, for example to 21"),
    ],
)
def test_rows_are_as_long_as_the_model_unless_a_flag_sets_them(
    name, most, given, expected
):
    config = tasks_config.from_config_dict(config_dict(name))
    if isinstance(expected, int):
        fitting = setup_lib.fit_length(config, given, "--model=m", most)
        assert fitting == dataclasses.replace(config, sequence_length=expected)
        return
    with pytest.raises(ConfigError, match=re.escape(expected)):
        setup_lib.fit_length(config, given, "--model=m", most)


@pytest.mark.parametrize(
    ("name", "pretrained", "given", "expected"),
    [
        ("sst2", (0.0, 0.0), (), (0.0, 0.0)),
        ("sst2", (0.2, 0.0), (), (0.1, 0.0)),
        ("sst2", (0.0, 0.0), ("dropout.hidden_prob",), (0.1, 0.0)),
        ("similarity", (0.0, 0.0), (), (0.1, 0.1)),
    ],
)
def test_a_model_pretrained_without_dropout_is_tuned_without_it(
    name, pretrained, given, expected
):
    values = config_dict(name)
    if name == "similarity":
        values.task.positives = ("text",)  # SimCSE, which learns from dropout
    config = tasks_config.from_config_dict(values)
    hidden, attention = pretrained
    model = make_config(
        model__hidden_dropout_prob=hidden,
        model__attention_probs_dropout_prob=attention,
    ).model
    found = setup_lib.fit_dropout(config, given, model).dropout
    assert (found.hidden_prob, found.attention_prob) == expected
    assert found.head_prob == 0.1


@pytest.mark.parametrize(
    "more, message",
    [
        ({"task.labels": ("yes", "no")}, "config.task.labels (yes, no, or"),
        ({"data.train": "tsv:/no.tsv"}, "config.data.train: /no.tsv cannot be read"),
        ({"sequence_length": 64}, "has 32 positions; set it to at most 32, or remove"),
        ({"metric": "macro_f1"}, "config.metric='macro_f1' is not defined for 2"),
        ({"recipe.global_batch_size": 9, "accumulation_steps": 2}, "= 16; try 16"),
    ],
)
def test_an_invalid_config_is_an_error(more, message, source):
    assert_refused(source[0].parent, more, message)


@pytest.mark.parametrize("key", ["--model", "config.distill.teacher"])
def test_a_model_with_one_segment_is_not_fine_tuned_on_pairs(key, source, tmp_path):
    directory, _ = source
    changes = {"task.text": ("a", "b")}
    if key != "--model":
        directory = tmp_path
        tuned.write(directory)
        changes |= {"distill.teacher": str(tmp_path), "distill.logits_weight": 0.5}
    keep_one_segment(directory)
    message = f"{key}={directory}: the model has type_vocab_size=1"
    assert_refused(source[0].parent, changes, message)


def test_an_empty_dev_set_is_one_line_and_writes_nothing(source):
    directory = source[0].parent
    (directory / "none.tsv").write_text("sentence\tlabel\n")
    more = {"data.dev": (f"tsv:{directory / 'none.tsv'}",)}
    assert "none.tsv" in error_of("bert_jax.finetune", *command(directory, **more))
    assert not (directory / "run").exists()


def test_invalid_seeds_are_errors():
    assert finetune.seeds_of(["0", "7"]) == [0, 7]
    for seeds in (["a"], [], ["-1"], [str(2**32)], ["1", "1"]):
        with pytest.raises(ConfigError, match="must be different integers"):
            finetune.seeds_of(seeds)


@pytest.mark.slow
def test_a_test_set_can_be_predicted_later(swept, tmp_path):
    directory, _ = swept
    shutil.copytree(directory / "run", tmp_path / "run")
    model = tmp_path / "run/model/model.safetensors"
    before = model.read_bytes()
    (tmp_path / "test.tsv").write_text("sentence\nw1 w2\nw31 w32\n")
    arguments = command(directory, *SWEEP, f"--workdir={tmp_path / 'run'}")
    test = f"--config.data.test=('tsv:{tmp_path / 'test.tsv'}',)"
    stdout = run_well("bert_jax.finetune", *arguments, test)
    assert "examples/s" not in stdout and "Best by accuracy" in stdout
    assert stdout.count("already complete") == 2
    assert "dev.txt alone has accuracy 0.5" in stdout
    assert model.read_bytes() == before
    text = (tmp_path / "run/predictions/test/predictions.jsonl").read_text()
    assert [json.loads(line)["label"] for line in text.splitlines()] == [
        "against",
        "for",
    ]
