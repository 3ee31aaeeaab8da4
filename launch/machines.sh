# shellcheck shell=bash disable=SC2034,SC2154  # names are shared
# The life of a run on TPU machines of our own, whatever made them: create, install,
# prepare, train, wait, collect, delete, and all of it again after a preemption. Sourced
# by queued_resource.sh and instance_group.sh, which define
#
#   create_machines   asks for them          delete_machines  gives them back
#   show_machines     prints what the cloud says of them
#   machine_state     one word: absent waiting ready lost refused unknown
#   copy_to_hosts FILE NAME                  to the home directory of every host
#   on_hosts all|first COMMAND VIA...        runs `VIA... gcloud ... COMMAND` for each;
#                                            VIA is `run` or `query ANSWER`. The first
#                                            is process 0, of the first slice

# shellcheck source=launch/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=launch/backoff.sh
. "$ROOT/launch/backoff.sh"
# shellcheck source=launch/exit_codes.sh
. "$ROOT/launch/exit_codes.sh"
# shellcheck source=launch/bucket.sh
. "$ROOT/launch/bucket.sh"

: "${BERT_JAX_POLL:=30}"   # seconds between two questions to the cloud
: "${BERT_JAX_MISSES:=10}" # unanswered questions in a row, then the hosts are lost

readonly LOST=69      # our own code: the machines are gone, or never came
readonly FORGOTTEN=71 # our own code: hosts are there, but the command is to start again
readonly UNANSWERED=72 # our own code: the cloud does not say what is there
readonly SUBCOMMANDS="create install prepare train wait status logs stop collect delete \
run"

declare -A flags=(
  [name]="" [project]="" [zone]="" [bucket]="" [service_account]="" [config]=""
  [workdir]="" [corpus_dir]="" [network]="" [subnetwork]="" [collect_to]=""
  [give_up_after]=""
)
declare -A switches=(
  [spot]="" [external_ips]="" [skip_prepare]="" [keep]="" [follow]="" [checkpoints]=""
)

# Parses and checks what both kinds of machines have in common.
read_common_flags() {
  parse_flags "$@"
  needs gcloud
  check_name name bert-base
  check_project
  check_zone
  check_bucket
  check_service_account
  check_run_flags
  check_if_given network "$NAME_FORM" default
  check_if_given subnetwork "$NAME_FORM" default
  check_if_given give_up_after '[1-9][0-9]*[smhd]' 6h
  check_backoff
  check_number BERT_JAX_POLL
  check_number BERT_JAX_MISSES
  # Hosts without a public address are reached through Identity-Aware Proxy.
  through=(--tunnel-through-iap)
  [[ -z ${switches[external_ips]} ]] || through=()
}

# host_command WORDS...: one string for a shell on the host, in the copy of the clone.
host_command() {
  local words
  printf -v words '%q ' "$@"
  printf 'cd bert_jax && %s' "${words% }"
}

# state_after_error MESSAGE: only one error says that there is nothing.
state_after_error() {
  if [[ $1 == *NOT_FOUND* || $1 == *"was not found"* ]]; then
    echo absent
  else
    say "$1"
    if [[ $1 == *PERMISSION_DENIED* || $1 == *UNAUTHENTICATED* ]]; then
      echo refused
    else
      echo unknown
    fi
  fi
}

# As machine_state, asked again where there was no answer.
answered_state() {
  local state misses=0
  while :; do
    state=$(machine_state)
    [[ $state == unknown ]] || break
    ((++misses < BERT_JAX_MISSES)) || return
    sleep "$BERT_JAX_POLL"
  done
  [[ $state != refused ]] || return
  echo "$state"
}

# There while the machines that this clone made were never told to train: of those, no
# answer means a missing firewall rule, not training.
untrained_mark() { echo "$ROOT/runs/launch/${flags[name]}.untrained"; }

make_machines() {
  run mkdir -p "$ROOT/runs/launch"
  run touch "$(untrained_mark)"
  create_machines
}

create() {
  local state
  state=$(answered_state) || return "$UNANSWERED"
  case $state in
    lost)
      say "${flags[name]} was lost: it is deleted and made again"
      delete_machines
      make_machines
      ;;
    absent) make_machines ;;
    *) say "${flags[name]} is there already: $state" ;;
  esac
  await_machines
}

