#!/usr/bin/env bash
# Runs the Python program on standard input with these packages of PyPI, in a temporary folder.
set -euo pipefail
support=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check "$@"
cat >"$folder/program.py"
cd "$folder"
PYTHONPATH=$support timeout 120 "$folder/env/bin/python" -B program.py
