#!/usr/bin/env bash
# Installs bert_jax and mounts a bucket at /mnt/bert_jax on a TPU VM (Ubuntu 22.04).
#
#   launch/tpu_host.sh BUCKET
#
# Runs in the repository, on every worker; prints its commands. Can be rerun.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! ${1-} =~ ^[a-z0-9][a-z0-9_.-]+$ ]]; then
  echo "error: BUCKET='${1-}' is not a bucket name, such as my-bert-bucket" >&2
  exit 2
fi
set -x

# A new machine may still hold apt's lock for its first updates.
apt() { sudo apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }
if ! command -v gcsfuse; then
  key=/usr/share/keyrings/cloud.google.asc
  repository=https://packages.cloud.google.com/apt
  curl -fsSL $repository/doc/apt-key.gpg | sudo tee $key >/dev/null
  echo "deb [signed-by=$key] $repository gcsfuse-$(lsb_release -cs) main" |
    sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
  apt update
  apt install -y gcsfuse python3-pip
fi

# The image's Python 3.10 is too old for bert_jax.
pip3 install --quiet --user uv==0.13.9
[[ -x .venv/bin/python ]] || ~/.local/bin/uv venv --quiet --python 3.12 .venv
~/.local/bin/uv pip install --quiet --python .venv/bin/python \
  -r requirements.txt -e '.[tpu]'

# Without metadata cache, workers see each other's files at once. As a systemd unit, the
# mount outlives the training at a shutdown, so that its last checkpoint can be written.
if ! mountpoint -q /mnt/bert_jax; then
  sudo mkdir -p /mnt/bert_jax
  sudo systemctl reset-failed bert-jax-mount || true
  sudo systemd-run --unit=bert-jax-mount --property=After=network-online.target \
    gcsfuse --foreground -o allow_other --uid="$(id -u)" --gid="$(id -g)" \
    --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 \
    --kernel-list-cache-ttl-secs=0 "$1" /mnt/bert_jax
  timeout 60 bash -c 'until mountpoint -q /mnt/bert_jax; do sleep 1; done'
fi
