"""The launchers' examples, of README.md and of --help, can be pasted with --dry_run."""

import re
import shlex

import pytest

from tests.commands import ROOT
from tests.launch import test_gke, test_instance_group, test_queued_resource
from tests.launch import test_skypilot as sky

LAUNCHERS = {
    "service_account.sh": [],
    test_gke.SCRIPT: ["xpk"],  # which needs the most flags
    test_instance_group.SCRIPT: ["run"],
    test_queued_resource.SCRIPT: ["run"],
    sky.SCRIPT: ["run"],
    "slurm.sh": ["run"],
}


def examples() -> list[list[str]]:
    """Returns the words of README's commands that begin with launch/NAME.sh.

    But for restart.sh, which is on the machine already and has no dry run.
    """
    text = (ROOT / "launch/README.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^    launch/((?!restart)\w+\.sh .*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_every_launcher_has_an_example():
    assert {words[0] for words in examples()} >= LAUNCHERS.keys() - {
        test_instance_group.SCRIPT  # told by what differs from queued_resource.sh
    }


@pytest.mark.parametrize("words", examples(), ids=lambda words: " ".join(words[:2]))
def test_an_example_of_the_readme_is_a_dry_run(cloud, words):
    end = words.index("--") if "--" in words else len(words)
    result = cloud.run(*words[:end], "--dry_run", *words[end:])
    assert result.stdout.count("\n") > 3 or "xpk" in words
    assert all("rev-parse" in call for call in cloud.calls())


@pytest.mark.parametrize(("script", "subcommand"), LAUNCHERS.items())
def test_the_flags_of_its_help_are_examples(cloud, script, subcommand):
    told = cloud.run(script, "--help").stdout
    lines = re.findall(r"^  (--\w+=.*)$", told, re.MULTILINE)
    flags = re.findall(r"(?:^| )(--\w+=\S+)", "\n".join(lines), re.MULTILINE)
    assert len(flags) >= 4
    assert cloud.run(script, *subcommand, *flags, "--dry_run").stdout
