#!/usr/bin/env bash
# The comparison's own tests: those of the harness, which need python3 alone and take seconds; with
# --all those of the load generator as well, which have to be built.
set -euo pipefail
cd "$(dirname "$0")"
python3 -B -m unittest discover --buffer -t . -s tests
[ "${1:-}" != --all ] || (cd load && cargo test --locked)
