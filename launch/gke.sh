#!/usr/bin/env bash
# A run on TPU slices of a Google Kubernetes Engine cluster, as a JobSet.
#
#   launch/gke.sh SUBCOMMAND FLAGS [-- FLAGS OF bert_jax.train]
#
#   create   cluster and JobSet's controller if they are not there, account, node pools
#   install  builds the image of the last commit and pushes it
#   prepare  makes the corpus on an ordinary node, and waits for it
#   train    starts the JobSet (launch/jobset.yaml), or lets a stopped one go on
#   xpk      train, by xpk on a cluster that xpk made, with the image of install
#   wait     waits until it ends; the exit code is that of training
#   status   JobSet, pods, the newest checkpoint
#   logs     the last lines of the first host; --follow goes on
#   stop     training saves and ends; the node pools stay and cost
#   collect  brings metrics, curves, config and pods' logs here; --checkpoints all of it
#   delete   deletes JobSet and node pools: the TPUs' costs end. Cluster, its ordinary
#            node and bucket stay; --with_cluster deletes the cluster as well
#   run      all of that in order; JobSet and GKE replace what is preempted
#
#   --name=bert-base        of the JobSet and the run; at most 37 characters. Node pools
#                           are NAME-0, NAME-1, ...
#   --project=my-project-123 --zone=us-central1-a
#   --cluster=bert-jax      in the zone's region
#   --type=ct6e-standard-4t machine type of a host
#   --topology=4x4          chips of a slice
#   --slices=1              as many alike, of several hosts each, joined by the data
#                           centre's network (Multislice): a node pool for each
#   --bucket=my-bert-bucket
#   --service_account=bert-train@my-project-123.iam.gserviceaccount.com
#                           both by launch/service_account.sh
#   --config=configs/base.py
#   --workdir=runs/NAME --corpus_dir=corpora/CONFIG    in the bucket; these if left out
#   --collect_to=runs/NAME  here
#   --namespace=bert-jax    of Kubernetes; its account bert-jax acts as --service_account
#   --max_restarts=100      of the JobSet, preemptions included
#   --storage=bert-jax      xpk: the name under which the bucket was attached
#   --spot                  cheaper; may be taken away at any time
#   --skip_prepare          run: the corpus is in the bucket already
#   --keep                  run: do not delete the node pools at the end
#   --dry_run               prints every command instead, ready to paste
#
# Checked against gcloud 528.0.0, JobSet v0.12.0, xpk 1.16.0.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=launch/backoff.sh
. "$ROOT/launch/backoff.sh"
# shellcheck source=launch/exit_codes.sh
. "$ROOT/launch/exit_codes.sh"
# shellcheck source=launch/bucket.sh
. "$ROOT/launch/bucket.sh"
# shellcheck source=launch/slice.sh
. "$ROOT/launch/slice.sh"
# shellcheck source=launch/pods.sh
. "$ROOT/launch/pods.sh"
# shellcheck source=launch/at_once.sh
. "$ROOT/launch/at_once.sh"

readonly NOT_MADE=74 # our own code: there is no cluster that could train
readonly JOBSET=https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0
readonly SUBCOMMANDS="create install prepare train xpk wait status logs stop collect \
delete run"
readonly REPOSITORY=bert-jax # of images, one a project and region

declare -A flags=(
  [name]="" [project]="" [zone]="" [cluster]=bert-jax [type]="" [topology]=""
  [bucket]="" [service_account]="" [config]="" [workdir]="" [corpus_dir]=""
  [collect_to]="" [namespace]=bert-jax [max_restarts]=100
  [storage]=bert-jax [slices]=1
)
declare -A switches=(
  [spot]="" [skip_prepare]="" [keep]="" [follow]="" [checkpoints]="" [with_cluster]=""
)

# Sets what GKE and xpk call the machine's chips.
name_chips() {
  case ${flags[type]} in
    ct4p-*) accelerator=tpu-v4-podslice xpk_name=v4 ;;
    ct5lp-*) accelerator=tpu-v5-lite-podslice xpk_name=v5litepod ;;
    ct5p-*) accelerator=tpu-v5p-slice xpk_name=v5p ;;
    ct6e-*) accelerator=tpu-v6e-slice xpk_name=v6e ;;
    tpu7x-*) accelerator=tpu7x xpk_name=tpu7x ;;
    *) usage_error "--type=${flags[type]}: ct4p, ct5lp, ct5p, ct6e and tpu7x have TPUs" ;;
  esac
}

