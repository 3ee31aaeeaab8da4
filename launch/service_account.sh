#!/usr/bin/env bash
# The bucket of the runs, and the account that their machines have: once per project.
#
#   launch/service_account.sh FLAGS
#
#   --project=my-project-123
#   --bucket=my-bert-bucket   made if it is not there
#   --region=us-central1      of the bucket: that of the machines, or reading costs
#   --name=bert-train         of the account, NAME@PROJECT.iam.gserviceaccount.com
#   --dry_run                 prints every command instead, ready to paste
#
# The account may read and write this one bucket, and write logs and metrics; it can
# neither make nor delete machines, nor read other buckets. No key of it is made:
# machines get its tokens from their metadata server. The bucket has a hierarchical
# namespace (a checkpoint's folder is renamed in one step), no object ACLs, and cannot be
# made public. Given again, nothing changes.
#
# Checked against the commands of gcloud 528.0.0.
set -euo pipefail
# shellcheck source=launch/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

declare -A flags=([project]="" [bucket]="" [region]="" [name]=bert-train)
declare -A switches=()
parse_flags "$@"
needs gcloud
check_project
check_bucket
check_region
check name '[a-z][a-z0-9-]{4,28}[a-z0-9]' bert-train
((${#train_args[@]} == 0)) || usage_error "nothing may follow --"

readonly account="${flags[name]}@${flags[project]}.iam.gserviceaccount.com"
readonly bucket="gs://${flags[bucket]}"

# A dry run answers "not there", and so prints everything.
is_there() { [[ -n $(query "" "$@" 2>/dev/null) ]]; }

if is_there gcloud iam service-accounts describe "$account" \
  --project="${flags[project]}" --format='value(email)'; then
  say "$account is there already"
else
  run gcloud iam service-accounts create "${flags[name]}" \
    --project="${flags[project]}" --display-name="bert_jax training"
fi

if is_there gcloud storage buckets describe "$bucket" --format='value(name)'; then
  hierarchical=$(gcloud storage buckets describe "$bucket" --raw \
    --format='value(hierarchicalNamespace.enabled)')
  [[ $hierarchical == True ]] || usage_error "$bucket is there without a hierarchical" \
    "namespace, which only a new bucket can get: give another name"
  say "$bucket is there already"
else
  run gcloud storage buckets create "$bucket" --project="${flags[project]}" \
    --location="${flags[region]}" --uniform-bucket-level-access \
    --enable-hierarchical-namespace --public-access-prevention
fi

run gcloud storage buckets add-iam-policy-binding "$bucket" \
  --member="serviceAccount:$account" --role=roles/storage.objectUser
for role in roles/logging.logWriter roles/monitoring.metricWriter; do
  run gcloud projects add-iam-policy-binding "${flags[project]}" \
    --member="serviceAccount:$account" --role="$role" --condition=None
done
say "machines get --bucket=${flags[bucket]} --service_account=$account"
