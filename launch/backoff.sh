# shellcheck shell=bash disable=SC2034  # names are shared
# When to try again, and when to stop trying: exponential back-off with jitter, and a
# limit on tries in a row that brought no newer checkpoint. Sourced, never run.

: "${BERT_JAX_MAX_STALLED:=3}"  # restarts in a row without a newer checkpoint
: "${BERT_JAX_FIRST_DELAY:=5}"  # seconds; doubles ...
: "${BERT_JAX_MAX_DELAY:=300}"  # ... up to this
readonly MOST_UNKNOWN=10 # tries in a row of which nobody can say what they brought

check_backoff() {
  local name
  for name in BERT_JAX_MAX_STALLED BERT_JAX_FIRST_DELAY BERT_JAX_MAX_DELAY; do
    [[ ${!name} =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
      { echo "launch: $name='${!name}' is not a number" >&2 && exit 2; }
  done
  [[ $BERT_JAX_MAX_STALLED =~ ^[0-9]+$ ]] ||
    { echo "launch: BERT_JAX_MAX_STALLED is a whole number" >&2 && exit 2; }
}

# highest_step: the highest all-digit line of the input, -1 if there is none. Checkpoints
# under way have names that are not all digits.
highest_step() {
  awk '/^[0-9]+$/ && $0 + 0 > best {best = $0 + 0} BEGIN {best = -1} END {print best}'
}

# begin_tries STEP: nothing was tried yet, the newest checkpoint is STEP, or `unknown`.
begin_tries() {
  best_step=${1/#unknown/-1}
  stalled=0
  unknown=0
  delay=$BERT_JAX_FIRST_DELAY
}

# may_try_again STEP: whether another try is allowed, now that the newest is STEP. An
# unknown step is no proof of a crash loop: such tries have a limit of their own.
may_try_again() {
  if [[ $1 == unknown ]]; then
    ((++unknown <= MOST_UNKNOWN))
    return
  fi
  unknown=0
  if (($1 > best_step)); then
    begin_tries "$1"
    return
  fi
  ((++stalled <= BERT_JAX_MAX_STALLED))
}

# next_pause: sets `pause`, between half and all of the delay, so that many machines that
# failed together do not come back together; then doubles the delay.
next_pause() {
  read -r pause delay < <(awk -v delay="$delay" -v most="$BERT_JAX_MAX_DELAY" \
    -v draw="$RANDOM" 'BEGIN {
      twice = delay * 2 < most ? delay * 2 : most
      printf "%.3f %.3f\n", delay * (0.5 + draw / 65534), twice
    }')
}
