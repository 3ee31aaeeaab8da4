# shellcheck shell=bash
# The exit codes of `python -m bert_jax.train`, and what to do. Sourced, never run.

# The run was interrupted or lost a peer: its last checkpoint is good, start it again.
wants_restart() { [[ $1 == 75 || $1 == 76 ]]; }

explain_code() {
  case $1 in
    0) echo "done" ;;
    2) echo "wrong flag or config: correct what the message above names" ;;
    75) echo "interrupted, and saved: the same command goes on" ;;
    76) echo "a step hung or another host was lost: the same command goes on" ;;
    77) echo "diverged: see metrics.jsonl; lower the learning rate, begin anew" ;;
    78) echo "data or checkpoint damaged: the message above names the file" ;;
    130 | 143) echo "stopped by a signal before anything could be saved" ;;
    137) echo "killed: out of memory, or by the machine" ;;
    *) echo "failed: see the traceback above" ;;
  esac
}

# worst_code: reads `ended CODE` for each host; of the codes, that of the first cause:
# the peers of a host that failed say 76.
worst_code() {
  awk '{rank = $2 == 0 ? 0 : $2 == 75 ? 1 : $2 == 76 ? 2 : 3}
       rank >= most {most = rank; code = $2} END {print code}'
}
