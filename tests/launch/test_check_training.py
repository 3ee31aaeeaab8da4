"""What training would refuse is found here, before anything is made."""

import sys

import pytest

from tests.commands import PATH
from tests.launch import (
    test_gke,
    test_instance_group,
    test_queued_resource,
    test_skypilot,
)

RECORDER = r"""#!/usr/bin/env bash
printf '%s\n' "$JAX_PLATFORMS" "$PWD" "$@" >>"$FAKES/checked"
[[ -z ${SAYS-} ]] || echo "$SAYS" >&2
exit "${CODE:-0}"
"""
SLURM = [
    "--name=bert-base",
    "--nodes=2",
    "--gpus_per_node=4",
    "--config=configs/base.py",
    "--workdir=/shared/runs/bert-base",
    "--corpus_dir=/shared/corpora/base",
    "--dry_run",
]
TPU = test_queued_resource.SCRIPT, test_queued_resource.FLAGS


def checked(cloud) -> list[str]:
    """Returns the words that the recorder was called with, of all calls."""
    path = cloud.fakes / "checked"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def user(cloud):
    """A user whose python3 writes down what it is to check."""
    del cloud.env["BERT_JAX_CHECKED"]
    cloud.add_program("python3", RECORDER)
    return cloud


@pytest.mark.parametrize(
    ("script", "flags", "num_devices", "num_slices"),
    [
        (*TPU, 16, 1),
        (TPU[0], [*TPU[1], "--type=v3-32"], 32, 1),
        (TPU[0], [*TPU[1], "--type=v4-32"], 16, 1),
        (TPU[0], [*TPU[1], "--slices=2"], 32, 2),
        (test_instance_group.SCRIPT, test_instance_group.FLAGS, 8, 1),
        (test_gke.SCRIPT, test_gke.FLAGS, 16, 1),
        (
            test_gke.SCRIPT,
            [*test_gke.FLAGS, "--type=tpu7x-standard-4t", "--topology=2x2x2"],
            16,
            1,
        ),
        (test_gke.SCRIPT, [*test_gke.FLAGS, "--slices=2"], 32, 2),
        (test_skypilot.SCRIPT, [*test_skypilot.FLAGS, "--type=tpu-v6e-8"], 8, 1),
        ("slurm.sh", SLURM, 8, 1),
    ],
)
def test_each_launcher_checks_once_against_its_devices(
    user, script, flags, num_devices, num_slices
):
    source = "--config.data.sources=('text:/a b/*.txt',)"
    user.run(script, "run", *flags, "--dry_run", "--", source)
    assert checked(user) == [
        "cpu",
        str(user.clone),
        "-m",
        "bert_jax.preflight.check",
        "--config=configs/base.py",
        f"--devices={num_devices}",
        f"--slices={num_slices}",
        source,
    ]


def test_a_mistake_ends_the_launcher_before_anything_is_made(user):
    said = "W0101 a warning\nerror: config.x=3 must be 4"
    gke = test_gke.SCRIPT, test_gke.FLAGS
    for command in ("create", "prepare", "train", "run", "xpk"):
        script, flags = gke if command == "xpk" else TPU
        result = user.run(script, command, *flags, code=2, CODE="2", SAYS=said)
        assert result.stderr == "launch: config.x=3 must be 4\n" and not result.stdout
    assert user.calls() == []


def test_what_makes_nothing_checks_nothing(user):
    for command in ("status", "logs", "stop", "collect", "delete"):
        user.run(TPU[0], command, *TPU[1], "--dry_run", CODE="2")
    user.run(TPU[0], "run", *TPU[1], "--dry_run", BERT_JAX_CHECKED="yes")
    assert not checked(user)


@pytest.mark.parametrize(
    ("code", "said"),
    [("1", "Traceback\nModuleNotFoundError: No module named 'jax'"), ("127", "no one")],
)
def test_without_a_python_that_can_check_it_says_so_and_goes_on(user, code, said):
    result = user.run(TPU[0], "run", *TPU[1], "--dry_run", CODE=code, SAYS=said)
    line = result.stderr.splitlines()[0]
    assert "checked on the hosts, not here: python3: " in line
    assert line.endswith(said.splitlines()[-1])
    assert result.stderr.count("not here") == 1
    assert test_queued_resource.CREATE in result.stdout


def test_the_python_of_the_clone_is_the_first_choice(user):
    own = user.clone / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    (user.fakes / "bin/python3").rename(own)
    user.run(TPU[0], "train", *TPU[1], "--dry_run")
    assert checked(user)


@pytest.fixture
def real(user):
    """A user whose clone has an environment with all that training needs."""
    own = user.clone / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.write_text(
        f'#!/bin/sh\nPYTHONPATH={PATH} exec {sys.executable} "$@"\n'  # this package's
    )
    own.chmod(0o755)
    return user


def test_the_real_check_of_a_sound_run(real):
    said = real.run(TPU[0], "run", *TPU[1], "--dry_run").stderr
    assert said.startswith(
        "launch: the config fits 16 device(s), mesh data 16 x fsdp 1 x tensor 1;"
    )


@pytest.mark.parametrize(
    ("module", "argument", "words"),
    [
        (
            test_queued_resource,
            "--config.optimizer.num_stps=3",
            "--config.optimizer.num_stps is not a config key; the nearest is",
        ),
        (
            test_gke,
            "--config.phases[0].global_batch_size=24",
            "global_batch_size=24 must be a multiple of",
        ),
    ],
)
def test_the_real_check_of_a_mistake(real, module, argument, words):
    result = real.run(module.SCRIPT, "run", *module.FLAGS, "--", argument, code=2)
    assert words in result.stderr and result.stderr.count("\n") == 1
    assert real.calls() == []


def test_the_real_check_of_slices(real):
    mesh = ["--config.mesh.data=1", "--config.mesh.fsdp=32"]
    flags = [*TPU[1], "--slices=2"]
    said = real.run(TPU[0], "run", *flags, "--", *mesh, code=2).stderr
    assert "config.mesh.data=1 must be a multiple of the 2 slices" in said
    assert said.count("\n") == 1 and real.calls() == []


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--config.mesh.data", "-1"], "write --config.mesh.data=-1"),
        (["--config.remat", "full"], "write --config.remat=full"),
        (["--config.remat", "--config.seed=3"], "write --config.remat=VALUE"),
        (["--config.remat"], "write --config.remat=VALUE"),
        (["--config.data.corpus_dir", "/x"], "give it before --"),
        (["--config", "configs/tiny.py"], "give it before --"),
        (["full"], "full is no flag of bert_jax.train"),
    ],
)
def test_a_key_and_its_value_are_one_word(cloud, words, advice):
    said = cloud.run(TPU[0], "run", *TPU[1], "--", *words, code=2).stderr
    assert said.count("\n") == 1 and advice in said
    assert cloud.calls() == []


def test_what_is_no_key_of_the_config_is_no_flag_of_train(cloud):
    for flag in ("--num_steps", "-config.data.corpus_dir"):
        said = cloud.run(TPU[0], "run", *TPU[1], "--", f"{flag}=3", code=2).stderr
        assert f"{flag} is no flag of bert_jax.train" in said
