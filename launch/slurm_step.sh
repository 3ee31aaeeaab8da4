#!/usr/bin/env bash
# Runs a command in all tasks of a Slurm job, and passes SIGTERM on to the tasks.
#
#   launch/slurm_step.sh COMMAND...
#
# srun passes SIGTERM on as SIGKILL (Slurm 26.05: srun(1), --ignore-signals;
# src/srun/signals.c), and who is killed cannot save: so the signal does not go to srun,
# it goes through scancel to the tasks.
set -euo pipefail

trap 'scancel --signal=TERM "$SLURM_JOB_ID"' TERM INT

# Every task tells its own exit code, the highest is srun's: none is killed because
# another failed, its peers find that out and end with 76. Of one that never ends, the
# rest is not waited for.
set -m # a terminal's Ctrl-C is not for srun either
srun --kill-on-bad-exit=0 --wait=600 --cpu-bind=none \
  --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "$@" </dev/null &
step=$!
until wait "$step" || ! kill -0 "$step" 2>/dev/null; do :; done
code=0
wait "$step" || code=$?
exit "$code"
