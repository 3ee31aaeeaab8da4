"""Slices that are not there are refused with the nearest that are."""

import subprocess

import pytest

from tests.commands import ROOT
from tests.launch import test_gke, test_instance_group, test_queued_resource
from tests.launch import test_skypilot as sky

# The functions themselves, for many slices in one shell: MACHINE:TOPOLOGY, or a type.
SHELL = r"""
set -euo pipefail
. launch/lib.sh
. launch/slice.sh
declare -A flags
for slice in "$@"; do
  flags[type]=${slice%:*} flags[topology]=${slice#*:}
  if [[ $slice == *:* ]]; then
    (check_slice 2>&1 && num_hosts >/dev/null && devices_of_topology) || true
  else
    (check_tpu_type "" 2>&1 && devices_of_type "") || true
  fi
done
"""


def answers(*slices: str) -> list[str]:
    """Returns of each slice its number of devices, or the line that refuses it."""
    command = ["bash", "-c", SHELL, "launcher", *slices]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not result.stderr and result.stdout.count("\n") == len(slices), result
    return result.stdout.splitlines()


def test_slices_that_are_there_and_their_devices():
    devices = {
        "v2-8": 8,
        "v2-512": 512,
        "v3-32": 32,
        "v3-64": 64,
        "v3-2048": 2048,
        "v4-8": 4,
        "v4-384": 192,
        "v4-4096": 2048,
        "v5p-8": 4,
        "v5p-896": 448,
        "v5p-12288": 6144,
        "v5litepod-1": 1,
        "v5litepod-4": 4,
        "v5litepod-256": 256,
        "v6e-8": 8,
        "v6e-128": 128,
        "ct5lp-hightpu-1t:1x1": 1,
        "ct5lp-hightpu-4t:2x4": 8,
        "ct5lp-hightpu-8t:2x4": 8,
        "ct6e-standard-4t:2x2": 4,
        "ct6e-standard-4t:16x16": 256,
        "ct4p-hightpu-4t:2x2x1": 4,
        "ct4p-hightpu-4t:8x16x16": 2048,
        "ct5p-hightpu-1t:1x1x1": 1,
        "ct5p-hightpu-2t:1x2x1": 2,
        "ct5p-hightpu-4t:2x4x4": 32,
        "ct5p-hightpu-4t:4x4x12": 192,
        "ct5p-hightpu-4t:16x16x24": 6144,
        "tpu7x-standard-1t:1x1x1": 2,
        "tpu7x-standard-4t:2x2x1": 8,
        "tpu7x-standard-4t:16x24x24": 18432,
        "ct9z-standard-4t:3x4": 12,  # newer than the launchers
    }
    assert answers(*devices) == list(map(str, devices.values()))


def test_slices_that_are_not_there_are_refused_with_the_nearest():
    nearest = {
        "v5litepod-17": "v5litepod-16 or v5litepod-32",
        "v5litepod-512": "v5litepod-256",
        "v5litepod-2": "v5litepod-1 or v5litepod-4",
        "v6e-12": "v6e-8 or v6e-16",
        "v2-16": "v2-8 or v2-32",
        "v3-4096": "v3-2048",
        "v4-4": "v4-8",
        "v4-100": "v4-64 or v4-128",
        "v4-16384": "v4-4096",
        "v5p-24": "v5p-16 or v5p-32",
        "v5p-20480": "v5p-12288",
        "ct6e-standard-4t:3x4": "2x4 or 4x4",
        "ct6e-standard-4t:4x2": "2x4",
        "ct6e-standard-4t:2x2x2": "2x4",
        "ct6e-standard-4t:64x4": "16x16",
        "ct6e-standard-4t:32x32": "16x16",
        "ct6e-standard-4t:1x1": "2x2",
        "ct6e-standard-1t:2x2": "1x1",
        "ct6e-standard-8t:4x4": "2x4",
        "ct5lp-hightpu-4t:1x4": "2x2",
        "ct5p-hightpu-4t:4x4": "2x2x4",
        "ct5p-hightpu-4t:1x1x1": "2x2x1",
        "ct5p-hightpu-4t:2x2x3": "2x2x2 or 2x2x4",
        "ct5p-hightpu-4t:8x4x4": "4x4x8",
        "ct5p-hightpu-4t:4x4x6": "4x4x4 or 4x4x8",
        "ct4p-hightpu-4t:16x16x20": "16x16x16",
        "tpu7x-standard-4t:24x24x24": "16x16x16",
    }
    for said, (slice_name, names) in zip(
        answers(*nearest), nearest.items(), strict=True
    ):
        assert "there is no such slice" in said and said.endswith(f": {names}")
        assert f"'{slice_name.partition(':')[2] or slice_name}'" in said


def test_hosts_that_are_not_there_are_refused():
    (flat, deep) = answers("ct6e-standard-2t:2x2", "ct4p-hightpu-8t:2x2x2")
    assert flat.endswith("a host of ct6e has 1, 4 or 8 chips, not 2")
    assert deep.endswith("a host of ct4p has 4 chips, not 8")


@pytest.mark.parametrize(
    ("module", "flag"),
    [
        (test_queued_resource, "--type=v5litepod-17"),
        (test_queued_resource, "--type=v5p-" + "9" * 30),
        (sky, "--type=tpu-v5litepod-512"),
        (test_instance_group, "--topology=3x4"),
        (test_gke, "--topology=64x4"),
        (test_gke, "--topology=" + "9" * 30 + "x4"),
    ],
)
def test_each_launcher_refuses_them_before_anything_is_made(cloud, module, flag):
    result = cloud.run(module.SCRIPT, "run", *module.FLAGS, flag, code=2)
    assert result.stderr.count("\n") == 1 and flag.split("=")[0] in result.stderr
    assert not cloud.calls() and not result.stdout
