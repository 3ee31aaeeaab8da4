"""requirements.lock pins requirements.txt, whose versions pyproject.toml allows."""

import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.commands import ROOT, capture

PYTHONS = ("3.11", "3.12", "3.13")


def lines(name):
    text = (ROOT / name).read_text().replace("\\\n", " ")
    return [
        line for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]


def pins(requirements, python):
    """Returns {package: version} of the requirements for a version of Python."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
    }
    found = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = requirement.name.lower().replace("_", "-")
            assert name not in found, name
            found[name] = str(requirement.specifier)
    return found


def without_comment(line):
    return re.split(r"\s+#|\s+--hash", line)[0]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_is_locked_at_its_version(python):
    asked = pins(map(without_comment, lines("requirements.txt")), python)
    locked = pins(map(without_comment, lines("requirements.lock")), python)
    assert len(asked) > 10
    assert asked.items() <= locked.items()
    assert all(version.startswith("==") for version in locked.values())


@pytest.mark.parametrize("python", PYTHONS)
def test_every_pin_is_within_the_bounds_of_the_package(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = extras["gcs"] + extras["finetune"]
    bounds = pins([*project["dependencies"], *optional], python)
    pinned = pins(map(without_comment, lines("requirements.txt")), python)
    assert bounds.keys() == pinned.keys()
    for name, version in pinned.items():
        assert version.startswith("==") and bounds[name].startswith(">="), name
        assert SpecifierSet(bounds[name]).contains(version.removeprefix("==")), name


def test_every_locked_package_has_digests_and_no_address():
    for line in lines("requirements.lock"):
        assert re.search(r" --hash=sha256:[0-9a-f]{64}", line), line
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text and "index" not in text and " @ " not in text


@pytest.mark.slow
def test_pip_accepts_the_digests_of_all_packages():
    options = "--dry-run --ignore-installed --quiet --require-hashes -r".split()
    pip = [sys.executable, "-m", "pip", "install", *options]
    result = capture(*pip, str(ROOT / "requirements.lock"))
    lost = re.search("after connection broken by|HTTP error 5", result.stderr)
    if result.returncode and lost and "DO NOT MATCH THE HASHES" not in result.stderr:
        pytest.skip("no network")
    assert result.returncode == 0, result.stderr[-2000:]
