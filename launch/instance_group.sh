#!/usr/bin/env bash
# A run on a TPU slice of Compute Engine instances: a managed instance group whose
# workload policy connects the hosts (TPU v5p, v6e and newer).
#
#   launch/instance_group.sh SUBCOMMAND FLAGS [-- FLAGS OF bert_jax.train]
#
#   create   makes policy, template and group, and waits until the hosts run
#   install  copies the last commit to every host, installs it, mounts the bucket
#   prepare  makes the corpus, on the first host (nothing to do if it is there)
#   train    starts training on every host and returns
#   wait     waits until it ends; the exit code is that of training
#   status   the hosts, training, the newest checkpoint
#   logs     the last lines of the first host, of prepare and train; --follow goes on
#   stop     training saves and ends; the hosts stay and cost
#   collect  brings metrics, curves, config and logs here; --checkpoints all of it
#   delete   deletes group, template and policy: their costs end. The bucket stays
#   run      all of that in order, with a new group after a preemption
#
#   --name=bert-base        of the group and of the run; at most 50 characters
#   --project=my-project-123 --zone=us-central1-a
#   --type=ct6e-standard-4t machine type of a host
#   --topology=4x4          chips of the slice; 2x2 of a 4t machine is one host
#   --bucket=my-bert-bucket
#   --service_account=bert-train@my-project-123.iam.gserviceaccount.com
#                           both by launch/service_account.sh
#   --config=configs/base.py
#   --workdir=runs/NAME --corpus_dir=corpora/CONFIG    in the bucket; these if left out
#   --collect_to=runs/NAME  here
#   --image_family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e
#                           of the project ubuntu-os-accelerator-images
#   --give_up_after=1h      on hosts that do not come up by then; run asks again
#   --network=default --subnetwork=default
#   --spot                  cheaper; may be taken away at any time
#   --reservation=my-reservation
#                           from this reservation of yours, not Spot; one that another
#                           project shares is projects/PROJECT/reservations/NAME
#   --external_ips          public addresses for the hosts. Without, the network needs
#                           Cloud NAT for pip and a firewall rule for ssh through IAP
#   --skip_prepare          run: the corpus is in the bucket already
#   --keep                  run: do not delete the hosts at the end
#   --dry_run               prints every command instead, ready to paste
#
# Checked against the commands of gcloud 528.0.0 and Google's pages on TPU instances in
# managed instance groups and on their reservations of 2026.
set -euo pipefail
# shellcheck source=launch/machines.sh
. "$(dirname "${BASH_SOURCE[0]}")/machines.sh"
# shellcheck source=launch/slice.sh
. "$ROOT/launch/slice.sh"
# shellcheck source=launch/at_once.sh
. "$ROOT/launch/at_once.sh"

flags[give_up_after]=1h
flags+=(
  [type]="" [topology]="" [reservation]=""
  [image_family]=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e
)

create_machines() {
  local template=() group=() in_region="projects/${flags[project]}/regions/$region"
  [[ -n ${switches[external_ips]} ]] || template+=(--no-address)
  [[ -z ${flags[network]} ]] || template+=(--network="${flags[network]}")
  # A template is of no region, so its subnetwork is named in full.
  [[ -z ${flags[subnetwork]} ]] ||
    template+=(--subnet="$in_region/subnetworks/${flags[subnetwork]}")
  [[ -z ${switches[spot]} ]] ||
    template+=(--provisioning-model=SPOT --instance-termination-action=STOP)
  [[ -z ${flags[reservation]} ]] || template+=(--provisioning-model=RESERVATION_BOUND
    --reservation-affinity=specific --reservation="${flags[reservation]}")
  run gcloud compute instance-templates create "$template_name" \
    --project="${flags[project]}" --machine-type="${flags[type]}" \
    --image-family="${flags[image_family]}" \
    --image-project=ubuntu-os-accelerator-images --boot-disk-size=200GB \
    --maintenance-policy=TERMINATE --service-account="${flags[service_account]}" \
    --scopes=https://www.googleapis.com/auth/cloud-platform --shielded-secure-boot \
    --metadata=enable-oslogin=TRUE --labels=made-by=bert-jax --quiet "${template[@]}"
  if ((hosts > 1)); then
    run gcloud compute resource-policies create workload-policy "$policy_name" \
      --project="${flags[project]}" --region="$region" --type=HIGH_THROUGHPUT \
      --accelerator-topology="${flags[topology]}" --quiet
    group+=(--workload-policy="$in_region/resourcePolicies/$policy_name")
  fi
  # A slice is one thing: a host repaired alone would not be part of it.
  run gcloud compute instance-groups managed create "${flags[name]}" "${place[@]}" \
    --template="$template_name" --size="$hosts" \
    --default-action-on-vm-failure=do-nothing --quiet "${group[@]}"
}

