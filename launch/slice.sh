# shellcheck shell=bash disable=SC2034,SC2154  # names are shared
# Arithmetic of a TPU slice, from flags --type (machine type) and --topology. Sourced.

check_slice() {
  check type '[a-z0-9]+-[a-z]+-[1-9][0-9]{0,2}t' ct6e-standard-4t
  check topology '[1-9][0-9]{0,3}x[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})?' 4x4
  check_topology "$(chips_per_host)"
}

# The number before the t of a machine type: its chips.
chips_per_host() {
  local last=${flags[type]##*-}
  echo "${last%t}"
}

num_hosts() {
  local per_host chips=$((${flags[topology]//x/ * }))
  per_host=$(chips_per_host)
  ((chips % per_host == 0)) || usage_error \
    "--topology=${flags[topology]} has $chips chips, no multiple of the $per_host of" \
    "--type=${flags[type]}"
  echo $((chips / per_host))
}
