# shellcheck shell=bash disable=SC2154  # names are shared
# What bert_jax.train would refuse on its hosts, found before there are any. Sourced by
# lib.sh.

# check_training DEVICES [SLICES]: --config and what follows -- are sound and go onto so
# many devices, of all slices. Wants a Python with requirements.txt: that of the clone's
# .venv, or python3.
# BERT_JAX_CHECKED=yes leaves it out, as the steps of a `run` do, processes of their own.
check_training() {
  local python="$ROOT/.venv/bin/python" said code=0
  case $command in
    create | prepare | train | xpk | run) ;;
    *) return 0 ;;
  esac
  [[ -z ${BERT_JAX_CHECKED-} ]] || return 0
  [[ -x $python ]] || python=python3
  said=$(cd "$ROOT" && JAX_PLATFORMS=cpu "$python" -m bert_jax.preflight \
    --config="${flags[config]}" --devices="$1" --slices="${2-1}" \
    "${train_args[@]}" 2>&1) || code=$?
  said=${said##*$'\n'} # warnings, or a traceback, may stand before it
  case $code in
    0) say "$said" ;;
    2) usage_error "${said#error: }" ;;
    *) say "config and arguments are checked on the hosts, not here: $python: $said" ;;
  esac
  export BERT_JAX_CHECKED=yes
}
