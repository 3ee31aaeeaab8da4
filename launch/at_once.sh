# shellcheck shell=bash disable=SC2154  # names are shared
# The same command for several machines or node pools, side by side. Sourced, never run.

# A gcloud for each of 64 hosts is more than a laptop bears at once.
readonly AT_ONCE=8

# at_once NAMES COMMAND...: for each of NAMES, a line each, in the place of %NAME%, and for
# AT_ONCE of them at the same time; fails if one of them fails.
at_once() {
  local names=$1 name pid failed=0 pids=() most=$AT_ONCE
  shift
  [[ -z $dry_run ]] || most=1 # printed in order
  while read -r name; do
    if ((${#pids[@]} >= most)); then
      wait "${pids[0]}" || failed=1
      pids=("${pids[@]:1}")
    fi
    "${@//%NAME%/$name}" </dev/null &
    pids+=("$!")
  done <<<"$names"
  for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
  done
  return "$failed"
}
