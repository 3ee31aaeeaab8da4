#!/usr/bin/env bash
# A run on the GPUs of a Slurm cluster, from its login node.
#
#   launch/slurm.sh SUBCOMMAND FLAGS [-- FLAGS OF bert_jax.train]
#
#   install  an environment with jax for CUDA, in this clone (.venv)
#   prepare  makes the corpus, in a job without GPUs, and waits for it
#   train    submits the job (launch/slurm.sbatch), unless it is there already
#   wait     waits until it ends; the exit code is that of training
#   status   the job, the newest checkpoint
#   logs     the last lines of its output; --follow goes on
#   stop     training saves and ends, and is not requeued; nothing is left that costs
#   delete   takes the job away at once, saved or not
#   run      install, prepare, train, wait; the job again if its nodes were lost
#
#   --name=bert-base
#   --nodes=2 --gpus_per_node=8
#   --time=24:00:00        limit of a job; before it ends, it saves and is requeued
#   --config=configs/base.py
#   --workdir=/shared/runs/bert-base --corpus_dir=/shared/corpora/base
#                          on a disk that all nodes share (NFS, Lustre)
#   --partition=gpu --account=my-group --cpus_per_task=8    as the cluster wants it
#   --prepare_cpus=16 --prepare_partition=cpu
#   --modules=cuda/13.0,python/3.12    what `module load` needs
#   --skip_prepare         run: the corpus is there already
#   --dry_run              prints every command instead, ready to paste
#
# This clone must lie on the shared disk as well. Checked against the manual pages of
# Slurm 26.05 (sbatch, srun, squeue, sacct, scancel).
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=launch/backoff.sh
. "$ROOT/launch/backoff.sh"
# shellcheck source=launch/exit_codes.sh
. "$ROOT/launch/exit_codes.sh"

: "${BERT_JAX_POLL:=30}"
: "${BERT_JAX_MISSES:=10}"
readonly LOST=69 # our own code: the job's nodes were lost
readonly SUBCOMMANDS="install prepare train wait status logs stop delete run"

declare -A flags=(
  [name]="" [nodes]=1 [gpus_per_node]=8 [time]=24:00:00 [config]="" [workdir]=""
  [corpus_dir]="" [partition]="" [account]="" [cpus_per_task]=8 [prepare_cpus]=16
  [prepare_partition]="" [modules]=""
)
declare -A switches=([skip_prepare]="" [follow]="")

python() { echo "$ROOT/.venv/bin/python"; }
output_file() { echo "${flags[workdir]}/slurm.txt"; }

train_flags() {
  printf '%s\n' "--config=${flags[config]}" "--config.data.corpus_dir=${flags[corpus_dir]}"
  ((${#train_args[@]} == 0)) || printf '%s\n' "${train_args[@]}"
}

newest_step() {
  { ls -1 "${flags[workdir]}/checkpoints" 2>/dev/null || true; } | highest_step
}

load_modules() {
  local names
  [[ -n ${flags[modules]} ]] || return 0
  IFS=, read -ra names <<<"${flags[modules]}"
  run module load "${names[@]}"
}

install_package() {
  load_modules
  run python3 -m venv "$ROOT/.venv"
  run "$(python)" -m pip install --quiet -e "${ROOT}[cuda]"
}

prepare() {
  local arguments command options=(--wait --job-name="${flags[name]}-prepare" --nodes=1
    --ntasks=1 --cpus-per-task="${flags[prepare_cpus]}" --chdir="$ROOT"
    --output="${flags[corpus_dir]}.slurm.txt")
  [[ -z ${flags[prepare_partition]} ]] ||
    options+=(--partition="${flags[prepare_partition]}")
  [[ -z ${flags[account]} ]] || options+=(--account="${flags[account]}")
  mapfile -t arguments < <(train_flags)
  printf -v command '%q ' "$(python)" -m bert_jax.prepare "${arguments[@]}"
  run mkdir -p "$(dirname "${flags[corpus_dir]}")"
  run sbatch "${options[@]}" --wrap="${command% }"
}

# ID and state of the newest job of this name in the queue, "" if there is none.
queued_job() {
  query "${1-}" squeue --me --noheader --name="${flags[name]}" --format='%A %T' \
    --sort=-i | sed -n 1p
}

train() {
  local arguments job options=(--parsable --job-name="${flags[name]}"
    --nodes="${flags[nodes]}" --ntasks-per-node="${flags[gpus_per_node]}"
    --gpus-per-node="${flags[gpus_per_node]}" --cpus-per-task="${flags[cpus_per_task]}"
    --time="${flags[time]}" --chdir="$ROOT" --output="$(output_file)"
    --export="ALL,BERT_JAX_PYTHON=$(python),BERT_JAX_WORKDIR=${flags[workdir]}")
  job=$(queued_job)
  if [[ -n $job ]]; then
    say "${flags[name]} is in the queue already: job ${job% *}"
    return
  fi
  [[ -z ${flags[partition]} ]] || options+=(--partition="${flags[partition]}")
  [[ -z ${flags[account]} ]] || options+=(--account="${flags[account]}")
  mapfile -t arguments < <(train_flags)
  load_modules
  run mkdir -p "${flags[workdir]}"
  job=$(query 1 sbatch "${options[@]}" "$ROOT/launch/slurm.sbatch" "${arguments[@]}")
  [[ $job =~ ^[0-9]+ ]] || { say "sbatch answered '$job'" && return 1; }
  say "job ${BASH_REMATCH[0]}"
  [[ -n $dry_run ]] || echo "${BASH_REMATCH[0]}" >"${flags[workdir]}/slurm_job"
}

# job_end JOB: `STATE CODE`, as accounting knows it.
job_end() {
  query 'COMPLETED|0:0' sacct --jobs="$1" --allocations --noheader --parsable2 \
    --format=State,ExitCode | tail -n 1 | sed 's/^\([A-Z_]*\)[^|]*|\([0-9]*\):.*/\1 \2/'
}

await_end() {
  local answer state code job=1 misses=0 memory="${flags[workdir]}/slurm_job"
  if [[ -z $dry_run ]]; then
    [[ -e $memory ]] || usage_error "no job was submitted for --workdir=${flags[workdir]}"
    job=$(<"$memory")
  fi
  while :; do
    # Accounting is late at times.
    if ! answer=$(job_end "$job") || [[ -z $answer ]]; then
      ((++misses < BERT_JAX_MISSES)) || { say "accounting does not answer" && return 1; }
      sleep "$BERT_JAX_POLL"
      continue
    fi
    misses=0
    read -r state code <<<"$answer"
    case $state in
      PENDING | RUNNING | REQUEUED | SUSPENDED | RESIZING | COMPLETING | CONFIGURING) ;;
      NODE_FAIL | BOOT_FAIL | PREEMPTED | REVOKED | TIMEOUT)
        say "the job was ended before training could save: $state"
        return "$LOST"
        ;;
      COMPLETED | FAILED)
        # What the words about the code refer to.
        [[ $code == 0 ]] || tail --lines=30 "$(output_file)" >&2 || true
        say "training ended with $code: $(explain_code "$code")"
        return "$code"
        ;;
      *)
        say "the job ended as $state; train lets it go on"
        return 1
        ;;
    esac
    sleep "$BERT_JAX_POLL"
  done
}

