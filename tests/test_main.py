"""Tests of bert_jax.__main__, which lists and runs the commands."""

import tomllib

import pytest

import bert_jax
from bert_jax import __main__ as main_lib
from tests.commands import ROOT, error_of, run, run_code, run_well


def test_every_module_that_can_be_run_is_a_command():
    package = ROOT / "bert_jax"
    modules = {path.parent.name for path in package.glob("*/__main__.py")}
    for path in package.glob("[!_]*.py"):
        if '__name__ == "__main__"' in path.read_text():
            modules.add(path.stem)
    assert modules == set(main_lib.COMMANDS)
    for name in main_lib.COMMANDS:
        assert main_lib.summary(name).endswith("."), name


def test_without_a_command_all_are_listed():
    listed = run_well("bert_jax")
    assert listed == run_well("bert_jax", "--help")
    assert "\n  train          Pretrains BERT on the text" in listed
    assert "\n  checkpoint     Lists or verifies" in listed


def test_a_command_after_the_package_is_the_module_of_that_name():
    helped = run_well("bert_jax", "checkpoint", "--help")
    assert helped == run_well("bert_jax.checkpoint", "--help")
    result = run("bert_jax", "score", "--nonesuch=1")
    assert result.returncode == 2 and "--nonesuch" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian", "--config=tiny"], "'trian' is not a command; the nearest is train"),
        (["zzz"], "'zzz' is not a command; see --help"),
    ],
)
def test_an_unknown_command_is_one_line(arguments, message):
    assert error_of("bert_jax", *arguments) == f"error: {message}\n"


def test_the_console_script_is_this_module():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"bert-jax": "bert_jax.__main__:main"}
    program = """if True:
        import sys
        sys.argv = ["/usr/bin/bert-jax", "--version"]
        from bert_jax.__main__ import main
        main()
    """
    assert run_code(program).stdout == f"bert_jax {bert_jax.__version__}\n"
