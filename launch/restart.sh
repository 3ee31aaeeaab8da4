#!/usr/bin/env bash
# Runs a training command and starts it again when it asks for it.
#
#   launch/restart.sh COMMAND... --workdir=DIR ...
#
# Exit codes 75 (interrupted, saved) and 76 (hang, lost peer) are followed by a restart,
# after 5 s, then 10 s, ... up to 5 min, each shortened by chance to no less than half. A
# newer checkpoint in DIR/checkpoints resets that; three restarts in a row without one
# end the loop. Every other code ends it at once. The exit code is the command's.
#
# SIGTERM and SIGINT are passed on; then the command's end is waited for, and it is not
# started again. SIGHUP, of a terminal that is gone, is passed on as SIGTERM: what writes to
# such a terminal fails, sooner or later. Under nohup it is ignored, and all goes on.
#
# Environment: BERT_JAX_MAX_STALLED=3, BERT_JAX_FIRST_DELAY=5, BERT_JAX_MAX_DELAY=300.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=launch/backoff.sh
. "$here/backoff.sh"
# shellcheck source=launch/exit_codes.sh
. "$here/exit_codes.sh"

# A terminal that is gone is no reason to stop.
say() { printf 'restart: %s\n' "$*" >&2 || true; }

child=""
signal=""
on_signal() {
  signal=$1
  [[ -z $child ]] || kill -s "$1" "$child" 2>/dev/null || true
}

# start COMMAND...: in the background, as `child`. With job control, because without it
# bash starts background commands of a script deaf to SIGINT.
start() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  [[ -z $signal ]] || on_signal "$signal" # one in between did not reach the child
}

# Waits for `child`, through signals, and sets `code`.
await_child() {
  while :; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  # A signal may have ended the wait rather than the child: bash keeps the child's code.
  code=0
  wait "$child" || code=$?
  child=""
}

find_workdir() {
  local argument
  workdir=""
  while (($#)); do
    argument=$1
    shift
    case $argument in
      --workdir=*) workdir=${argument#--workdir=} ;;
      --workdir) workdir=${1-} ;;
    esac
  done
  if [[ -z $workdir ]]; then
    say "no --workdir=DIR in the command: its checkpoints tell progress from a crash loop"
    exit 2
  fi
}

newest_step() {
  { ls -1 "$workdir/checkpoints" 2>/dev/null || true; } | highest_step
}

case ${1-} in
  "" | --help)
    sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
    [[ ${1-} == --help ]] && exit 0 || exit 2
    ;;
esac
check_backoff
find_workdir "$@"
trap 'on_signal TERM' TERM HUP
trap 'on_signal INT' INT

begin_tries "$(newest_step)"
while :; do
  start "$@"
  await_child
  if ! wants_restart "$code"; then
    say "exit code $code: $(explain_code "$code")"
    exit "$code"
  fi
  if [[ -n $signal ]]; then
    say "exit code $code after SIG$signal, so not started again; the same command goes on"
    exit "$code"
  fi
  step=$(newest_step)
  if ! may_try_again "$step"; then
    say "exit code $code, and $BERT_JAX_MAX_STALLED restarts in a row brought no" \
      "checkpoint newer than ${step/#-1/none}: stopped; look at the messages above"
    exit "$code"
  fi
  next_pause
  say "exit code $code: $(explain_code "$code"); newest checkpoint ${step/#-1/none}," \
    "again in $pause s"
  last=$code
  start sleep "$pause"
  await_child
  if [[ -n $signal ]]; then
    say "SIG$signal while waiting: not started again"
    exit "$last"
  fi
done
