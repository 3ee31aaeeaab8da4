# shellcheck shell=bash disable=SC2034  # names are shared
# What every launcher shares: flags, names, dry run, logging. Sourced, never run.
#
# A launcher declares `declare -A flags` (name -> default, "" = none) and
# `declare -A switches` (name -> ""), then calls `parse_flags "$@"`.

if ((BASH_VERSINFO[0] < 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] < 4))); then
  echo "launch: needs bash 4.4 or newer (macOS: brew install bash)" >&2
  exit 2
fi

# A dry run prints here, also from inside $( ).
exec 3>&1

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT
# shellcheck source=launch/tpu_slices.sh
. "$ROOT/launch/tpu_slices.sh"
# shellcheck source=launch/check_training.sh
. "$ROOT/launch/check_training.sh"
train_args=()
dry_run=""

say() { printf 'launch: %s\n' "$*" >&2; }

usage_error() {
  say "$*"
  exit 2
}

# Prints the comment at the top of the launcher.
show_help() { sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# Fills `flags`, `switches`, `train_args`, `dry_run`. Only --name=value is a flag, as in
# the Python commands; what follows -- belongs to bert_jax.train.
# shellcheck disable=SC2004  # names, not numbers: both arrays are associative
parse_flags() {
  local argument name
  while (($#)); do
    argument=$1
    shift
    name=${argument#--}
    name=${name%%=*}
    case $argument in
      --)
        train_args=("$@")
        return
        ;;
      --help)
        show_help
        exit 0
        ;;
      --dry_run) dry_run=yes ;;
      --*=*)
        [[ -v flags[$name] ]] || usage_error "no flag --$name; --help lists them"
        flags[$name]=${argument#*=}
        ;;
      --*)
        [[ -v flags[$name] ]] && usage_error "--$name wants a value: --$name=..."
        [[ -v switches[$name] ]] || usage_error "no flag $argument; --help lists them"
        switches[$name]=yes
        ;;
      *) usage_error "what is '$argument'? flags are --name=value, see --help" ;;
    esac
  done
}