kube() {
  kubectl_line=(kubectl --context="$context" --namespace="${flags[namespace]}" "$@")
}

run_kube() {
  kube "$@"
  run "${kubectl_line[@]}"
}

# is_there COMMAND...: a dry run answers "no", and so prints everything.
is_there() { [[ -n $(query "" "$@" 2>/dev/null) ]]; }

# ---- The cluster: private nodes, reached through its name in Google's DNS.
create() {
  local state
  check_bucket_and_account "${flags[bucket]}" "${flags[project]}" \
    "${flags[service_account]}"
  state=$(cluster_state)
  if ! { { [[ -n $state ]] || make_cluster; } && connect; }; then
    say_what_is_left "$state"
  fi
  create_account
  shape_slices
  at_once "$(printf '%s\n' "${pools[@]}")" make_pool %NAME%
}

# cluster_state: nothing where there is none; fails where nobody knows.
cluster_state() {
  query "" gcloud container clusters list "${place[@]}" \
    --filter="name=${flags[cluster]}" --format='value(status)'
}

make_cluster() {
  run gcloud container clusters create "${flags[cluster]}" "${place[@]}" \
    --node-locations="${flags[zone]}" --num-nodes=1 --machine-type=e2-standard-8 \
    --release-channel=regular --enable-ip-alias --enable-private-nodes \
    --enable-dns-access --no-enable-ip-access \
    --workload-pool="${flags[project]}.svc.id.goog" --addons=GcsFuseCsiDriver \
    --service-account="${flags[service_account]}" --enable-shielded-nodes \
    --shielded-secure-boot --quiet
}

connect() {
  run gcloud container clusters get-credentials "${flags[cluster]}" "${place[@]}" \
    --dns-endpoint &&
    run kubectl --context="$context" apply --server-side \
      --filename="$JOBSET/manifests.yaml" &&
    run kubectl --context="$context" --namespace=jobset-system rollout status \
      deployment/jobset-controller-manager --timeout=5m
}

# say_what_is_left STATE: of a cluster that was not made ready. NOT_MADE where it was in
# no state to train before, so that nothing needs to be asked of it.
say_what_is_left() {
  local left
  [[ -z $1 || $1 == PROVISIONING || $1 == ERROR ]] || return 1
  left=$(cluster_state) || left=UNKNOWN
  say "nothing was trained: the cluster ${flags[cluster]} was not made ready (see above)"
  if [[ -z $left ]]; then
    say "nothing of it is left; create and run begin anew"
  else
    say "it may be there ($left) and cost; create and run go on with it, this deletes it:"
    say "  gcloud container clusters delete ${flags[cluster]} ${place[*]}"
  fi
  return "$NOT_MADE"
}

# make_pool POOL: one slice, if it is not there. Pods and delete find the pools of a run by
# its label.
make_pool() {
  local more=()
  ! is_there gcloud container node-pools describe "$1" "${place[@]}" \
    --cluster="${flags[cluster]}" --format='value(name)' || return 0
  [[ -z ${switches[spot]} ]] || more+=(--spot)
  run gcloud container node-pools create "$1" "${place[@]}" \
    --cluster="${flags[cluster]}" --node-locations="${flags[zone]}" \
    --machine-type="${flags[type]}" "${shape[@]}" --num-nodes="$hosts" \
    --service-account="${flags[service_account]}" --workload-metadata=GKE_METADATA \
    --enable-private-nodes --shielded-secure-boot \
    --node-labels="made-by=bert-jax,bert_jax_run=${flags[name]}" --quiet "${more[@]}"
}

# Several hosts of a TPU7x are told their topology by a policy, others by a flag.
has_policy() { [[ ${flags[type]} == tpu7x-* ]] && ((hosts > 1)); }

shape_slices() {
  shape=(--tpu-topology="${flags[topology]}")
  has_policy || return 0
  if ! is_there gcloud compute resource-policies describe "${flags[name]}" \
    --project="${flags[project]}" --region="$region" --format='value(name)'; then
    run gcloud compute resource-policies create workload-policy "${flags[name]}" \
      --project="${flags[project]}" --region="$region" --type=HIGH_THROUGHPUT \
      --accelerator-topology="${flags[topology]}"
  fi
  shape=(--placement-policy="${flags[name]}")
}

