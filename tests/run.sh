#!/usr/bin/env bash
# Installs what the tests need, and runs them all.
set -euo pipefail
cd "$(dirname "$0")/.."

# A real redis-server, since the store's contract is held against it and never against an imitation;
# and openssl, which makes the certificates for its TLS.
packages=()
command -v redis-server >/dev/null || packages+=(redis-server)
command -v openssl >/dev/null || packages+=(openssl)
if [ ${#packages[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "tests/run.sh: please install ${packages[*]} (the names are Debian's)" >&2
    exit 1
  fi
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

cargo test --locked --all-targets "$@"
cargo test --locked --doc
