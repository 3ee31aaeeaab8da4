"""Probes in runs: their results are logged, and no bit of the run changes."""

import json
import shutil

import pytest

from bert_jax import probes
from bert_jax.errors import ConfigError
from tests import runs
from tests.commands import run, run_well, small_run, write_text
from tests.probes import tasks

NAMES = ("probe/blimp", "probe/stsb")
SHORT = {"phases[0].num_steps": 20, "checkpoint.every_steps": 10}  # as in `trained`


def results(workdir):
    """Returns the results of both probes by step."""
    return {
        line["step"]: [line[name] for name in NAMES]
        for line in runs.lines(workdir)
        if NAMES[0] in line
    }


@pytest.fixture(scope="module")
def probed(trained, tmp_path_factory):
    """The workdir of the run in `trained` with probes every ten steps, and its specs"""
    directory = tmp_path_factory.mktemp("probed")
    specs = tasks.specs(directory)
    changes = SHORT | {"eval.probes": specs, "eval.every_steps": 10}
    arguments = small_run(trained, **changes)
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={directory / 'run'}")
    assert ", blimp " in stdout and "%, stsb " in stdout
    return directory / "run", specs


@pytest.mark.slow
def test_probes_change_no_bit_of_a_run(trained, probed):
    workdir, _ = probed
    for step in (10, 20):
        runs.assert_same_bits(workdir, trained / "run", step)
    plain = [line for line in runs.lines(trained / "run") if "loss" in line]
    with_probes = [line for line in runs.lines(workdir) if "loss" in line]
    for a, b in zip(with_probes, plain, strict=True):
        assert [a[name] for name in ("step", "loss", "grad_norm")] == [
            b[name] for name in ("step", "loss", "grad_norm")
        ]


@pytest.mark.slow
def test_results_are_in_the_lines_of_evaluations(probed):
    workdir, _ = probed
    found = results(workdir)
    assert [*found] == [10, 20]
    for accuracy, correlation in found.values():
        assert accuracy / 5 == pytest.approx(round(accuracy / 5))  # 20 pairs
        assert 0 <= accuracy <= 100
        assert -100 <= correlation <= 100


@pytest.mark.slow
def test_evaluate_reports_the_probes_of_the_run(probed):
    workdir, specs = probed
    found = json.loads(run_well("bert_jax.evaluate", f"--workdir={workdir}"))
    expected = results(workdir)[20]
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=1e-3)
    arguments = [f"--workdir={workdir}", f"--probes={specs[1]}"]
    one = json.loads(run_well("bert_jax.evaluate", *arguments))
    assert NAMES[0] not in one and one[NAMES[1]] == found[NAMES[1]]


@pytest.mark.slow
def test_a_workdir_without_the_key_is_resumed_and_evaluated(trained, tmp_path):
    """As runs have written it before there were probes."""
    workdir = tmp_path / "run"
    shutil.copytree(trained / "run", workdir)
    config = json.loads((workdir / "config.json").read_text())
    assert config["eval"].pop("probes") == []
    (workdir / "config.json").write_text(json.dumps(config))
    found = json.loads(run_well("bert_jax.evaluate", f"--workdir={workdir}"))
    assert found["step"] == 20 and not any(name in found for name in NAMES)
    specs = tasks.specs(tmp_path)
    shutil.rmtree(workdir / "checkpoints" / "20")
    arguments = small_run(trained, **SHORT | {"eval.probes": specs})
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={workdir}")
    assert "resuming at step 10" in stdout
    runs.assert_same_bits(workdir, trained / "run", 20)
    assert [*results(workdir)] == [20]
    config = json.loads((workdir / "config.json").read_text())
    assert config["eval"]["probes"] == [*specs]


@pytest.mark.slow
def test_two_processes_have_the_results_of_one(tmp_path):
    from tests.launch import test_local

    write_text(tmp_path / "documents.txt")
    specs = tasks.specs(tmp_path)
    changes = {"phases[0].num_steps": 4, "eval.probes": specs, "eval.every_steps": 2}
    run_well("bert_jax.train", *test_local.arguments(tmp_path, "one", **changes))
    changes |= {"mesh.data": 1, "mesh.fsdp": 2}
    arguments = test_local.arguments(tmp_path, "two", **changes)
    test_local.run_processes(2, *arguments)
    expected, found = results(tmp_path / "one"), results(tmp_path / "two")
    assert [*found] == [*expected] == [2, 4]
    for step in expected:
        assert found[step] == pytest.approx(expected[step], abs=0.1)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (("glue:DIR",), "has 'glue:DIR'; a probe must be blimp:DIR or stsb:DIR"),
        (("blimp",), "has 'blimp'; a probe must be blimp:DIR"),
        (("stsb:",), "has 'stsb:'; a probe must be blimp:DIR"),
        (("stsb:/nowhere",), "'/nowhere' is not a directory; give the directory of"),
        (("blimp:DIR",), "has no .jsonl files; give the directory of BLiMP's data"),
    ],
)
def test_an_invalid_spec_is_an_error(specs, message, tmp_path):
    specs = [spec.replace(":DIR", f":{tmp_path}") for spec in specs]
    with pytest.raises(ConfigError) as error:
        probes.read(specs)
    found = str(error.value).replace(f":{tmp_path}", ":DIR")
    assert found.startswith("config.eval.probes has '") and message in found


def test_a_kind_occurs_once(tmp_path):
    _, spec = tasks.specs(tmp_path)
    assert probes.read([spec]).keys() == {"stsb"}
    with pytest.raises(ConfigError, match="a second stsb probe; remove one"):
        probes.read([spec, spec])


def test_an_invalid_spec_ends_a_run_before_anything_is_written(tmp_path):
    write_text(tmp_path / "documents.txt")
    arguments = small_run(tmp_path, **{"eval.probes": "('blimp:/nowhere',)"})
    result = run("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "config.eval.probes has 'blimp:/nowhere', but" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["documents.txt"]
