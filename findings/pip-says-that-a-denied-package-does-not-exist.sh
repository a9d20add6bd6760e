#!/usr/bin/env bash
# pip says "No matching distribution found" where the index denies it, and nothing of a denial, and
# repeats a 429 only if it has Retry-After.
#
# One would expect the status, as for a package that cannot be downloaded. pip waits in silence, for as
# long as Retry-After says, up to five times; then it goes on as if the page of the package were empty.
# So whoever runs it looks for a misspelt name, and a build that is denied fails for the wrong reason.
#
# Seen with pip 26.3: Retry-After 1: six requests, a second apart; without the field: one. Both times
# the last line is "No matching distribution found", and "429" is nowhere.
exec "$(dirname "$0")/support/python.sh" pip==26.3 <<'PY'
import subprocess
import sys

import denying

for fields, requests in [({"Retry-After": "1"}, 6), ({}, 1)]:
    server = denying.Server(99, fields)
    arguments = ["--disable-pip-version-check", "--no-cache-dir", "download", "a-package"]
    command = [sys.executable, "-m", "pip", *arguments, "--index-url", f"{server.url}/simple"]
    ended = subprocess.run(command, capture_output=True, text=True)
    output = ended.stdout + ended.stderr
    last = output.strip().splitlines()[-1]
    waits = server.waits()
    holds = (
        len(server.arrivals) == requests
        and all(1 <= wait < 1.5 for wait in waits)
        and "No matching distribution found" in last
        and "429" not in output
    )
    denying.expect(f"{fields}: {len(server.arrivals)} requests, waits of {waits} s; {last}", holds)
PY