# Each of the three may be missing, when a run was stopped while it made them.
delete_machines() {
  local failed=0
  delete_if_there instance-groups managed delete "${flags[name]}" "${place[@]}" || failed=1
  delete_if_there instance-templates delete "$template_name" \
    --project="${flags[project]}" || failed=1
  ((hosts == 1)) || delete_if_there resource-policies delete "$policy_name" \
    --project="${flags[project]}" --region="$region" || failed=1
  return "$failed"
}

delete_if_there() {
  local message
  if [[ -n $dry_run ]]; then
    run gcloud compute "$@" --quiet
  elif ! message=$(gcloud compute "$@" --quiet 2>&1); then
    [[ $message == *"was not found"* ]] || { say "$message" && return 1; }
  fi
}

show_machines() {
  run gcloud compute instance-groups managed list-instances "${flags[name]}" "${place[@]}"
}

# list_instances FIELD [ANSWER OF A DRY RUN]
list_instances() {
  query "$2" gcloud compute instance-groups managed list-instances "${flags[name]}" \
    "${place[@]}" --format="value($1)"
}

# machine_state [ANSWER OF A DRY RUN]
machine_state() {
  local assumed=${1-absent} states state
  if [[ $assumed != absent ]]; then
    assumed=$(for ((state = 0; state < hosts; state++)); do echo RUNNING; done)
  fi
  if ! states=$(list_instances instanceStatus "$assumed" 2>&1); then
    state_after_error "$states"
    return
  fi
  if [[ $states == absent ]]; then
    echo absent
  elif grep -qE '^(STOPPING|STOPPED|TERMINATED|SUSPENDING|SUSPENDED|DELETING|REPAIRING)$' \
    <<<"$states"; then
    echo lost
  elif (($(grep -c '^RUNNING$' <<<"$states") == hosts)); then
    echo ready
  else
    echo waiting
  fi
}

# find_instances: sets `instances`, a line each, always in the same order.
find_instances() {
  instances=$(list_instances name "$assumed_instances" | sort)
  [[ -n $instances ]] || { say "${flags[name]} has no hosts" && return 1; }
}

copy_to_hosts() {
  find_instances || return
  at_once "$instances" run gcloud compute scp "$1" "%NAME%:$2" "${place[@]}" --quiet \
    "${through[@]}"
}

on_hosts() {
  find_instances || return
  [[ $1 == all ]] || instances=${instances%%$'\n'*}
  at_once "$instances" "${@:3}" gcloud compute ssh %NAME% "${place[@]}" \
    --command="$2" --quiet "${through[@]}"
}

split_subcommand "$@"
read_common_flags "${rest[@]}"
check name '[a-z][a-z0-9-]{0,48}[a-z0-9]' bert-base # -policy and the like are added
check_slice
check image_family '[a-z][a-z0-9-]+' ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e
check_if_given reservation "(projects/[a-z0-9-]+/reservations/)?$NAME_FORM" my-reservation
[[ -z ${flags[reservation]} || -z ${switches[spot]} ]] ||
  usage_error "--reservation and --spot are two kinds of capacity: give one of them"
[[ -z ${flags[reservation]} || ${flags[reservation]} == */* ]] ||
  flags[reservation]=projects/${flags[project]}/reservations/${flags[reservation]}
hosts=$(num_hosts)
check_training "$(devices_of_topology)"
region=${flags[zone]%-*}
template_name=${flags[name]}-template
policy_name=${flags[name]}-policy
place=(--project="${flags[project]}" --zone="${flags[zone]}")
assumed_instances=$(for ((i = 0; i < hosts; i++)); do echo "${flags[name]}-$i"; done)
main_with "$command"
