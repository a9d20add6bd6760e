#!/usr/bin/env bash
# The tests of benches/scale, which need python3 alone and take seconds.
set -euo pipefail
cd "$(dirname "$0")"
PYTHONPATH=.:../compare exec python3 -B -m unittest discover --buffer -t . -s tests
