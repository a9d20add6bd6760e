#!/usr/bin/env bash
# What a decision costs gateways and Redis in CPU time, for some gateways on some shards, and what
# it would take to decide a million requests a second.
#
#   run.sh [RESULTS] [--gateways 1,2] [--shards 1,3] [--limits 0,1,3] [--rounds 3] [--seconds 3]
#
#   run.sh --busy 300000      what a decision costs shards that are busy, by redis-benchmark
#   run.sh --envoy RATELIMIT  what a call of Envoy costs, beside that binary of envoyproxy/ratelimit
#
# Weir is built as it is shipped, without a profile; WEIR=path takes that binary instead of building
# one, and WEIR_LOAD=path that load generator. --help says the rest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
compare=$root/benches/compare
# Where Debian puts nginx, which is in the path of root alone.
PATH=$PATH:/usr/sbin:/sbin

build() {
  if [ -z "${WEIR_LOAD:-}" ]; then
    (cd "$compare/load" && cargo build --release --locked --quiet)
    WEIR_LOAD=${CARGO_TARGET_DIR:-$compare/load/target}/release/weir-load
  fi
  if [ -z "${WEIR:-}" ]; then
    "$root/deploy/build.sh" --no-pgo
    WEIR=${CARGO_TARGET_DIR:-$root/target}/dist/weir
  fi
  WEIR=$(realpath "$WEIR")
  WEIR_LOAD=$(realpath "$WEIR_LOAD")
}

case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    for name in nginx redis-server redis-cli; do
      command -v "$name" >/dev/null || {
        echo "run.sh: please install $name (Debian: nginx-light, redis-server)" >&2
        exit 1
      }
    done
    build
    ;;
esac
export WEIR=${WEIR:-} WEIR_LOAD=${WEIR_LOAD:-}
cd "$root"
PYTHONPATH=$here:$compare exec python3 -B -m scale "$@"