in_seconds() {
  local unit=${1: -1}
  declare -A seconds=([s]=1 [m]=60 [h]=3600 [d]=86400)
  echo $((${1%?} * ${seconds[$unit]}))
}

await_machines() {
  local state try misses=0 deadline
  deadline=$((SECONDS + $(in_seconds "${flags[give_up_after]:-10000d}")))
  while :; do
    state=$(machine_state ready)
    case $state in
      ready) break ;;
      unknown | refused) ((++misses < BERT_JAX_MISSES)) || return "$UNANSWERED" ;;
      lost | absent)
        say "${flags[name]} did not come up: $state"
        return "$LOST"
        ;;
      *) misses=0 ;;
    esac
    if ((SECONDS >= deadline)); then
      say "${flags[name]} did not come up within ${flags[give_up_after]}"
      return "$LOST"
    fi
    sleep "$BERT_JAX_POLL"
  done
  # Ready machines need a moment until they take connections.
  for ((try = 1; ; try++)); do
    on_hosts all true run && return
    ((try < BERT_JAX_MISSES)) || return "$LOST"
    sleep "$BERT_JAX_POLL"
  done
}

# The last commit goes to every host, not what is uncommitted. What is done already is not
# done again, so a mirror or a connection that fails for a moment costs no slice.
install_code() {
  local code archive="$ROOT/runs/launch/${flags[name]}.tar.gz"
  run mkdir -p "$ROOT/runs/launch"
  run git -C "$ROOT" archive --format=tar.gz --output="$archive" HEAD
  begin_tries 0
  until install_on_hosts "$archive"; do
    code=$?
    may_try_again 0 || return "$code"
    next_pause
    say "install failed with $code: again in $pause s"
    sleep "$pause"
  done
}

install_on_hosts() {
  copy_to_hosts "$1" bert_jax.tar.gz &&
    on_hosts all "mkdir -p bert_jax && tar -xzf bert_jax.tar.gz -C bert_jax" run &&
    on_hosts all "$(host_command launch/on_host.sh install "${flags[bucket]}")" run
}

prepare() {
  local arguments
  mapfile -t arguments < <(train_flags)
  on_hosts first "$(host_command launch/on_host.sh start bert-jax-prepare \
    .venv/bin/python -m bert_jax.prepare "${arguments[@]}")" run
  await_end first bert-jax-prepare
}

# On every host the same, at about the same time: they meet at the first one.
train() {
  local arguments
  mapfile -t arguments < <(train_flags)
  run rm -f "$(untrained_mark)"
  on_hosts all "$(host_command launch/on_host.sh mount "${flags[bucket]}")" run
  on_hosts all "$(host_command launch/on_host.sh start bert-jax-train \
    launch/restart.sh .venv/bin/python -m bert_jax.train \
    --workdir="$MOUNT/${flags[workdir]}" "${arguments[@]}")" run
}

readonly STATES='^(running|absent|stopped|ended [0-9]+)$'

# await_end all|first UNIT: returns the code with which the unit ended, LOST, FORGOTTEN.
# That it ended, every host must say: on_hosts fails where one did not answer.
await_end() {
  local answers all_answered state misses=0 code question
  question=$(host_command launch/on_host.sh state "$2")
  while :; do
    state=$(machine_state ready)
    if [[ $state == lost || $state == absent ]]; then
      say "${flags[name]} was taken away: $state"
      return "$LOST"
    fi
    answers=""
    all_answered=""
    if [[ $state == ready ]]; then
      answers=$(on_hosts "$1" "$question" query "ended 0" </dev/null |
        grep -E "$STATES") && all_answered=yes
    fi
    if grep -q '^absent$' <<<"$answers"; then
      say "a host was restarted, and $2 with it"
      return "$FORGOTTEN"
    elif grep -q '^running$' <<<"$answers"; then
      misses=0
    elif [[ -z $all_answered ]]; then
      if ((++misses >= BERT_JAX_MISSES)); then
        say "${flags[name]} was $state, and not every host answered, $misses times in a row"
        return "$LOST"
      fi
    else
      code=$(worst_code <<<"${answers//stopped/ended 75}")
      # A machine that is going down takes training along, and still answers a moment.
      if [[ $code == 75 && $answers != *stopped* ]]; then
        say "$2 was interrupted, and not by stop"
        return "$FORGOTTEN"
      fi
      ((code == 0 || code == 75)) || show_last_words "$1" "$2" "$code"
      say "$2 ended with $code: $(explain_code "$code")"
      return "$code"
    fi
    sleep "$BERT_JAX_POLL"
  done
}