# Pods act as the service account without any key: workload identity.
create_account() {
  local account="${flags[service_account]}" namespace="${flags[namespace]}"
  if ! kube_is_there get namespace "$namespace"; then
    run_kube create namespace "$namespace"
  fi
  if ! kube_is_there get serviceaccount bert-jax; then
    run_kube create serviceaccount bert-jax
  fi
  run_kube annotate --overwrite serviceaccount bert-jax \
    "iam.gke.io/gcp-service-account=$account"
  run gcloud iam service-accounts add-iam-policy-binding "$account" \
    --project="${flags[project]}" --role=roles/iam.workloadIdentityUser \
    --member="serviceAccount:${flags[project]}.svc.id.goog[$namespace/bert-jax]" \
    --condition=None
}

kube_is_there() {
  kube "$@" --output=name
  is_there "${kubectl_line[@]}"
}

# ---- The image.
image() {
  local commit
  commit=$(git -C "$ROOT" rev-parse --short=12 HEAD)
  echo "$region-docker.pkg.dev/${flags[project]}/$REPOSITORY/bert-jax:$commit"
}

install_image() {
  local location=(--project="${flags[project]}" --location="$region") name
  if ! is_there gcloud artifacts repositories describe "$REPOSITORY" "${location[@]}" \
    --format='value(name)'; then
    run gcloud artifacts repositories create "$REPOSITORY" "${location[@]}" \
      --repository-format=docker
  fi
  run gcloud artifacts repositories add-iam-policy-binding "$REPOSITORY" \
    "${location[@]}" --member="serviceAccount:${flags[service_account]}" \
    --role=roles/artifactregistry.reader
  run gcloud auth configure-docker "$region-docker.pkg.dev" --quiet
  name=$(image)
  local tree="$ROOT/runs/launch/${flags[name]}"
  # The image is named by the commit, so it holds the commit and nothing else.
  run rm -rf "$tree"
  run mkdir -p "$tree"
  run git -C "$ROOT" archive --format=tar --output="$tree.tar" HEAD
  run tar -xf "$tree.tar" -C "$tree"
  run docker build --platform=linux/amd64 --file="$tree/launch/Dockerfile" --tag="$name" \
    "$tree"
  run docker push "$name"
}

# ---- Manifests: every @WORD@ of the template has a value, every value is checked.
render() {
  local text name argument list=""
  local -A words=(
    [NAME]=${flags[name]} [NAMESPACE]=${flags[namespace]} [NAMESPACE_ACCOUNT]=bert-jax
    [MAX_RESTARTS]=${flags[max_restarts]} [SLICES]=${flags[slices]} [HOSTS]=$hosts
    [CHIPS]=$(chips_per_host)
    [ACCELERATOR]=$accelerator [TOPOLOGY]=${flags[topology]} [IMAGE]=$(image)
    [BUCKET]=${flags[bucket]} [MOUNT]=$MOUNT
  )
  text=$(<"$ROOT/launch/$1")
  for name in "${!words[@]}"; do
    text=${text//"@$name@"/"${words[$name]}"}
  done
  # A YAML string in double quotes is a JSON string.
  while IFS= read -r argument; do
    argument=${argument//\\/\\\\}
    list+="- \"${argument//\"/\\\"}\""$'\n'
  done
  local indent=${text%%@ARGS@*}
  indent=${indent##*$'\n'}
  list=${list%$'\n'}
  printf '%s\n' "${text%%@ARGS@*}${list//$'\n'/$'\n'"$indent"}${text#*@ARGS@}"
}

# give_manifest TEMPLATE: with the arguments of the command, a line each, on standard input.
give_manifest() {
  local manifest="$ROOT/runs/launch/${flags[name]}.$1"
  mkdir -p "$ROOT/runs/launch"
  render "$1" >"$manifest"
  run_kube create --filename="$manifest"
}

prepare() {
  run_kube delete job "${flags[name]}-prepare" --ignore-not-found
  train_flags | give_manifest prepare_job.yaml
  await_prepare
}

await_prepare() {
  local state misses=0 answers=0 idle=0 began=""
  while :; do
    state=$(ask Complete job "${flags[name]}-prepare" \
      '{.status.conditions[?(@.status=="True")].type}')
    case $state in
      absent) say "there is no Job ${flags[name]}-prepare" && return 1 ;;
      unknown) may_ask_again prepare || return ;;
      *Failed*)
        end_code prepare prepare "$of_prepare"
        return
        ;;
      *Complete*) return ;;
      *) follow_pods prepare "$of_prepare" || return ;;
    esac
    sleep "$BERT_JAX_POLL"
  done
}

