#!/usr/bin/env bash
# Trains on a Cloud TPU VM or slice that is requested as a queued resource.
#
#   launch/queued_resource.sh ACTION --name=NAME --project=PROJECT --zone=ZONE [FLAGS]
#     [-- ARGUMENTS OF bert_jax.train]
#
#   create    requests the TPU and waits until it is active
#   install   copies the last commit to all workers and runs launch/tpu_host.sh there
#   train     starts launch/restart.sh python -m bert_jax.train ARGUMENTS on all workers
#   logs      follows the log of worker 0
#   stop      sends SIGTERM to the training, which saves a checkpoint; keeps the TPU
#   delete    deletes the TPU and its request, which ends their costs
#
#   --type=v5litepod-16  --runtime=v2-alpha-tpuv5-lite    for create
#   --create_flags="--spot --internal-ips"    additional flags for gcloud's create
#   --ssh_flags=--tunnel-through-iap          additional flags for gcloud's ssh and scp
#   --bucket=BUCKET                           for install; mounted at /mnt/bert_jax
#   --dry_run                                 prints the commands only
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "error: $*" >&2
  exit 2
}

declare -A flags=([runtime]=v2-alpha-tpuv5-lite [create_flags]="" [ssh_flags]="")
action=${1---help} dry_run=""
while shift; [[ -n ${1-} && $1 != -- ]]; do
  case $1 in
    --dry_run) dry_run=yes ;;
    --name=* | --project=* | --zone=* | --type=* | --runtime=* | --bucket=* | \
      --create_flags=* | --ssh_flags=*)
      name=${1%%=*}
      flags[${name#--}]=${1#*=}
      ;;
    *) fail "$1 is not a flag of $0; --help lists the flags, which are --name=VALUE" ;;
  esac
done
shift || true
if [[ $action == --help ]]; then
  exec sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"
fi

flag() { [[ -n ${flags[$1]-} ]] || fail "$action needs --$1=VALUE; --help explains it"; }
for name in name project zone; do flag $name; done
place=(--project="${flags[project]}" --zone="${flags[zone]}")
read -ra create_flags <<<"${flags[create_flags]}"
read -ra ssh_flags <<<"${flags[ssh_flags]}"

run() {
  if [[ -n $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}
queue() { run gcloud compute tpus queued-resources "$1" "${flags[name]}" "${@:2}"; }
on_workers() {
  queue ssh --node=all --worker="$1" --command="$2" "${place[@]}" "${ssh_flags[@]}"
}
state() { queue describe --format='value(state.state)' "${place[@]}"; }

case $action in
  create)
    flag type
    queue create --node-id="${flags[name]}" --accelerator-type="${flags[type]}" \
      --runtime-version="${flags[runtime]}" "${place[@]}" "${create_flags[@]}"
    until now=$(state) && [[ $now == ACTIVE || -n $dry_run ]]; do
      [[ $now != FAILED && $now != SUSPENDED ]] || fail "${flags[name]} is $now: delete it"
      sleep 30 # also after an error of gcloud, which prints it
    done
    [[ -z $dry_run ]] || echo "$now"
    ;;
  install)
    flag bucket
    archive=/tmp/bert_jax.tar.gz
    run git -C "$root" archive --format=tar.gz --output="$archive" HEAD
    run gcloud compute tpus queued-resources scp "$archive" \
      "${flags[name]}:bert_jax.tar.gz" --node=all --worker=all "${place[@]}" \
      "${ssh_flags[@]}"
    on_workers all "mkdir -p bert_jax && tar -xzf bert_jax.tar.gz -C bert_jax \
&& bert_jax/launch/tpu_host.sh ${flags[bucket]}"
    ;;
  train)
    [[ "$*" == *--workdir=/* ]] || fail "train needs -- --workdir=/mnt/bert_jax/DIR ..."
    on_workers all "cd bert_jax && sudo systemctl reset-failed bert-jax; \
sudo systemd-run --unit=bert-jax --uid=\$USER --working-directory=\$PWD \
--property=KillMode=mixed --property=LimitMEMLOCK=infinity \
--property=After=bert-jax-mount.service \$PWD/launch/restart.sh .venv/bin/python \
-m bert_jax.train ${*@Q}"
    ;;
  logs) on_workers 0 "sudo journalctl --output=cat --unit=bert-jax --lines=200 --follow" ;;
  stop) on_workers all "sudo systemctl stop bert-jax" ;;
  delete) queue delete --force --quiet "${place[@]}" ;;
  *) fail "$action is not an action: create, install, train, logs, stop or delete" ;;
esac
