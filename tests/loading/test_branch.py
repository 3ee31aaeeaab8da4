"""Tests of bert_jax.loading.branch, on real runs."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from orbax.checkpoint.checkpoint_managers import LatestN

from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.loading import branch
from bert_jax.phases import Position
from bert_jax.training import step as step_lib
from tests.commands import error_of, run_until, run_well, small_run
from tests.runs import assert_same_bits, exact_lines, lines

STEPS = {"phases[0].num_steps": 20, "checkpoint.every_steps": 10}


def branch_of(run_dir, step: int, **changes):
    """Returns the config of a run with `branch_from` and other changes."""
    config = workdir_lib.read_config(str(run_dir))
    optimizer = dataclasses.replace(config.optimizer, **changes.pop("optimizer", {}))
    phase = dataclasses.replace(config.phases[0], **changes.pop("phase", {}))
    changes = {"branch_from": f"{run_dir}@{step}"} | changes
    return dataclasses.replace(config, optimizer=optimizer, phases=(phase,), **changes)


@pytest.mark.slow
def test_a_branch_continues_with_the_bits_of_its_source(trained, tmp_path):
    changes = STEPS | {"branch_from": f"{trained / 'run'}@10", "eval.every_steps": 10}
    workdir = tmp_path / "branch"
    workdir.mkdir()
    (workdir / "rollback.json").write_text("of an earlier run")
    arguments = [*small_run(trained, **changes), f"--workdir={workdir}"]
    stdout = run_well("bert_jax.train", *arguments)
    assert f"branching off {trained / 'run'}@10, workdir" in stdout
    assert_same_bits(workdir, trained / "run", 20)
    assert not (workdir / "rollback.json").exists()
    # The branch has its own metrics: the evaluation at its start, and its own steps.
    assert [line["step"] for line in lines(workdir)] == [10, 20, 20]
    assert "eval_loss" in lines(workdir)[0] and "loss" in lines(workdir)[1]
    assert all(line["seconds_down"] == 0 for line in lines(workdir))
    listed = run_well("bert_jax.checkpoint", "verify", f"--workdir={workdir}")
    rows = [line.split() for line in listed.splitlines()]
    assert [row[0] for row in rows] == ["step", "10", "20"]
    assert all(row[-1] == "verified" for row in rows[1:])


@pytest.mark.slow
def test_a_decay_branch_has_the_bits_of_a_run_that_decayed_there(trained, tmp_path):
    """It is killed at its start, and resumes when its source is gone."""

    def arguments(name: str, num_steps: int, decay_steps: int, **changes):
        changes |= {"optimizer.schedule": "wsd", "phases[0].num_steps": num_steps}
        changes |= {"optimizer.decay_steps": decay_steps, "checkpoint.every_steps": 30}
        changes |= {"checkpoint.keep": 3, "optimizer.average_steps": 45}
        return [*small_run(trained, **changes), f"--workdir={tmp_path / name}"]

    run_well("bert_jax.train", *arguments("long", 90, 20))
    run_well("bert_jax.train", *arguments("straight", 75, 40))
    from_long = {"branch_from": f"{tmp_path / 'long'}@30"}
    command = ("bert_jax.train", *arguments("branch", 75, 40, **from_long))
    run_until(tmp_path / "branch" / "checkpoints" / "30", *command)
    shutil.move(tmp_path / "long", tmp_path / "elsewhere")
    run_well(*command)
    after = [line for line in exact_lines(tmp_path / "straight") if line[0] > 30]
    assert_same_bits(tmp_path / "branch", tmp_path / "straight", 75)
    assert [x for x in exact_lines(tmp_path / "branch") if x[0] > 30] == after
    assert after[-2][0] == 75 and after[-2][3] < after[0][3] / 5  # the rate decayed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"branch_from": "RUN"}, "must be RUN@STEP, the workdir of a run and the step"),
        ({"branch_from": "RUN@last"}, "must be RUN@STEP"),
        (
            {"branch_from": "RUN/checkpoints@10"},
            "has no config.json; use the workdir of a run",
        ),
        (
            {"branch_from": "RUN@15"},
            "there is no checkpoint of step 15; available steps: 10, 20",
        ),
        ({"seed": 7}, "config.seed=7, but .* took its first 10 steps with 12345"),
        ({"optimizer": {"beta1": 0.8}}, "config.optimizer.beta1=0.8, but"),
        (
            {"phase": {"global_batch_size": 8}},
            r"config.phases\[0\].global_batch_size=8, but",
        ),
        (
            {"phase": {"num_steps": 10}},
            r"num_steps=10, but at step 10 .* had taken 10 steps .* a larger number",
        ),
        (
            {"phase": {"num_steps": 40}},
            "step 7 the rate .* the same rates up to step 10: .* to 30 or less",
        ),
        (
            {"optimizer": {"schedule": "wsd", "decay_steps": 5}},
            "step 7 the rate 0.002, but .* took it with 0.0014",
        ),
    ],
)
def test_other_sources_and_keys_of_earlier_steps_are_refused(trained, changes, message):
    if "branch_from" in changes:
        given = changes["branch_from"].replace("RUN", str(trained / "run"))
        changes, message = {"branch_from": given}, f"branch_from='{given}'.* {message}"
    with pytest.raises(ConfigError, match=message) as error:
        branch.check(branch_of(trained / "run", 10, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "num_steps", "message"),
    [
        ({"average_steps": 10}, 20, ""),
        ({"average_steps": 11}, 20, ""),
        (
            {"average_steps": 12},
            21,
            r"begin before step 10 .*, or raise .*\[0\].num_steps by 1$",
        ),
        ({"average_steps": 12}, 22, ""),
        ({"final_masked_lm_prob": 0.1}, 20, ""),
        (
            {"final_masked_lm_prob": 0.1},
            21,
            "0.1 is for the last of 20 steps in .*, but the phases have 21; use as",
        ),
    ],
)
def test_options_that_depend_on_the_last_step_suit_the_branch(
    trained, tmp_path, options, num_steps, message
):
    source = shutil.copytree(trained / "run", tmp_path / "run")
    path = source / "config.json"
    values = json.loads(path.read_text())
    for section in ("data", "optimizer"):
        values[section] |= {k: v for k, v in options.items() if k in values[section]}
    values["optimizer"] |= {"schedule": "constant"}
    path.write_text(json.dumps(values))
    config = branch_of(source, 10, phase={"num_steps": num_steps})
    if not message:
        return branch.check(config)
    with pytest.raises(ConfigError, match=message):
        branch.check(config)


@pytest.mark.parametrize(("num_steps", "is_kept"), [(20, True), (21, False)])
def test_a_branch_keeps_the_mean_of_its_source_only_if_it_averages_the_same_steps(
    trained, tmp_path, num_steps, is_kept
):
    """The source has averaged its parameters since step 9 of 20."""
    optimizer = {"average_steps": 11}
    config = branch_of(
        trained / "run", 10, optimizer=optimizer, phase={"num_steps": num_steps}
    )
    config = dataclasses.replace(config, branch_from=f"{tmp_path}@10")
    corpus, mesh = corpus_lib.read(config), jax.sharding.get_mesh()
    _, init = step_lib.init_state(config)
    params = init().params
    average = jax.tree.map(lambda x: x + 1.0, params)
    state = dataclasses.replace(init(), average=average)
    checkpoints = Checkpoints(str(tmp_path), LatestN(1))
    checkpoints.save(10, state, config, Position(corpus.sha256))
    checkpoints.close()
    _, found = branch.open_branch(config, corpus).first_state(init, corpus, mesh)
    expected = average if is_kept else params
    jax.tree.map(np.testing.assert_array_equal, found.average, expected)


def test_keys_of_later_phases_are_free(trained):
    config = branch_of(trained / "run", 10)
    later = dataclasses.replace(config.phases[0], global_batch_size=8)
    optimizer = dataclasses.replace(
        config.optimizer, schedule_by_phase=True, warmup_steps=6
    )
    branch.check(
        dataclasses.replace(
            config, phases=(config.phases[0], later), optimizer=optimizer
        )
    )


def test_a_corrupt_source_is_an_error_and_writes_nothing(trained, tmp_path):
    source = shutil.copytree(trained / "run", tmp_path / "run")
    data = max((source / "checkpoints/10").rglob("d/*"), key=lambda x: x.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1])
    changes = STEPS | {"branch_from": f"{source}@10"}
    arguments = [*small_run(trained, **changes), f"--workdir={tmp_path / 'b'}"]
    error = error_of("bert_jax.train", *arguments, code=CorruptError.exit_code)
    assert f"{source}/checkpoints/10 is corrupt:" in error
    assert f"use config.branch_from={source}@20" in error
    assert not (tmp_path / "b").exists()


def test_a_checkpoint_that_its_run_deletes_is_named(trained, tmp_path):
    source = shutil.copytree(trained / "run", tmp_path / "run")
    config = branch_of(source, 10)
    corpus = corpus_lib.read(config)
    opened = branch.open_branch(config, corpus)
    shutil.rmtree(source / "checkpoints" / "10")
    _, init = step_lib.init_state(config)
    message = "checkpoints/10 was deleted by its run; set"
    with pytest.raises(ConfigError, match=message):
        opened.first_state(init, corpus, jax.sharding.get_mesh())
    with pytest.raises(ConfigError, match=message):
        branch.open_branch(config, corpus)


@pytest.mark.parametrize(
    ("plan", "is_refused"),
    [
        ({"step": 10, "progress": 0.0, "last_step": 20}, False),
        ({"step": 9, "progress": 0.0, "last_step": 20}, True),
        ({"step": 10, "progress": 0.5, "last_step": 20}, True),
    ],
)
def test_a_source_in_the_decay_of_its_hours_is_refused(
    trained, monkeypatch, plan, is_refused
):
    monkeypatch.setattr(branch.Checkpoints, "plan", lambda self, step: plan)
    config = branch_of(trained / "run", 10)
    corpus = corpus_lib.read(config)
    if is_refused:
        with pytest.raises(ConfigError, match="the rate of the run was decaying"):
            branch.open_branch(config, corpus)
    else:
        assert branch.open_branch(config, corpus).step == 10


def test_a_source_with_another_corpus_is_an_error(trained):
    config = branch_of(trained / "run", 10)
    branch.check(config)
    corpus = corpus_lib.read(config)
    assert branch.open_branch(config, corpus).position.corpus_sha256 == corpus.sha256
    other = dataclasses.replace(corpus, sha256="other")
    with pytest.raises(ConfigError, match="was not trained on the corpus in"):
        branch.open_branch(config, other)