# jobset_state ANSWER: absent | running RESTARTS | suspended | Completed | Failed | unknown
jobset_state() {
  local answer
  answer=$(ask "$1" jobset "${flags[name]}" \
    '{.status.terminalState}/{.spec.suspend}/{.status.restarts}')
  case $answer in
    absent | unknown) echo "$answer" ;;
    Completed/* | Failed/*) echo "${answer%%/*}" ;;
    */true/*) echo suspended ;;
    *) echo "running ${answer##*/}" ;;
  esac
}

train() {
  local state
  state=$(jobset_state absent)
  case $state in
    running*) say "${flags[name]} is running already" && return ;;
    unknown) return "$UNANSWERED" ;;
    suspended)
      suspend false
      return
      ;;
    Completed | Failed) run_kube delete jobset "${flags[name]}" ;;
  esac
  {
    printf '%s\n' "--workdir=$MOUNT/${flags[workdir]}"
    train_flags
  } | give_manifest jobset.yaml
}

# xpk's clusters have their own queue and node pools; its own restart codes are added to
# ours: 42, and everything from 127.
train_by_xpk() {
  local arguments command more=()
  [[ -z ${switches[spot]} ]] || more+=(--spot)
  mapfile -t arguments < <(train_flags)
  printf -v command '%q ' python -m bert_jax.train \
    --workdir="$MOUNT/${flags[workdir]}" "${arguments[@]}"
  run xpk workload create --workload="${flags[name]}" --cluster="${flags[cluster]}" \
    --project="${flags[project]}" --zone="${flags[zone]}" \
    --tpu-type="$xpk_name-${flags[topology]}" --num-slices="${flags[slices]}" \
    --docker-image="$(image)" \
    --storage="${flags[storage]}" --restart-on-exit-codes=75,76 \
    --max-restarts="${flags[max_restarts]}" --termination-grace-period-seconds=120 \
    --command="${command% }" "${more[@]}"
}

await_end() {
  local state restarts seen=0 misses=0 answers=0 idle=0 began=""
  begin_tries "$(newest_step)"
  while :; do
    state=$(jobset_state Completed//)
    case $state in
      Completed) return ;;
      Failed)
        end_code training train "$of_jobset"
        return
        ;;
      suspended) say "${flags[name]} is stopped; train lets it go on" && return 75 ;;
      absent) say "there is no JobSet ${flags[name]}" && return 1 ;;
      unknown) may_ask_again wait || return ;;
      running*)
        restarts=${state#running }
        follow_restarts "${restarts:-0}" || return
        follow_pods wait "$of_jobset" || return
        ;;
    esac
    sleep "$BERT_JAX_POLL"
  done
}

# A JobSet restarts at once and counts only to its limit: who waits also watches that the
# restarts bring checkpoints. follow_restarts COUNT, with the caller's `seen` and `began`.
follow_restarts() {
  local newest
  (($1 > seen)) || return 0
  seen=$1
  began=yes
  newest=$(newest_step)
  say "restart $seen, newest checkpoint ${newest/#-1/none}"
  ! may_try_again "$newest" || return 0
  show_end_of "the first host" train --selector="$first_host"
  say_where_logs_stay
  say "$BERT_JAX_MAX_STALLED restarts in a row brought no newer checkpoint: stopped"
  stop_training || return "$UNANSWERED"
  return 76
}

show_status() {
  local step
  run_kube get jobset "${flags[name]}" --output=wide
  run_kube get pods --selector="$of_jobset" --output=wide
  step=$(newest_step)
  echo "newest checkpoint: ${step/#-1/none}"
}

show_logs() {
  run_kube logs --container=train --tail=200 ${switches[follow]:+--follow} \
    --selector="$first_host"
}

# Suspended pods get SIGTERM, and two minutes to save.
stop_training() { suspend true; }

suspend() {
  run_kube patch jobset "${flags[name]}" --type=merge \
    --patch="{\"spec\":{\"suspend\":$1}}"
}

collect() {
  save_logs
  collect_run
}

