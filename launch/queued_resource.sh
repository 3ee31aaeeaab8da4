#!/usr/bin/env bash
# A run on Cloud TPU slices, asked for through the queue (TPU v2 to v6e).
#
#   launch/queued_resource.sh SUBCOMMAND FLAGS [-- FLAGS OF bert_jax.train]
#
#   create   asks for the TPU and waits until it is there
#   install  copies the last commit to every host, installs it, mounts the bucket
#   prepare  makes the corpus, on the first host (nothing to do if it is there)
#   train    starts training on every host and returns
#   wait     waits until it ends; the exit code is that of training
#   status   the TPU, the hosts, the newest checkpoint
#   logs     the last lines of the first host, of prepare and train; --follow goes on
#   stop     training saves and ends; the TPU stays and costs
#   collect  brings metrics, curves, config and logs here; --checkpoints all of it
#   delete   gives the TPU back: the costs of it end. The bucket stays
#   run      all of that in order, with a new TPU after a preemption
#
#   --name=bert-base        of the TPU and of the run; of several slices at most 60
#                           characters, and the TPUs are NAME-0, NAME-1, ...
#   --project=my-project-123 --zone=us-central1-a
#   --type=v5litepod-16     accelerator type; its hosts are used all
#   --slices=1              as many alike, v4 or newer, joined by the data centre's
#                           network (Multislice)
#   --bucket=my-bert-bucket
#   --service_account=bert-train@my-project-123.iam.gserviceaccount.com
#                           both by launch/service_account.sh
#   --config=configs/base.py
#   --workdir=runs/NAME --corpus_dir=corpora/CONFIG    in the bucket; these if left out
#   --collect_to=runs/NAME  here
#   --runtime=v2-alpha-tpuv5-lite  the TPU's software; chosen by the type if left out
#   --give_up_after=6h      leave the queue after that
#   --network=default --subnetwork=default
#   --spot                  cheaper; may be taken away at any time
#   --reserved              from a reservation of yours, not Spot
#   --external_ips          public addresses for the hosts. Without, the network needs
#                           Cloud NAT for pip and a firewall rule for ssh through IAP
#   --skip_prepare          run: the corpus is in the bucket already
#   --keep                  run: do not delete the TPU at the end
#   --dry_run               prints every command instead, ready to paste
#
# Checked against the commands of gcloud 528.0.0 and the TPU API v2's states.
set -euo pipefail
# shellcheck source=launch/machines.sh
. "$(dirname "${BASH_SOURCE[0]}")/machines.sh"

flags+=([type]="" [runtime]="" [slices]=1)
switches+=([reserved]="")

# Runtime versions by https://cloud.google.com/tpu/docs/runtimes.
runtime_of() {
  case $1 in
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

queue() {
  local verb=$1
  shift
  command_line=(gcloud compute tpus queued-resources "$verb" "$@"
    --project="${flags[project]}" --zone="${flags[zone]}")
}

create_machines() {
  local more=(--shielded-secure-boot) named=(--node-id="${flags[name]}")
  ((flags[slices] == 1)) ||
    named=(--node-count="${flags[slices]}" --node-prefix="${flags[name]}")
  [[ -n ${switches[external_ips]} ]] || more+=(--internal-ips)
  [[ -z ${switches[spot]} ]] || more+=(--spot)
  [[ -z ${switches[reserved]} ]] || more+=(--reserved)
  [[ -z ${flags[network]} ]] || more+=(--network="${flags[network]}")
  [[ -z ${flags[subnetwork]} ]] || more+=(--subnetwork="${flags[subnetwork]}")
  [[ -z ${flags[give_up_after]} ]] ||
    more+=(--valid-until-duration="${flags[give_up_after]}")
  queue create "${flags[name]}" "${named[@]}" \
    --accelerator-type="${flags[type]}" --runtime-version="${flags[runtime]}" \
    --service-account="${flags[service_account]}" \
    --scopes=https://www.googleapis.com/auth/cloud-platform \
    --labels=made-by=bert-jax --quiet "${more[@]}"
  run "${command_line[@]}"
}

delete_machines() {
  queue delete "${flags[name]}" --force --quiet # --force: the TPU with its request
  run "${command_line[@]}"
}

show_machines() {
  queue describe "${flags[name]}"
  run "${command_line[@]}"
}

# machine_state [ANSWER OF A DRY RUN]
machine_state() {
  local assumed=${1-absent} state
  queue describe "${flags[name]}" --format='value(state.state)'
  [[ $assumed == absent ]] || assumed=ACTIVE
  if ! state=$(query "$assumed" "${command_line[@]}" 2>&1); then
    state_after_error "$state"
    return
  fi
  case ${state##*$'\n'} in # warnings may stand before it
    ACTIVE) node_state ;;
    absent) echo absent ;;
    SUSPENDING | SUSPENDED | FAILED | DELETING) echo lost ;;
    *) echo waiting ;;
  esac
}

# A TPU may be gone while its request still says ACTIVE. One of several that is lost loses
# all: training needs every slice, and a new request brings them up together.
node_state() {
  local node state all=ready
  for node in "${nodes[@]}"; do
    state=$(query READY gcloud compute tpus tpu-vm describe "$node" \
      --project="${flags[project]}" --zone="${flags[zone]}" --format='value(state)') ||
      state=""
    case $state in
      "") all=unknown ;;
      READY) ;;
      PREEMPTED | TERMINATED | STOPPED | STOPPING | DELETING | HIDDEN)
        echo lost
        return
        ;;
      *) [[ $all == unknown ]] || all=waiting ;;
    esac
  done
  echo "$all"
}

# reach COMMAND...: gcloud leaves out a TPU that it cannot reach, warns, and ends well.
reach() {
  { "$@" 2>&1 >&4 | pass_on; } 4>&1
}

# Line by line, since an awk may hold lines back until the end. Fails where a TPU was left
# out.
pass_on() {
  local line left_out=0
  while IFS= read -r line || [[ -n $line ]]; do
    printf '%s\n' "$line" >&2
    [[ $line != *"Could not prepare all"* ]] || left_out=1
  done
  return "$left_out"
}

copy_to_hosts() {
  queue scp "$1" "${flags[name]}:$2" --node=all --worker=all --quiet "${through[@]}"
  reach run "${command_line[@]}"
}

on_hosts() {
  local which=all
  [[ $1 == all ]] || which=0
  queue ssh "${flags[name]}" --node="$which" --worker="$which" --command="$2" --quiet \
    "${through[@]}"
  reach "${@:3}" "${command_line[@]}"
}

split_subcommand "$@"
read_common_flags "${rest[@]}"
check_tpu_type ""
[[ -z ${switches[reserved]} || -z ${switches[spot]} ]] ||
  usage_error "--reserved and --spot are two kinds of capacity: give one of them"
check_slices
nodes=("${flags[name]}")
if ((flags[slices] > 1)); then
  [[ ${flags[type]} != v[23]-* ]] || usage_error "--slices=${flags[slices]}:" \
    "--type=${flags[type]} cannot be joined; v4 and newer can"
  check name '[a-z][a-z0-9-]{0,58}[a-z0-9]' bert-base # of 63 for a TPU, -98 is added
  mapfile -t nodes < <(slice_names)
fi
: "${flags[runtime]:=$(runtime_of "${flags[type]}")}"
check runtime '[a-z0-9][a-z0-9.-]*' v2-alpha-tpuv5-lite
check_training $(($(devices_of_type "") * flags[slices])) "${flags[slices]}"
main_with "$command"