# The flags and switches that were given, as arguments again, into `given`.
given_flags() {
  local name
  given=()
  for name in "${!flags[@]}"; do
    [[ -n ${flags[$name]} ]] && given+=("--$name=${flags[$name]}")
  done
  for name in "${!switches[@]}"; do
    [[ -n ${switches[$name]} ]] && given+=("--$name")
  done
  [[ -n $dry_run ]] && given+=(--dry_run)
  ((${#train_args[@]} == 0)) || given+=(-- "${train_args[@]}")
}

# check FLAG REGEX EXAMPLE: the flag is given and all of it matches.
check() {
  local value=${flags[$1]}
  [[ -n $value ]] || usage_error "--$1 is needed, for example --$1=$3"
  [[ $value =~ ^($2)$ ]] || usage_error "--$1='$value' cannot be; for example --$1=$3" \
    "(all of it must match $2)"
}

# The same for a flag that may be left out.
check_if_given() { [[ -z ${flags[$1]} ]] || check "$@"; }

readonly NAME_FORM='[a-z][a-z0-9-]{0,61}'
check_name() {
  check "$1" "$NAME_FORM" "$2"
  [[ ${flags[$1]} != *- ]] || usage_error "--$1='${flags[$1]}' may not end in -"
}

# Rules of the clouds' own names, each from the documentation of its resource.
check_project() { check project '[a-z][a-z0-9-]{4,28}[a-z0-9]' my-project-123; }
check_zone() { check zone '[a-z]+-[a-z]+[0-9]+-[a-z]' us-central1-a; }
check_region() { check region '[a-z]+-[a-z]+[0-9]+' us-central1; }
check_bucket() { check bucket '[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]' my-bert-bucket; }
check_service_account() {
  check service_account \
    '[a-z][a-z0-9-]{4,28}[a-z0-9]@[a-z][a-z0-9-]+\.iam\.gserviceaccount\.com' \
    bert-train@my-project-123.iam.gserviceaccount.com
}

# check_path FLAG REGEX EXAMPLE: a path with no way out, and nothing a shell would read.
check_path() {
  check "$@"
  [[ ${flags[$1]} != *..* ]] || usage_error "--$1='${flags[$1]}' may not contain .."
}
readonly CONFIG_FORM='[A-Za-z0-9][A-Za-z0-9._/-]*\.py(:[A-Za-z0-9_,.=-]+)?'
check_config() {
  check_path config "$CONFIG_FORM" configs/base.py
  [[ -f $ROOT/${flags[config]%%:*} ]] || usage_error "--config='${flags[config]}' is" \
    "not in this clone; for example --config=configs/base.py"
}
readonly RELATIVE_PATH='[A-Za-z0-9][A-Za-z0-9._/-]*'
readonly ABSOLUTE_PATH='/[A-Za-z0-9][A-Za-z0-9._/-]*'

# needs COMMAND: it is installed, or nothing is run.
needs() {
  [[ -n $dry_run ]] || command -v "$1" >/dev/null ||
    usage_error "$1 is not installed, which does the work; --dry_run needs none"
}

# Command lines are visible to everyone on a machine, and in its logs.
check_train_args() {
  local argument i value
  local secret='^--([a-z_.]*[._])?(api_?key|password|secret|access_?token|hf_?token|token)='
  for i in "${!train_args[@]}"; do
    argument=${train_args[i]}
    [[ ! ${argument,,} =~ $secret ]] ||
      usage_error "${argument%%=*} looks like a secret; a command line is no place for it"
    [[ ! $argument =~ ://[^/@]*:[^/@]*@ ]] ||
      usage_error "${argument%%=*} has a password in it; a command line is no place for it"
    [[ $argument != *[[:cntrl:]]* ]] ||
      usage_error "an argument of train has a line break or a control character"
    case $argument in
      --config | --config=* | --workdir | --workdir=* | --config.data.corpus_dir | \
        --config.data.corpus_dir=*)
        usage_error "${argument%%=*} is set by the launcher: give it before --"
        ;;
      --config.*=* | --noconfig.*) ;;
      --config.*) # absl would take the next word, which is not checked here
        value=${train_args[i + 1]-VALUE}
        [[ $value != --* ]] || value=VALUE
        usage_error "$argument and its value are one word: write $argument=$value"
        ;;
      *)
        usage_error "${argument%%=*} is no flag of bert_jax.train:" \
          "--config.KEY=VALUE is what may follow --"
        ;;
    esac
  done
}

# Environment of the launchers themselves.
check_number() {
  [[ ${!1} =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "$1='${!1}' is not a number"
}

# Runs a command, or prints it so that it can be pasted into a shell.
run() {
  if [[ -n $dry_run ]]; then
    print_command "$@"
  else
    "$@"
  fi
}

# query ANSWER COMMAND...: the command's output; a dry run prints it, answers ANSWER.
query() {
  local assumed=$1
  shift
  if [[ -n $dry_run ]]; then
    print_command "$@"
    printf '%s\n' "$assumed"
  else
    "$@"
  fi
}

print_command() {
  local line
  printf -v line '%q ' "$@"
  printf '%s\n' "${line% }" >&3
}

# split_subcommand "$@": sets `command`, one of SUBCOMMANDS, and `rest`.
split_subcommand() {
  command=${1-}
  if [[ $command == --help ]]; then
    show_help
    exit 0
  fi
  [[ -n $command && " $SUBCOMMANDS " == *" $command "* ]] ||
    usage_error "say what: ${SUBCOMMANDS// /, }; --help tells more"
  rest=("${@:2}")
}

# A step of `run` is a process of its own: its first failed command ends it. Wants `given`.
subcommand() { "$0" "$1" "${given[@]}"; }

# The end of `run`, however training ended.
bring_home_and_delete() {
  if [[ -n ${switches[keep]} ]]; then
    still_there
  else
    subcommand collect || say "not everything was collected; it is in the bucket"
    subcommand delete || still_there
  fi
}

still_there() {
  say "${flags[name]} may still be there and cost money; this ends it:"
  say "  $0 delete ${given[*]@Q}"
}
