#!/usr/bin/env bash
# Makes what a release consists of, in target/release-VERSION: static binaries with what belongs to
# them, Debian packages, Python wheels, npm packages, the Helm chart, a bill of materials
# (CycloneDX), a manifest and checksums.
#
#   deploy/release.sh [OUT]
#   deploy/release.sh --repeated     builds twice in different folders, and compares the bytes
#
#   WEIR_TARGETS    targets, by default x86_64 and aarch64 with musl
#   WEIR_PROFILE    the build profile, by default `dist`; `release` builds faster
#   WEIR_FEATURES   by default jemalloc,otlp,http3
#
# Needs rustup, Python 3.11 or later with venv, git, make, dpkg-deb and a C compiler for what builds
# alone run. The C compiler and linker for musl, zig, comes as a Python package. The same binaries
# make the same packages, byte for byte. The same commit, toolchain and versions of the tools should
# make the same binaries: those are not guided by a profile (decision 0035), and no path and no time
# of the machine should get into them, which --repeated finds out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
zig=0.17.1 zigbuild=0.24.1
profile=${WEIR_PROFILE:-dist}
features=${WEIR_FEATURES:-jemalloc,otlp,http3}
read -ra targets <<<"${WEIR_TARGETS:-x86_64-unknown-linux-musl aarch64-unknown-linux-musl}"
target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
tools=$target/tools/zigbuild-$zigbuild-zig-$zig
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)

say() { echo "release.sh: $*" >&2; }

# What this machine lacks, each with how to get it.
missing() {
  local name
  for name in cargo rustup; do
    command -v "$name" >/dev/null || echo "$name is missing: see https://rustup.rs"
  done
  for name in git make cc dpkg-deb; do
    command -v "$name" >/dev/null || echo "$name is missing: apt install git make gcc dpkg"
  done
  python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    echo "Python 3.11 or later with venv is missing: apt install python3-venv"
}

lacks=$(missing)
[ -z "$lacks" ] || { say "this machine cannot make a release:"; echo "$lacks" >&2; exit 1; }
commit=$(git rev-parse --short=12 HEAD)
git diff --quiet HEAD || commit=$commit-modified
epoch=$(git log -1 --format=%ct)

install_tools() {
  [ -x "$tools/bin/cargo-zigbuild" ] || {
    python3 -m venv "$tools"
    "$tools/bin/pip" install -q --disable-pip-version-check \
      "cargo-zigbuild==$zigbuild" "ziglang==$zig" || {
      rm -rf "$tools"
      say "zig, the compiler for musl, is missing: pip cannot install cargo-zigbuild $zigbuild and" \
        "ziglang $zig. Name a mirror of PyPI in PIP_INDEX_URL, or a folder with both in PIP_FIND_LINKS."
      exit 1
    }
  }
  rustup target add "${targets[@]}" >&2
}

# Builds a target of the source in one folder, below another one. Neither name gets into the binary,
# and nor does Cargo's.
build() {
  local source=$1 out=$2 triple=$3
  local cargo_home=${CARGO_HOME:-$HOME/.cargo}
  say "building $triple ($profile, $features) in $out"
  (
    cd "$source"
    export WEIR_COMMIT=$commit CARGO_TARGET_DIR=$out CARGO_INCREMENTAL=0 PATH=$tools/bin:$PATH
    export RUSTFLAGS="--remap-path-prefix=$source=/weir --remap-path-prefix=$cargo_home=/cargo"
    export RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$out=/target"
    export CFLAGS="-ffile-prefix-map=$source=/weir -ffile-prefix-map=$cargo_home=/cargo"
    export CFLAGS="$CFLAGS -ffile-prefix-map=$out=/target -ffile-prefix-map=$tools=/tools"
    # jemalloc would ask the machine that builds it.
    export JEMALLOC_SYS_WITH_LG_HUGEPAGE=21
    # Not the commit's, as each other value compiles all C anew.
    export SOURCE_DATE_EPOCH=0
    cargo zigbuild --locked --bin weir --profile "$profile" --features "$features" --target "$triple"
  )
}

# Where a build is.
built() {
  local folder=$profile
  [ "$profile" != dev ] || folder=debug
  echo "$1/$2/$folder/weir"
}

repeated() {
  [ "$commit" = "${commit%-modified}" ] || { say "commit your changes: the copy lacks them"; exit 1; }
  local triple
  copy=$target/release-copy
  rm -rf "$copy"
  git worktree prune
  git worktree add -q --detach "$copy" HEAD
  trap 'git worktree remove --force "$copy"' EXIT
  for triple in "${targets[@]}"; do
    build "$root" "$target/release-build" "$triple"
    build "$copy" "$target/release-build-again" "$triple"
    cmp "$(built "$target/release-build" "$triple")" \
      "$(built "$target/release-build-again" "$triple")"
    say "both builds of $triple are equal: $(sha256sum <"$(built "$target/release-build" "$triple")")"
  done
}

install_tools
if [ "${1:-}" = --repeated ]; then
  repeated
  exit
fi
out=${1:-}
if [ -z "$out" ]; then
  out=$target/release-$version
  rm -rf "$out"
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$(ls -A "$out")" ] || { say "$out is not empty"; exit 1; }
binaries=()
for triple in "${targets[@]}"; do
  build "$root" "$target/release-build" "$triple"
  binaries+=(--binary "${triple%%-*}=$(built "$target/release-build" "$triple")")
  [ "${triple%%-*}" != "$(uname -m)" ] ||
    binaries+=(--runnable "$(built "$target/release-build" "$triple")")
done
# zig has the musl that is linked.
musl=$(sed -n 's/.*VERSION "\(.*\)"/\1/p' "$tools"/lib/python3*/site-packages/ziglang/lib/libc/musl/src/internal/version.h)
(cd deploy && python3 -B -m packages --out "$out" --commit "$commit" --epoch "$epoch" \
  --features "$features" --profile "$profile" --tool "cargo-zigbuild=$zigbuild" --tool "zig=$zig" \
  --library "rust-std=$(rustc -V | cut -d' ' -f2)" --library "musl=$musl" "${binaries[@]}")
say "made in $out:"
cat "$out/SHA256SUMS"