# show_last_words all|first UNIT CODE: the end of the log of a host, one of those whose
# unit ended so. The machines go, and the reason would go with them.
show_last_words() {
  on_hosts "$1" "$(host_command launch/on_host.sh last_words "$2" "$3")" run </dev/null |
    awk -F '[|] ' '/[|] / && !host {host = $1} host && $1 == host' >&2 ||
    say "the log of $2 could not be read from every host"
}

show_status() {
  show_machines
  if [[ $(machine_state ready) == ready ]]; then
    on_hosts all "$(host_command launch/on_host.sh state bert-jax-train)" run
  fi
  local step
  step=$(newest_step)
  echo "newest checkpoint: ${step/#-1/none}"
}

show_logs() {
  on_hosts first "$(host_command launch/on_host.sh log ${switches[follow]:+follow})" run
}

# Training answers by saving and exit code 75; the machines stay, and go on costing.
stop_training() {
  on_hosts all "$(host_command launch/on_host.sh stop bert-jax-train)" run
}

collect() {
  if [[ $(machine_state ready) == ready ]]; then
    on_hosts all "$(host_command launch/on_host.sh save_log \
      "$MOUNT/${flags[workdir]}/logs")" run || say "the hosts' logs could not be saved"
  fi
  collect_run
}

# Each step is a process of its own: its first failed command ends it.
one_life() {
  local steps=(create install prepare train wait)
  [[ -z ${switches[skip_prepare]} ]] || steps=(create install train wait)
  for step in "${steps[@]}"; do
    code=0
    subcommand "$step" || code=$?
    ((code == 0)) || break
  done
  # A command that failed because its machine went away says so in many ways.
  if ((code != 0 && code != 2 && code != LOST && code != FORGOTTEN &&
    code != UNANSWERED)) && [[ $step != wait && $(machine_state) == lost ]]; then
    code=$LOST
  fi
}

# No answer is no "no": neither the cloud's nor that of all hosts. Where some say that
# training ended, it has ended: it needs all of them.
may_be_training() {
  local answers state
  state=$(machine_state ready)
  [[ $state != unknown && $state != refused ]] || return 0
  [[ $state == ready ]] || return
  answers=$(on_hosts all "$(host_command launch/on_host.sh state bert-jax-train)" \
    query "" </dev/null | grep -E "$STATES") || true
  [[ -n $answers || -e $(untrained_mark) ]] || return 0
  [[ $answers == *running* ]]
}

run_all() {
  given_flags
  check_bucket_and_account "${flags[bucket]}" "${flags[project]}" \
    "${flags[service_account]}"
  trap 'still_there; exit 130' INT
  trap 'still_there; exit 143' TERM
  local code step newest
  begin_tries "$(newest_step)"
  while :; do
    one_life
    ((code == LOST || code == FORGOTTEN)) || break
    newest=$(newest_step)
    if ! may_try_again "$newest"; then
      say "lost $((stalled + unknown)) times in a row with no checkpoint newer" \
        "than ${best_step/#-1/none}: stopped"
      break
    fi
    next_pause
    say "the run goes on from checkpoint ${newest/#-1/none} in $pause s"
    sleep "$pause"
  done
  # A command of a second call may fail while training goes on since the first one, and
  # hosts that do not answer for long may train all the same.
  if ((code == UNANSWERED)) || { ((code != 0)) && [[ $step != wait || $code == "$LOST" ]] &&
    may_be_training; }; then
    say "training may be going on there: nothing is deleted, and run goes on with it"
    still_there
    return "$code"
  fi
  bring_home_and_delete
  return "$code"
}

main_with() {
  case $1 in
    create)
      check_bucket_and_account "${flags[bucket]}" "${flags[project]}" \
        "${flags[service_account]}"
      create
      ;;
    install) install_code ;;
    prepare) prepare ;;
    train) train ;;
    wait) await_end all bert-jax-train ;;
    status) show_status ;;
    logs) show_logs ;;
    stop) stop_training ;;
    collect) collect ;;
    delete) delete_machines && run rm -f "$(untrained_mark)" ;;
    run) run_all ;;
  esac
}
