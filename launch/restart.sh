#!/usr/bin/env bash
# Runs a training command and restarts it after exit codes 75 and 76.
#
#   launch/restart.sh COMMAND... --workdir=DIR ...
#   launch/restart.sh --dry_run COMMAND... prints the command instead
#
# Waits 5 s before the first restart, then 10 s, ... up to 5 min, minus a random part of up
# to half. A newer checkpoint in DIR/checkpoints resets the wait (gcloud lists those of a
# bucket). After three consecutive restarts without one, the loop exits with 1. Every
# other exit code of the command ends the loop and is returned.
#
# SIGTERM, SIGINT and SIGHUP (as SIGTERM) are forwarded to the command, which saves and
# exits with 75; it is not restarted then. Under nohup, SIGHUP is ignored.
#
# Environment: BERT_JAX_FIRST_DELAY=5 (seconds).
set -euo pipefail

: "${BERT_JAX_FIRST_DELAY:=5}"
readonly MAX_DELAY=300 MAX_STALLED=3

log() { printf 'restart: %s\n' "$*" >&2 || true; } # a closed terminal is not an error

child=""
signal=""
forward() {
  signal=$1
  [[ -z $child ]] || kill -s "$1" "$child" 2>/dev/null || true
}

# Runs a command and sets `code`. With job control, since bash otherwise starts background
# commands with SIGINT ignored.
run() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  [[ -z $signal ]] || forward "$signal" # arrived before `child` was set
  # A trapped signal interrupts `wait`; a second `wait` returns the command's code.
  until wait "$child" || ! kill -0 "$child" 2>/dev/null; do :; done
  code=0
  wait "$child" || code=$?
  child=""
}

# Lists the checkpoints; only the names of complete ones are numbers.
checkpoints() {
  if [[ $workdir == *://* ]]; then
    gcloud storage ls "${workdir%/}/checkpoints/*/commit_success.txt" |
      awk -F/ '{print $(NF - 1)}'
  else
    ls -1 "$workdir/checkpoints"
  fi
}

# Prints the newest checkpoint's step, -1 without one.
newest_step() {
  { checkpoints 2>/dev/null || true; } |
    awk 'BEGIN {best = -1} /^[0-9]+$/ && $0 + 0 > best {best = $0 + 0} END {print best}'
}

dry_run=""
if [[ ${1-} == --dry_run ]]; then
  dry_run=yes
  shift
fi
if [[ ${1---help} == --help ]]; then
  sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
  exit $(($# ? 0 : 2))
fi
workdir=$(printf '%s\n' "$@" | sed -n 's/^--workdir=//p' | tail -n 1)
workdir=${workdir/#\~\//"${HOME-}/"} workdir=${workdir/#gcs:/gs:}
if [[ -z $workdir ]]; then
  log "error: the command has no --workdir=DIR, whose checkpoints show progress; add it"
  exit 2
fi
if [[ ! $BERT_JAX_FIRST_DELAY =~ ^[0-9]+(\.[0-9]+)?$ ]]; then
  log "error: BERT_JAX_FIRST_DELAY='$BERT_JAX_FIRST_DELAY' is not a number of seconds"
  exit 2
fi
if [[ -n $dry_run ]]; then
  printf '%q ' "$@"
  echo
  exit
fi
if [[ $workdir == *://* ]] && ! command -v gcloud >/dev/null; then
  log "without gcloud, checkpoints in $workdir are not seen: at most $MAX_STALLED restarts"
fi
trap 'forward TERM' TERM HUP
trap 'forward INT' INT

newest=$(newest_step)
delay=$BERT_JAX_FIRST_DELAY
stalled=0
while run "$@" && [[ $code == 75 || $code == 76 ]] && [[ -z $signal ]]; do
  step=$(newest_step)
  if ((step > newest)); then
    newest=$step stalled=0 delay=$BERT_JAX_FIRST_DELAY
  elif ((++stalled > MAX_STALLED)); then
    log "exit code $code; no checkpoint newer than step $newest after $MAX_STALLED restarts"
    exit 1
  fi
  pause=$(awk -v delay="$delay" -v r="$RANDOM" 'BEGIN {print delay * (0.5 + r / 65534)}')
  delay=$(awk -v d="$delay" -v m=$MAX_DELAY 'BEGIN {print d * 2 < m ? d * 2 : m}')
  log "exit code $code; newest checkpoint: step $newest; restarting in $pause s"
  last=$code
  run sleep "$pause" # ends early on a signal
  code=$last
  [[ -z $signal ]] || break
done
[[ -z $signal ]] || log "not restarted after SIG$signal; rerun the command to resume"
log "exit code $code"
exit "$code"
