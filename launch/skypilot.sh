#!/usr/bin/env bash
# A run on a Cloud TPU slice that SkyPilot finds, in any zone, and finds again after a
# preemption (launch/skypilot.yaml). It asks for Spot unless --on_demand is given.
#
#   launch/skypilot.sh SUBCOMMAND FLAGS [-- FLAGS OF bert_jax.train]
#
#   train    submits the job, unless it is there already: machines, installation, corpus
#            and training are SkyPilot's
#   wait     follows the job until it ends, also where its log breaks off; the exit code
#            is SkyPilot's: 100 where the job failed, 103 where it was cancelled
#   status   SkyPilot's jobs, the newest checkpoint
#   logs     the job's output; --follow goes on
#   collect  brings metrics, curves and config here; --checkpoints all of it
#   delete   cancels the job: its machines are deleted, and their costs end. SkyPilot's
#            controller, a small machine, stays; `sky down` ends that
#   run      train, wait, collect, delete
#
#   --name=bert-base
#   --type=tpu-v5litepod-16 accelerator, in SkyPilot's words
#   --infra=gcp/us-central1 where; gcp alone is anywhere
#   --bucket=my-bert-bucket by launch/service_account.sh
#   --config=configs/base.py
#   --workdir=runs/NAME --corpus_dir=corpora/CONFIG    in the bucket; these if left out
#   --collect_to=runs/NAME  here
#   --on_demand             not Spot, which is cheaper and may be taken away at any time
#   --skip_prepare          the corpus is in the bucket already
#   --dry_run               prints every command instead, ready to paste
#
# SkyPilot 0.14.1 gives its machines an account of its own making, skypilot-v1@PROJECT,
# and offers no other: see README.md. Checked against its command line.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=launch/backoff.sh
. "$ROOT/launch/backoff.sh"
# shellcheck source=launch/bucket.sh
. "$ROOT/launch/bucket.sh"

: "${BERT_JAX_POLL:=30}"   # seconds until a log that broke off is followed again
: "${BERT_JAX_MISSES:=10}" # unanswered questions in a row, then it is given up

readonly UNANSWERED=72 # our own code: SkyPilot does not say whether the job is there
readonly SUBCOMMANDS="train wait status logs collect delete run"

declare -A flags=(
  [name]="" [type]="" [infra]=gcp [bucket]="" [config]="" [workdir]="" [corpus_dir]=""
  [collect_to]=""
)
declare -A switches=([on_demand]="" [skip_prepare]="" [follow]="" [checkpoints]="")

# Prints `there` while a job of this name has not ended: SkyPilot would take a second one,
# to train in the same workdir. Where its controller was never started, or has stopped for
# want of jobs, the queue is an error that says so.
unfinished() {
  local jobs
  jobs=$(query "" sky jobs queue --skip-finished --all --output=json 2>&1) || {
    [[ $jobs == *"No in-progress managed jobs"* ]] && return
    say "$jobs"
    return 1
  }
  [[ $jobs != *"\"job_name\": \"${flags[name]}\""* ]] || echo there
}

train() {
  local there
  there=$(unfinished) || return
  if [[ -n $there ]]; then
    say "${flags[name]} is there already and has not ended"
  else
    submit
  fi
}

submit() {
  local quoted="" options=(--name="${flags[name]}" --gpus="${flags[type]}"
    --infra="${flags[infra]}" --workdir="$ROOT"
    # Not a copy of your own credentials: the machines' account.
    --config=gcp.remote_identity=SERVICE_ACCOUNT
    --env="BERT_JAX_BUCKET=${flags[bucket]}" --env="BERT_JAX_CONFIG=${flags[config]}"
    --env="BERT_JAX_WORKDIR=$MOUNT/${flags[workdir]}"
    --env="BERT_JAX_CORPUS_DIR=$MOUNT/${flags[corpus_dir]}")
  if [[ -n ${switches[on_demand]} ]]; then
    options+=(--no-use-spot)
  else
    options+=(--use-spot)
  fi
  [[ -z ${switches[skip_prepare]} ]] || options+=(--env=BERT_JAX_PREPARE=no)
  ((${#train_args[@]} == 0)) || printf -v quoted '%q ' "${train_args[@]}"
  run sky jobs launch "${options[@]}" --env="BERT_JAX_ARGUMENTS=${quoted% }" \
    --detach-run --yes "$ROOT/launch/skypilot.yaml"
}

# The status of the newest job of this name, nothing where SkyPilot knows of none. Asking
# wakes the controller, which stops for want of jobs. A record's fields are a line each.
job_status() {
  local jobs
  jobs=$(query "[]" sky jobs queue --refresh --all --output=json 2>&1) || {
    [[ $jobs == *"No in-progress managed jobs"* ]] && return
    say "$jobs"
    return 1
  }
  awk -F '"' -v wanted="${flags[name]}" '
    /^    "job_id"/ {id = substr($3, 3) + 0}
    /^    "job_name"/ {name = $4}
    /^    "status"/ {status = $4}
    /^  }/ {if (name == wanted && id >= newest) {newest = id; answer = status}}
    END {print answer}' <<<"$jobs"
}

# The logs' exit code is 0 only where the job ended well. Any other may be that of a log
# that broke off: then the job's status decides, whose codes are those of SkyPilot's logs.
await_end() {
  local code status misses=0
  while :; do
    code=0
    run sky jobs logs --name="${flags[name]}" --follow || code=$?
    ((code != 0)) || return 0
    if status=$(job_status); then
      misses=0
    else
      ((++misses < BERT_JAX_MISSES)) || break
      status=unknown
    fi
    case $status in
      "") return "$code" ;;
      SUCCEEDED) say "${flags[name]} succeeded; its log had broken off" && return 0 ;;
      CANCELLED) return 103 ;;
      FAILED*) say "${flags[name]}: $status" && return 100 ;;
    esac
    say "the log of ${flags[name]} broke off with $code: followed again in $BERT_JAX_POLL s"
    sleep "$BERT_JAX_POLL"
  done
  say "SkyPilot's queue did not answer $misses times in a row: ${flags[name]} may go on"
  return "$UNANSWERED"
}

show_status() {
  local step
  run sky jobs queue
  step=$(newest_step)
  echo "newest checkpoint: ${step/#-1/none}"
}

show_logs() {
  local follow=--no-follow
  [[ -z ${switches[follow]} ]] || follow=--follow
  run sky jobs logs --name="${flags[name]}" "$follow"
}

cancel() { run sky jobs cancel --name="${flags[name]}" --yes; }

run_all() {
  local code=0
  given_flags
  subcommand train || return
  trap 'still_there; exit 130' INT
  trap 'still_there; exit 143' TERM
  subcommand wait || code=$?
  if ((code == UNANSWERED)); then
    still_there
    return "$code"
  fi
  subcommand collect || say "not everything was collected; it is in the bucket"
  subcommand delete || still_there
  return "$code"
}

split_subcommand "$@"
parse_flags "${rest[@]}"
needs sky
check_name name bert-base
check_tpu_type tpu-
check infra 'gcp(/[a-z0-9*-]+){0,2}' gcp/us-central1
check_bucket
check_run_flags
check_number BERT_JAX_POLL
check_number BERT_JAX_MISSES
check_training "$(devices_of_type tpu-)"
case $command in
  train) train ;;
  wait) await_end ;;
  status) show_status ;;
  logs) show_logs ;;
  collect) collect_run ;;
  delete) cancel ;;
  run) run_all ;;
esac
