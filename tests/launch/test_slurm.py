"""slurm.sbatch: which exit codes requeue the job, and how often.

srun and scontrol on PATH are scripts: the first runs a training that takes one line of
`plan` per start, EXIT_CODE [CHECKPOINT]; the second appends its arguments to a file.
"""

import os
import re
import subprocess

import pytest

from tests.commands import ROOT

SRUN = r"""#!/usr/bin/env bash
echo "$@" >>"$RUN/starts"
read -r code step < <(sed -n "$(wc -l <"$RUN/starts")p" "$RUN/plan")
[[ -z $step ]] || mkdir -p "$WORKDIR/checkpoints/$step"
exit "$code"
"""
SCONTROL = '#!/usr/bin/env bash\necho "$@" >>"$RUN/requeued"\n'
SCRIPT = ROOT / "launch/slurm.sbatch"


@pytest.fixture
def submit(tmp_path):
    """Returns a function that runs the job as Slurm does: again after each requeue."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    run = tmp_path / "run"
    run.mkdir()
    path = f"{tmp_path}:{os.environ['PATH']}"
    workdir = tmp_path / "workdir"  # train makes it, unless a process is missing
    env = os.environ | {"PATH": path, "RUN": str(run), "SLURM_JOB_ID": "7"}
    env["WORKDIR"] = str(workdir)

    def submit(*plan: str) -> tuple[list[int], str]:
        (run / "plan").write_text("\n".join(plan) + "\n")
        codes = []
        while True:
            count = requeues()
            result = subprocess.run(
                ["bash", SCRIPT, "--config=configs/tiny.py", f"--workdir={workdir}"],
                env=env,
                capture_output=True,
                text=True,
            )
            codes.append(result.returncode)
            if requeues() == count:
                return codes, result.stderr

    def requeues() -> int:
        file = run / "requeued"
        lines = file.read_text().splitlines() if file.exists() else []
        assert set(lines) <= {"requeue 7"}
        return len(lines)

    submit.run = run
    return submit


@pytest.mark.parametrize("code", [0, 1, 2, 77, 78, 137])
def test_other_codes_end_the_job(submit, code):
    assert submit(str(code))[0] == [code]


def test_codes_75_and_76_requeue(submit):
    assert submit("75 10", "76 20", "0 30")[0] == [0, 0, 0]
    starts = (submit.run / "starts").read_text()
    assert starts.count("-m bert_jax.train --config=configs/tiny.py --workdir=") == 3


def test_a_run_that_failed_before_its_workdir_was_made_is_requeued(submit):
    assert submit("76", "0")[0] == [0, 0]


def test_three_requeues_without_a_newer_checkpoint_exit_with_1(submit):
    codes, log = submit("75 9", "76", "76", "76", "76", "0")
    assert codes == [0, 0, 0, 0, 1]
    assert "no checkpoint newer than step 9 after 3 requeues" in log


def test_a_newer_checkpoint_resets_the_count(submit):
    plan = ["76 9", "76", "76", "76 10", "76", "76", "76 100", "0"]
    assert submit(*plan)[0] == [0] * len(plan)


def test_slurm_sends_sigterm_to_the_tasks_before_the_time_limit():
    options = re.findall("^#SBATCH (.*)$", SCRIPT.read_text(), re.MULTILINE)
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append"} <= {*options}
