# shellcheck shell=bash disable=SC2154  # names are shared
# Which TPU slices there are, and how many devices they have, from --type and --topology:
# another would be refused by the cloud when part of what it needs is made. Sourced by
# lib.sh.
#
# By docs.cloud.google.com/tpu/docs (v2 .. 7x) and GKE's "Plan TPUs". Where these leave out
# sizes, all that could be is let through.

# Shapes of v5e and v6e, which is all of them.
readonly FLAT_SHAPES="1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
# Of v4, v5p and TPU7x those below a cube of 4x4x4, and some of several cubes.
readonly DEEP_SHAPES="1x1x1 1x1x2 1x2x1 2x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 \
8x8x8 8x8x16 8x16x16 16x16x16"

# check_tpu_type PREFIX: --type is a slice of the TPU API, which calls v5e v5litepod.
check_tpu_type() {
  [[ ! ${flags[type]} =~ ^$1v5e-([0-9]+)$ ]] ||
    usage_error "--type='${flags[type]}' has another name in the API:" \
      "give --type=$1v5litepod-${BASH_REMATCH[1]}"
  check type "$1(v[234]|v5litepod|v5p|v6e)-[1-9][0-9]{0,5}" "$1v5litepod-16"
  local kind=${flags[type]%-*} size=${flags[type]##*-} sizes most=0 found
  case ${kind#"$1"} in # cores, or chips of v5e and v6e
    v2) sizes="8 32 64 128 256 512" ;;
    v3) sizes="8 32 64 128 256 512 1024 2048" ;;
    v4) sizes="8 16 32 64 128 256 512 1024 2048 4096" most=8192 ;;
    v5p) sizes="8 16 32 64 128 256 512 1024 2048 4096 8192 12288" most=17920 ;;
    *) sizes="1 4 8 16 32 64 128 256" ;;
  esac
  [[ " $sizes " != *" $size "* ]] || return 0
  ((size % 128 != 0 || size > most)) || return 0 # whole cubes of 64 chips
  found=$(nearest "$size" "$sizes")
  usage_error "--type='${flags[type]}': there is no such slice; the nearest:" \
    "$kind-${found// or / or $kind-}"
}

# check_topology CHIPS: --topology is one of --type, a machine type with so many chips.
check_topology() {
  local topology=${flags[topology]} family=${flags[type]%%-*} shape shapes="" most=0
  local hosts
  case $family in
    ct5lp | ct6e)
      hosts="1, 4 or 8"
      case $1 in
        1) shapes=1x1 ;;
        4) shapes=${FLAT_SHAPES#* } ;;
        8) shapes=2x4 ;;
      esac
      ;;
    ct4p) hosts=4 most=4096 ;;
    ct5p) hosts="1, 2 or 4" most=8960 ;;
    tpu7x) hosts="1 or 4" most=9216 ;;
    *) return 0 ;; # newer than this list
  esac
  [[ $hosts =~ (^|\ )$1(,|\ |$) ]] ||
    usage_error "--type='${flags[type]}': a host of $family has $hosts chips, not $1"
  if ((most > 0)); then
    for shape in $DEEP_SHAPES; do
      ((${shape//x/ * } % $1 != 0 || ${shape//x/ * } > most)) || shapes+=" $shape"
    done
  fi
  [[ " $shapes " != *" $topology "* ]] || return 0
  ! is_of_cubes "$topology" "$most" || return 0
  usage_error "--topology='$topology': there is no such slice of --type=${flags[type]};" \
    "the nearest: $(nearest "$topology" "$shapes")"
}

# is_of_cubes TOPOLOGY CHIPS: cubes of 4x4x4, sides in order, CHIPS at most.
is_of_cubes() {
  [[ $1 =~ ^([0-9]+)x([0-9]+)x([0-9]+)$ ]] || return
  local a=${BASH_REMATCH[1]} b=${BASH_REMATCH[2]} c=${BASH_REMATCH[3]}
  ((a % 4 == 0 && b % 4 == 0 && c % 4 == 0 && a <= b && b <= c && a * b * c <= $2))
}

# nearest SIZE SIZES: of SIZES, which rise, the one as large, or those next to it. They
# are numbers or topologies.
nearest() {
  local size below="" wanted=$((${1//x/ * }))
  for size in $2; do
    if ((${size//x/ * } >= wanted)); then
      ((${size//x/ * } > wanted)) || below=""
      echo "${below:+$below or }$size"
      return
    fi
    below=$size
  done
  echo "$below"
}

# devices_of_type PREFIX: what jax will count, a device a chip, two of v2 and v3.
devices_of_type() {
  local size=${flags[type]##*-}
  case ${flags[type]#"$1"} in
    v4-* | v5p-*) echo $((size / 2)) ;; # cores, two a chip
    *) echo "$size" ;;
  esac
}

# The same for --topology: two devices a chip of TPU7x.
devices_of_topology() {
  local chips=$((${flags[topology]//x/ * }))
  [[ ${flags[type]} != tpu7x-* ]] || chips=$((2 * chips))
  echo "$chips"
}

check_slices() { check slices '[1-9][0-9]?' 2; } # names have room for -98

# slice_names: NAME-0, NAME-1 and so on, a line each.
slice_names() { seq -f "${flags[name]}-%g" 0 $((flags[slices] - 1)); }
