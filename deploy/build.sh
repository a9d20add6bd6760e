#!/usr/bin/env bash
# Builds the fastest binary, target/dist/weir: the profile `dist` with jemalloc and OpenTelemetry,
# guided by a profile (PGO) of a first build under the requests of benches/compare.
#
#   deploy/build.sh                 without PGO where the tools are missing; the last line says which it is
#   deploy/build.sh --require-pgo   fails where the tools are missing
#   deploy/build.sh --no-pgo        without PGO: a single build
#
# Training takes half a minute or so and needs rustup's component llvm-tools (which it adds), nginx,
# openssl, Python 3 and taskset; redis-server too, for requests that go to Redis. It listens on loopback
# only, on ports from 22000. What is still up to date is not built or trained again; without target/pgo
# it begins afresh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
# Where Debian puts nginx, which is in the path of root alone.
PATH=$PATH:/usr/sbin:/sbin
target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
# For `weir --version`.
export WEIR_COMMIT=${WEIR_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
profile=$target/pgo/weir.profdata
features=jemalloc,otlp,http3

say() { echo "build.sh: $*" >&2; }

# Why there can be no training; nothing if there can.
missing() {
  local name
  for name in nginx openssl python3 taskset; do
    command -v "$name" >/dev/null || { echo "$name is not installed"; return; }
  done
  # Those of another version of LLVM cannot read the profile.
  [ -x "$profdata" ] || rustup component add llvm-tools >&2 || true
  [ -x "$profdata" ] || echo "the toolchain has no llvm-tools (rustup component add llvm-tools)"
}

# A target is named so that the flags are not for build scripts and macros, which run while building.
build() {
  local folder=$1 flags=$2
  RUSTFLAGS="${RUSTFLAGS:-} $flags" CARGO_TARGET_DIR=$folder \
    cargo build --profile dist --features "$features" --locked --bin weir --target "$host"
}

# The id of a crate, which is in the names of its functions. A build whose ids differ from those of the
# instrumented build ignores the profile without a word.
crate_id() {
  local newest
  newest=$(ls -t "$target/pgo/$1/$host"/dist/deps/libhttparse-*.rlib | head -1)
  "$(dirname "$profdata")/llvm-ar" t "$newest" | sed -n 's/.*\.httparse\.\([0-9a-f]*\)-cgu.*/\1/p'
}

train() {
  (cd benches/compare/load && CARGO_TARGET_DIR=$target/pgo/load \
    cargo build --release --locked --quiet --features http3)
  # cargo does not look at a profile's contents: what was built by the last one goes.
  rm -rf "$target/pgo/profiles" "$profile" "$target/pgo/use/$host"
  WEIR=$1 WEIR_LOAD=$target/pgo/load/release/weir-load PYTHONPATH=benches/compare \
    python3 -B -m harness.train "$target/pgo/profiles"
  "$profdata" merge -o "$profile" "$target"/pgo/profiles/*.profraw
}

pgo=try
case "${1:-}" in
  '') ;;
  --no-pgo) pgo=no ;;
  --require-pgo) pgo=required ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

reason=
[ $pgo = no ] || reason=$(missing)
if [ $pgo = required ] && [ -n "$reason" ]; then
  say "no PGO: $reason"
  exit 1
fi
if [ $pgo = no ] || [ -n "$reason" ]; then
  cargo build --profile dist --features "$features" --locked --bin weir
  say "built $target/dist/weir WITHOUT PGO${reason:+: $reason}"
  exit
fi

say "1 of 3: an instrumented build"
# The same profile as the last build has, link-time optimisation and all, although it does not need
# that: cargo hashes the profile's settings into the names of functions.
build "$target/pgo/generate" "-Cprofile-generate=$target/pgo/profiles"
instrumented=$target/pgo/generate/$host/dist/weir
if [ "$profile" -nt "$instrumented" ]; then
  say "2 of 3: trained already"
else
  say "2 of 3: training"
  train "$instrumented"
fi
say "3 of 3: the build that the profile guides"
build "$target/pgo/use" "-Cprofile-use=$profile"
trained=$(crate_id generate)
if [ -z "$trained" ] || [ "$trained" != "$(crate_id use)" ]; then
  say "the profile does not fit: the two builds name their functions differently"
  exit 1
fi
mkdir -p "$target/dist"
# Without the old file's inode, which is one of cargo's own as well.
install "$target/pgo/use/$host/dist/weir" "$target/dist/weir"
say "built $target/dist/weir with PGO"