# Logs go with the pods. Each time a file of its own: after a restart the pods are others.
save_logs() {
  local selector folder="${flags[collect_to]}/logs" file
  file="$folder/pods.$(date -u +%Y%m%dT%H%M%SZ).log"
  run mkdir -p "$folder"
  [[ -z $dry_run ]] || file=/dev/null
  for selector in "$of_jobset" "$of_prepare"; do
    run_kube logs --prefix --all-containers --ignore-errors --tail=-1 \
      --selector="$selector" || say "logs of pods could not be saved: $selector"
  done >"$file"
  [[ -n $dry_run || -s $file ]] || rm "$file"
}

# What cannot be deleted keeps nothing else from being deleted: all of it costs.
delete_all() {
  local failed=0
  run_kube delete jobset "${flags[name]}" --ignore-not-found || failed=1
  run_kube delete job "${flags[name]}-prepare" --ignore-not-found || failed=1
  delete_pools || failed=1
  ! has_policy || run gcloud compute resource-policies delete "${flags[name]}" \
    --project="${flags[project]}" --region="$region" --quiet || failed=1
  [[ -z ${switches[with_cluster]} ]] ||
    run gcloud container clusters delete "${flags[cluster]}" "${place[@]}" --quiet ||
    failed=1
  return "$failed"
}

# All of the run, whatever --slices says now.
delete_pools() {
  local made
  made=$(query "$(printf '%s\n' "${pools[@]}")" \
    gcloud container node-pools list "${place[@]}" --cluster="${flags[cluster]}" \
    --filter="config.labels.bert_jax_run=${flags[name]}" --format='value(name)') || return
  [[ -z $made ]] || at_once "$made" run gcloud container node-pools delete %NAME% \
    "${place[@]}" --cluster="${flags[cluster]}" --quiet
}

# A command of a second call may fail while training goes on since the first one. A pod
# that never started trains nothing.
may_be_training() {
  [[ $code != "$UNANSWERED" ]] || return 0
  [[ $step != wait || $code != "$NOT_RUNNING" ]] || return 1
  case $(jobset_state absent) in
    running*) ;;
    unknown) code=$UNANSWERED ;;
    *) return 1 ;;
  esac
}

run_all() {
  local step code=0 steps=(create install prepare train wait)
  given_flags
  # Here as well as in create: without them nothing was made, and nothing is deleted.
  check_bucket_and_account "${flags[bucket]}" "${flags[project]}" \
    "${flags[service_account]}"
  trap 'still_there; exit 130' INT
  trap 'still_there; exit 143' TERM
  [[ -z ${switches[skip_prepare]} ]] || steps=(create install train wait)
  for step in "${steps[@]}"; do
    subcommand "$step" || code=$?
    ((code == 0)) || break
  done
  ((code != NOT_MADE)) || return "$code"
  if ((code != 0)) && may_be_training; then
    say "training may be going on there: nothing is deleted, and run goes on with it"
    still_there
    return "$code"
  fi
  bring_home_and_delete
  return "$code"
}

split_subcommand "$@"
parse_flags "${rest[@]}"
needs gcloud
check name '[a-z][a-z0-9-]{0,35}[a-z0-9]' bert-base # of 40 for a node pool, -98 is added
check_project
check_zone
check cluster '[a-z][a-z0-9-]{0,38}[a-z0-9]' bert-jax
check_slice
check_bucket
check_service_account
check_name namespace bert-jax
check_name storage bert-jax
check max_restarts '[0-9]{1,5}' 100
check_run_flags
check_backoff
check_asking
name_chips
region=${flags[zone]%-*}
hosts=$(num_hosts)
check_slices
mapfile -t pools < <(slice_names)
((flags[slices] == 1 || hosts > 1)) || usage_error "--slices=${flags[slices]} are of" \
  "several hosts each, and --topology=${flags[topology]} is one ${flags[type]}"
check_training $(($(devices_of_topology) * flags[slices])) "${flags[slices]}"
place=(--project="${flags[project]}" --location="$region")
of_jobset=jobset.sigs.k8s.io/jobset-name=${flags[name]}
first_host=$of_jobset,jobset.sigs.k8s.io/job-index=0
first_host+=,batch.kubernetes.io/job-completion-index=0
of_prepare=batch.kubernetes.io/job-name=${flags[name]}-prepare
context=gke_${flags[project]}_${region}_${flags[cluster]}
case $command in
  create) create ;;
  install) install_image ;;
  prepare) prepare ;;
  train) train ;;
  xpk) train_by_xpk ;;
  wait) await_end ;;
  status) show_status ;;
  logs) show_logs ;;
  stop) stop_training ;;
  collect) collect ;;
  delete) delete_all ;;
  run) run_all ;;
esac