show_status() {
  local step
  run squeue --me --name="${flags[name]}"
  step=$(newest_step)
  echo "newest checkpoint: ${step/#-1/none}"
}

show_logs() { run tail --lines=200 ${switches[follow]:+--follow} "$(output_file)"; }

# SIGINT to the batch script alone, which has training save, and then waits. A job that
# is still to begin, or to begin again, takes no signal and has nothing to save.
stop_job() { end_job --batch --signal=INT; }

end_job() {
  local job state
  read -r job state <<<"$(queued_job '1 RUNNING')"
  [[ $state != PENDING ]] || set --
  if [[ -z $job ]]; then
    say "${flags[name]} is not in the queue"
  else
    run scancel "$@" "$job"
  fi
}

run_all() {
  local step code newest steps=(install prepare train wait)
  [[ -z ${switches[skip_prepare]} ]] || steps=(install train wait)
  given_flags
  begin_tries "$(newest_step)"
  while :; do
    for step in "${steps[@]}"; do
      code=0
      subcommand "$step" || code=$?
      ((code == 0)) || break
    done
    ((code == LOST)) || return "$code"
    newest=$(newest_step)
    if ! may_try_again "$newest"; then
      say "lost $((BERT_JAX_MAX_STALLED + 1)) times in a row with no checkpoint newer" \
        "than ${newest/#-1/none}: stopped"
      return "$code"
    fi
    next_pause
    say "again from checkpoint ${newest/#-1/none} in $pause s"
    sleep "$pause"
    steps=(train wait)
  done
}

split_subcommand "$@"
parse_flags "${rest[@]}"
needs sbatch
check_name name bert-base
check nodes '[1-9][0-9]{0,3}' 2
check gpus_per_node '[1-9][0-9]?' 8
check cpus_per_task '[1-9][0-9]{0,2}' 8
check prepare_cpus '[1-9][0-9]{0,2}' 16
check time '([0-9]+-)?[0-9]{1,2}:[0-9]{2}:[0-9]{2}' 24:00:00
check_if_given partition '[A-Za-z0-9][A-Za-z0-9_-]*' gpu
check_if_given prepare_partition '[A-Za-z0-9][A-Za-z0-9_-]*' cpu
check_if_given account '[A-Za-z0-9][A-Za-z0-9_-]*' my-group
check_if_given modules '[A-Za-z0-9][A-Za-z0-9_.,/+-]*' cuda/13.0,python/3.12
check_config
check_path workdir "$ABSOLUTE_PATH" /shared/runs/bert-base
check_path corpus_dir "$ABSOLUTE_PATH" /shared/corpora/base
check_train_args
check_backoff
check_number BERT_JAX_POLL
check_number BERT_JAX_MISSES
check_training $((flags[nodes] * flags[gpus_per_node]))
case $command in
  install) install_package ;;
  prepare) prepare ;;
  train) train ;;
  wait) await_end ;;
  status) show_status ;;
  logs) show_logs ;;
  stop) stop_job ;;
  delete) end_job ;;
  run) run_all ;;
esac
