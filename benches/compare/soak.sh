#!/usr/bin/env bash
# Honest clients beside a flood of connections of banned ones, in a network namespace.
#
#   WEIR=path soak.sh [RESULTS] [--rounds 1] [--seconds 60] [--banned 5000] [--rate 5000]
#
# Needs nginx, python3, and the right to make a namespace. --help says the rest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
export WEIR=${WEIR:-$here/../../target/release/weir}
PYTHONPATH=$here exec python3 -B -m harness.soak "$@"
