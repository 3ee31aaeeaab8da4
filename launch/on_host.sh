#!/usr/bin/env bash
# What the launchers call on a TPU host, in the copy of this repository that they made.
#
#   launch/on_host.sh install BUCKET        gcsfuse, Python, this package, the mount
#   launch/on_host.sh start UNIT COMMAND... a command that outlives the connection
#   launch/on_host.sh state UNIT            running | ended CODE | stopped | absent
#   launch/on_host.sh log [follow]          the last 200 lines of all units
#   launch/on_host.sh last_words UNIT CODE  `HOSTNAME| LINE`, its last 30 lines, if it
#                                           ended with CODE
#   launch/on_host.sh save_log DIR          all lines of all units, into DIR/HOSTNAME.txt
#   launch/on_host.sh stop UNIT             SIGTERM: training saves; its state is stopped
#   launch/on_host.sh mount BUCKET          the mount alone
#
# Commands and the mount are systemd units. A host that is shut down, preempted ones
# too, stops units in reverse order: training gets SIGTERM while the bucket is still
# mounted. UNIT and the mount's place are the launchers' (see below).
#
# Written for Ubuntu 22.04 (systemd 249), gcsfuse 3, uv 0.13.9.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MOUNT=/mnt/bert_jax
readonly MOUNT_UNIT=bert-jax-mount
readonly PYTHON=3.12
readonly UV=0.13.9
: "${BERT_JAX_MOUNT_SECONDS:=30}"

# What was stopped on purpose is told apart from what was stopped with its machine.
stopped_mark() { echo "$HOME/.$1.stopped"; }

say() { printf 'on_host: %s\n' "$*" >&2; }

install_gcsfuse() {
  command -v gcsfuse >/dev/null && return
  local key=/usr/share/keyrings/cloud.google.asc
  curl -fsSL https://packages.cloud.google.com/apt/doc/apt-key.gpg |
    sudo tee "$key" >/dev/null
  echo "deb [signed-by=$key] https://packages.cloud.google.com/apt" \
    "gcsfuse-$(lsb_release -cs) main" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
  # A new machine may still hold apt's lock for its own first updates.
  sudo apt-get -o DPkg::Lock::Timeout=300 update -q
  sudo apt-get -o DPkg::Lock::Timeout=300 install -yq gcsfuse
}

# TPU images have Python 3.10; bert_jax needs 3.11 or newer.
install_python() {
  if ! command -v "$HOME/.local/bin/uv" >/dev/null; then
    command -v pip3 >/dev/null ||
      sudo apt-get -o DPkg::Lock::Timeout=300 install -yq python3-pip
    pip3 install --quiet --user "uv==$UV"
  fi
  [[ -x .venv/bin/python ]] || "$HOME/.local/bin/uv" venv --quiet --python "$PYTHON" .venv
  "$HOME/.local/bin/uv" pip install --quiet --python .venv/bin/python -e '.[tpu]'
}

# No metadata cache: what one host wrote, the others must see. Folders of a bucket with
# hierarchical namespace are real and renamed in one step, as checkpoints need it.
mount_bucket() {
  mountpoint -q "$MOUNT" && return
  sudo mkdir -p "$MOUNT"
  sudo systemctl reset-failed "$MOUNT_UNIT" 2>/dev/null || true
  sudo systemd-run --quiet --unit="$MOUNT_UNIT" \
    --property=After=network-online.target \
    -- gcsfuse --foreground -o allow_other --uid="$(id -u)" --gid="$(id -g)" \
    --file-mode=640 --dir-mode=750 --metadata-cache-ttl-secs=0 \
    --metadata-cache-negative-ttl-secs=0 --kernel-list-cache-ttl-secs=0 "$1" "$MOUNT"
  local try
  for ((try = 0; try < BERT_JAX_MOUNT_SECONDS * 5; try++)); do
    mountpoint -q "$MOUNT" && return
    sleep 0.2
  done
  say "gs://$1 is not mounted: sudo journalctl -u $MOUNT_UNIT tells why"
  return 1
}

state() {
  local key value loaded="" active="" sub="" how="" status=""
  while IFS='=' read -r key value; do
    case $key in
      LoadState) loaded=$value ;;
      ActiveState) active=$value ;;
      SubState) sub=$value ;;
      ExecMainCode) how=$value ;;
      ExecMainStatus) status=$value ;;
    esac
  done < <(systemctl show "$1" -p LoadState -p ActiveState -p SubState \
    -p ExecMainCode -p ExecMainStatus)
  case $loaded/$active/$sub in
    not-found/*) echo absent ;;
    */failed/* | */active/exited)
      # ExecMainCode 1 is an exit; 2 and 3 are the end by a signal, ExecMainStatus.
      [[ $how == 1 ]] || status=$((128 + status))
      if [[ -e $(stopped_mark "$1") ]]; then echo stopped; else echo "ended $status"; fi
      ;;
    */inactive/*) echo absent ;;
    *) echo running ;;
  esac
}

start() {
  local unit=$1
  shift
  if [[ $(state "$unit") == running ]]; then
    say "$unit is running already"
    return
  fi
  # systemd wants a command by its full path.
  [[ $1 != */* || $1 == /* ]] || set -- "$PWD/$1" "${@:2}"
  sudo systemctl stop "$unit" 2>/dev/null || true
  sudo systemctl reset-failed "$unit" 2>/dev/null || true
  rm -f "$(stopped_mark "$unit")"
  # SIGTERM goes to the command alone, which passes it on; after two minutes all of the
  # unit is killed. The TPU's driver wants memory locked. A unit that has ended stays, so
  # that its exit code can be asked for.
  sudo systemd-run --quiet --unit="$unit" --remain-after-exit \
    --uid="$(id -u)" --gid="$(id -g)" --working-directory="$PWD" \
    --property=KillMode=mixed --property=TimeoutStopSec=120 \
    --property=LimitMEMLOCK=infinity \
    --property="After=network-online.target $MOUNT_UNIT.service" \
    -- "$@"
}

# log_of UNIT OPTION...
log_of() { sudo journalctl --quiet --no-pager --output=cat --unit="$1" "${@:2}"; }

# What was prepared and what was trained, in the order of time.
log_of_all() { log_of bert-jax-prepare --unit=bert-jax-train "$@"; }

last_words() {
  [[ $(state "$1") == "ended $2" ]] || return 0
  log_of "$1" --lines=30 | sed "s/^/$(hostname)| /"
}

action=${1-}
shift || true
case $action in
  install)
    install_gcsfuse
    install_python
    mount_bucket "$1"
    ;;
  mount) mount_bucket "$1" ;;
  start) start "$@" ;;
  state) state "$1" ;;
  log)
    if [[ ${1-} == follow ]]; then
      log_of_all --follow
    else
      log_of_all --lines=200
    fi
    ;;
  last_words) last_words "$1" "$2" ;;
  save_log)
    mkdir -p "$1"
    log_of_all >"$1/$(hostname).txt"
    ;;
  stop)
    touch "$(stopped_mark "$1")"
    sudo systemctl stop "$1"
    ;;
  *)
    sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
    [[ $action == --help ]] || exit 2
    ;;
esac
