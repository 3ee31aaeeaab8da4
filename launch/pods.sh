# shellcheck shell=bash disable=SC2034,SC2154  # names are shared
# What a cluster says of a run's pods: asked again and again, until they end. Sourced, after
# lib.sh and exit_codes.sh; the launcher has `kube`.

: "${BERT_JAX_POLL:=30}"        # seconds between two questions to the cluster
: "${BERT_JAX_MISSES:=10}"      # unanswered questions in a row, then nothing is known
: "${BERT_JAX_NOT_RUNNING:=30}" # answers in a row with too few pods, then none comes
: "${BERT_JAX_HEARTBEAT:=20}"   # answers between two lines on what the pods do

readonly UNANSWERED=72  # our own code: the cluster does not say what is there
readonly NOT_RUNNING=73 # our own code: pods did not begin to run

check_asking() {
  local number
  check_number BERT_JAX_POLL
  for number in BERT_JAX_MISSES BERT_JAX_NOT_RUNNING BERT_JAX_HEARTBEAT; do
    [[ ${!number} =~ ^[1-9][0-9]*$ ]] ||
      usage_error "$number='${!number}' is not a whole number from 1"
  done
}

# ask ANSWER KIND NAME FIELDS: what they hold | absent | unknown
ask() {
  local answer
  kube get "$2" "$3" --output=jsonpath="$4"
  if answer=$(query "$1" "${kubectl_line[@]}" 2>&1); then
    echo "${answer##*$'\n'}" # warnings may stand before it
  elif [[ $answer == *NotFound* ]]; then
    echo absent
  else
    say "${answer##*$'\n'}"
    echo unknown
  fi
}

# may_ask_again WHAT: no answer yet again, counted in the caller's `misses`.
may_ask_again() {
  ((++misses < BERT_JAX_MISSES)) && return
  say "the cluster did not answer $misses times in a row: $1 may be going on there," \
    "and goes on costing"
  return "$UNANSWERED"
}

# follow_pods WHAT SELECTOR: there was an answer; now and then says what the pods do. Ends
# with NOT_RUNNING where for so many answers none has run, or at first not all: they wait
# for each other. Counts in the caller's `misses`, `answers` and `idle`; `began` is set once
# all have run.
follow_pods() {
  local pods phases
  misses=0
  pods=$(list_pods "$2") || return 0
  phases=$(cut -d' ' -f2 <<<"$pods")
  if [[ $phases == *Running* && (-n $began || $phases != *Pending*) ]]; then
    began=yes idle=0
  elif [[ -n $began ]] && ! grep -qv Unschedulable <<<"$pods"; then
    idle=0 # nodes that were taken away cost nothing, and GKE brings them back
  else
    ((++idle))
  fi
  ((++answers % BERT_JAX_HEARTBEAT)) || say "$1 goes on, pods: $(count_pods <<<"$pods")"
  ((idle >= BERT_JAX_NOT_RUNNING)) || return 0
  say_why_they_wait "$1"
  return "$NOT_RUNNING"
}

# Of each pod its name, phase, and what it waits for.
list_pods() {
  local field fields='{.metadata.name} {.status.phase}'
  for field in 'conditions[?(@.type=="PodScheduled")]' \
    'initContainerStatuses[*].state.waiting' 'containerStatuses[*].state.waiting'; do
    fields+=" {.status.$field.reason} {.status.$field.message}"
  done
  kube get pods --selector="$1" --output=jsonpath="{range .items[*]}$fields{\"\\n\"}{end}"
  "${kubectl_line[@]}"
}

# count_pods: how many in each phase, and what the first of those that wait waits for.
count_pods() {
  awk 'NF {count[$2]++}
       $2 == "Pending" && first == "" {first = $0}
       END {for (phase in count) text = text ", " count[phase] " " phase
            if (text == "") text = ", none"
            if (first != "") text = text " (" first ")"
            print substr(text, 3)}'
}

# An image or bucket that is denied is told by events alone.
say_why_they_wait() {
  local waiting pod
  waiting=$(awk '$2 != "Running"' <<<"$pods")
  pod=${waiting%% *}
  say "pods of $1 do not run, asked $idle times, every $BERT_JAX_POLL s:"
  sed -n '1,16s/^/  /p' <<<"${waiting:-there is no pod}" >&2
  if [[ -n $pod ]]; then
    kube get events --field-selector="type=Warning,involvedObject.name=$pod" \
      --output=jsonpath='{range .items[*]}{.reason}: {.message}{"\n"}{end}'
    "${kubectl_line[@]}" | tail -n 5 | sed 's/^/  /' >&2 || true
  fi
  say "correct what these lines name and give $1 again; the node pools are paid for until" \
    "delete"
}

# end_code WHAT CONTAINER SELECTOR: the exit code of the pod that failed first, of those
# that are left, and the end of its log, which goes with the pod.
end_code() {
  local codes code pod
  local field=".status.containerStatuses[?(@.name==\"$2\")].state.terminated.exitCode"
  kube get pods --selector="$3" \
    --output=jsonpath="{range .items[*]}{$field} {.metadata.name}{\"\\n\"}{end}"
  codes=$("${kubectl_line[@]}" | grep '^[0-9]') || codes=""
  code=${codes:-1}
  code=$(worst_code <<<"ended ${code//$'\n'/$'\n'ended }")
  ((code > 0)) || code=1
  pod=$(awk -v code="$code" '$1 == code {print $2; exit}' <<<"$codes")
  if [[ -n $pod ]]; then
    show_end_of "$pod" "$2" "$pod"
  else
    say_where_logs_stay
  fi
  say "$1 ended with $code: $(explain_code "$code")"
  return "$code"
}

# show_end_of WHAT CONTAINER POD|SELECTOR
show_end_of() {
  kube logs --container="$2" --tail=30 "$3"
  say "the last lines of $1:"
  "${kubectl_line[@]}" >&2 || say "they cannot be read"
}

say_where_logs_stay() {
  local pods="resource.type=\"k8s_container\" resource.labels.pod_name:\"${flags[name]}-\""
  say "pods that are gone left their logs here:" \
    "gcloud logging read '$pods' --project=${flags[project]} --limit=100"
}
