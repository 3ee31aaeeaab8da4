# shellcheck shell=bash disable=SC2034,SC2154  # names are shared
# A run whose files lie in a bucket that its hosts have mounted. Sourced, after lib.sh and
# backoff.sh.

readonly MOUNT=/mnt/bert_jax

# Checks --config, --workdir, --corpus_dir, --collect_to and what follows --.
check_run_flags() {
  check_config
  local stem=${flags[config]##*/}
  : "${flags[workdir]:=runs/${flags[name]}}"
  : "${flags[corpus_dir]:=corpora/${stem%%.py*}}"
  : "${flags[collect_to]:=runs/${flags[name]}}"
  check_path workdir "$RELATIVE_PATH" runs/bert-base
  check_path corpus_dir "$RELATIVE_PATH" corpora/base
  check_train_args
}

# What prepare and train are both told, a line each.
train_flags() {
  printf '%s\n' "--config=${flags[config]}" \
    "--config.data.corpus_dir=$MOUNT/${flags[corpus_dir]}"
  ((${#train_args[@]} == 0)) || printf '%s\n' "${train_args[@]}"
}

# error_line OUTPUT: the line of it that names the error.
error_line() { grep -m 1 '^ERROR' <<<"$1" || echo "${1##*$'\n'}"; }

# check_bucket_and_account BUCKET PROJECT ACCOUNT: that both are there and may be read,
# before anything is made that costs. ACCOUNT is the address, as --service_account. The
# steps of a `run`, processes of their own, inherit that it has looked.
check_bucket_and_account() {
  [[ -z ${BERT_JAX_LOOKED-} ]] || return 0
  must_be_there "--bucket=$1" gcloud storage buckets describe "gs://$1" \
    --format='value(name)'
  must_be_there "--service_account=$3" gcloud iam service-accounts describe "$3" \
    --project="$2" --format='value(email)'
  export BERT_JAX_LOOKED=yes
}

# must_be_there FLAG COMMAND...: where it says neither yes nor no, what comes will tell.
must_be_there() {
  local answer no='404|403|NOT_FOUND|not found|PERMISSION_DENIED|auth login|active account'
  answer=$(query "" "${@:2}" 2>&1) && return
  answer=$(error_line "$answer")
  [[ ! $answer =~ $no ]] || usage_error "$1 cannot be read: $answer;" \
    "launch/service_account.sh makes it"
  say "$1 was not looked at: $answer"
}

# The newest checkpoint, -1 where there is none, `unknown` where the bucket does not say.
newest_step() {
  local place="gs://${flags[bucket]}/${flags[workdir]}/checkpoints/" listing
  if ! listing=$(query "" gcloud storage ls "$place" 2>&1); then
    if [[ $listing != *"matched no objects"* ]]; then
      say "$place cannot be listed: $(error_line "$listing")"
      echo unknown
      return
    fi
    listing=""
  fi
  sed -n 's|.*/\([^/]*\)/$|\1|p' <<<"$listing" | highest_step
}

# Metrics, curves, config and logs; --checkpoints brings the weights as well.
collect_run() {
  local rest=(--exclude='^checkpoints/.*')
  [[ -z ${switches[checkpoints]} ]] || rest=()
  run mkdir -p "${flags[collect_to]}"
  run gcloud storage rsync --recursive "${rest[@]}" \
    "gs://${flags[bucket]}/${flags[workdir]}" "${flags[collect_to]}"
}
