"""What runs on a TPU host, against fakes of systemd, sudo and the package tools."""

import pytest

from tests.launch.fakes import Answer, words_in_order

SCRIPT = "on_host.sh"
UNIT = "bert-jax-train"


def shown(load="loaded", active="active", sub="running", code=0, status=0):
    """Returns what `systemctl show` says; of its codes, 1 is exited, 2 is killed."""
    return (
        f"LoadState={load}\nActiveState={active}\nSubState={sub}\n"
        f"ExecMainCode={code}\nExecMainStatus={status}"
    )


@pytest.mark.parametrize(
    "show, state",
    [
        (shown(), "running"),
        (shown(active="deactivating", sub="stop-sigterm"), "running"),
        (shown(load="not-found", active="inactive", sub="dead"), "absent"),
        (shown(sub="exited", code=1), "ended 0"),
        (shown(active="failed", sub="failed", code=1, status=77), "ended 77"),
        (shown(active="failed", sub="failed", code=2, status=9), "ended 137"),
    ],
)
def test_state_is_one_line_that_launchers_read(cloud, show, state):
    cloud.reply("systemctl show", show)
    assert cloud.run(SCRIPT, "state", UNIT).stdout == state + "\n"


def test_what_was_stopped_on_purpose_says_so_until_it_is_started(cloud):
    ended = shown(active="failed", sub="failed", code=1, status=75)
    cloud.reply("systemctl show", ended)
    assert cloud.run(SCRIPT, "state", UNIT).stdout == "ended 75\n"
    cloud.run(SCRIPT, "stop", UNIT)
    assert cloud.run(SCRIPT, "state", UNIT).stdout == "stopped\n"
    assert cloud.run(SCRIPT, "state", "bert-jax-prepare").stdout == "ended 75\n"
    cloud.run(SCRIPT, "start", UNIT, "train")
    assert cloud.run(SCRIPT, "state", UNIT).stdout == "ended 75\n"


def test_start_makes_a_unit_that_outlives_the_connection(cloud):
    cloud.reply("systemctl show", shown(load="not-found", active="inactive"))
    command = ["launch/restart.sh", "train", "--x=a b"]
    cloud.run(SCRIPT, "start", UNIT, *command)
    (words,) = cloud.calls("systemd-run")
    full_path = str(cloud.clone / command[0])
    assert words[words.index("--") + 1 :] == [full_path, *command[1:]]
    assert {
        f"--unit={UNIT}",
        "--remain-after-exit",
        "--property=KillMode=mixed",
        "--property=TimeoutStopSec=120",
        "--property=LimitMEMLOCK=infinity",
        "--property=After=network-online.target bert-jax-mount.service",
        f"--working-directory={cloud.clone}",
    } <= set(words)


def test_what_runs_is_not_started_twice(cloud):
    cloud.reply("systemctl show", shown())
    cloud.run(SCRIPT, "start", UNIT, "train")
    assert not cloud.calls("systemd-run")


def test_what_has_ended_is_cleared_away_first(cloud):
    cloud.reply("systemctl show", shown(active="failed", sub="failed", code=1))
    cloud.run(SCRIPT, "start", UNIT, "train")
    assert words_in_order(
        cloud.calls(), "systemctl stop", "reset-failed", "systemd-run"
    )


def test_the_bucket_is_mounted_by_a_unit_without_caches(cloud):
    cloud.reply("mountpoint", Answer(code=1), Answer(code=1), "")
    cloud.run(SCRIPT, "mount", "my-bucket")
    (words,) = cloud.calls("systemd-run")
    assert words[-2:] == ["my-bucket", "/mnt/bert_jax"]
    assert {
        "--foreground",
        "--metadata-cache-ttl-secs=0",
        "--metadata-cache-negative-ttl-secs=0",
        "--kernel-list-cache-ttl-secs=0",
    } <= set(words)


def test_what_is_mounted_is_not_mounted_again(cloud):
    cloud.run(SCRIPT, "mount", "my-bucket")
    assert not cloud.calls("systemd-run")


def test_a_bucket_that_does_not_come_up_is_an_error(cloud):
    cloud.reply("mountpoint", Answer(code=1))
    result = cloud.run(SCRIPT, "mount", "my-bucket", code=1, BERT_JAX_MOUNT_SECONDS="1")
    assert "journalctl" in result.stderr


def test_install_gets_the_mount_tool_python_and_the_package(cloud):
    cloud.reply("lsb_release", "jammy")
    cloud.reply("curl", "KEY")
    local = cloud.home / ".local" / "bin"
    local.mkdir(parents=True)
    (local / "uv").symlink_to(cloud.fakes / "bin" / "sky")
    cloud.run(SCRIPT, "install", "my-bucket")
    assert words_in_order(
        cloud.calls(),
        "sudo tee /usr/share/keyrings",
        "install -yq gcsfuse",
        "^uv venv .*3.12 .venv",
        r"^uv pip install .*-e \.\[tpu\]",
        "mountpoint",
    )


def test_install_fails_where_a_part_of_it_fails(cloud):
    cloud.reply("apt-get .*gcsfuse", Answer(code=100))
    cloud.run(SCRIPT, "install", "my-bucket", code=100)
    assert not cloud.calls("uv")


def test_logs_are_of_what_was_prepared_and_what_was_trained(cloud, tmp_path):
    cloud.reply("journalctl", "a line")
    assert cloud.run(SCRIPT, "log").stdout == "a line\n"
    cloud.run(SCRIPT, "log", "follow")
    cloud.run(SCRIPT, "save_log", str(tmp_path / "run" / "logs"))
    last, follow, whole = cloud.calls("journalctl")
    for words in (last, follow, whole):
        assert {"--unit=bert-jax-prepare", "--unit=bert-jax-train"} <= set(words)
    assert "--lines=200" in last and "--follow" in follow
    (saved,) = (tmp_path / "run" / "logs").iterdir()
    assert saved.read_text() == "a line\n" and saved.suffix == ".txt"


def test_last_words_are_those_of_a_unit_that_ended_so(cloud):
    cloud.reply(
        "systemctl show", shown(active="failed", sub="failed", code=1, status=1)
    )
    cloud.reply("journalctl", "Traceback\nValueError: a | b")
    assert cloud.run(SCRIPT, "last_words", UNIT, "76").stdout == ""
    lines = cloud.run(SCRIPT, "last_words", UNIT, "1").stdout.splitlines()
    assert [line.split("| ", 1)[1] for line in lines] == [
        "Traceback",
        "ValueError: a | b",
    ]
    (words,) = cloud.calls("journalctl")
    assert {"--lines=30", f"--unit={UNIT}"} <= set(words)


def test_stop_and_help(cloud):
    cloud.run(SCRIPT, "stop", UNIT)
    assert cloud.calls() == [["sudo", "systemctl", "stop", UNIT]]
    assert "install BUCKET" in cloud.run(SCRIPT, "--help").stdout
    cloud.run(SCRIPT, "nothing", code=2)
