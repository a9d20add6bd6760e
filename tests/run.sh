#!/usr/bin/env bash
# Installs what the tests need, and runs them all.
set -euo pipefail
cd "$(dirname "$0")/.."

# A real redis-server: the store's contract is held against it, never against an imitation.
if ! command -v redis-server >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "tests/run.sh: redis-server is missing; install it (Debian's package is redis-server)" >&2
    exit 1
  fi
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends redis-server >/dev/null
fi

cargo test --locked --all-targets "$@"
cargo test --locked --doc
