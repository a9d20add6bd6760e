#!/usr/bin/env python3
"""What a client gets of a limit that waits out every Retry-After, which has whole seconds.

One client for each kind of route sends its next request when it has a response, and waits as a
denial says: by Retry-After-Ms where the route sends it. Takes the gateway's binary as its argument.
"""

import http.client
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LISTEN = 18932
WARM_UP, SECONDS = 2, 30

TEN, HUNDRED = "count: 10, period: 1s", "count: 100, period: 1m"
MS, DELAY = "ratelimit_headers: [draft, retry-after-ms]", "on_denied: {delay: 2s}"
# Path, limit, and what the route says.
KINDS = [
    ("10 a second", "burst: 1", f"burst: 1, {TEN}", ""),
    ("10 a second", "burst: 10", f"burst: 10, {TEN}", ""),
    ("10 a second", "burst: 1, retry-after-ms", f"burst: 1, {TEN}", MS),
    ("10 a second", "burst: 1, delay", f"burst: 1, {TEN}", DELAY),
    ("100 a minute", "burst: 1", f"burst: 1, {HUNDRED}", ""),
    ("100 a minute", "burst: 2", f"burst: 2, {HUNDRED}", ""),
    ("100 a minute", "burst: 1, retry-after-ms", f"burst: 1, {HUNDRED}", MS),
    ("100 a minute", "burst: 1, delay", f"burst: 1, {HUNDRED}", DELAY),
]


def write(folder):
    routes, limits = "", ""
    for index, (_, _, limit, keys) in enumerate(KINDS):
        more = f", {keys}" if keys else ""
        routes += f"  - {{match: {{path: /{index}}}, upstream: demo, limits: [L{index}]{more}}}\n"
        limits += f"L{index}: {{per: address, {limit}}}\n"
    gateway = f'listen: [{{address: "127.0.0.1:{LISTEN}"}}]\nupstreams: {{demo: {{builtin: echo}}}}\n'
    (folder / "limits").mkdir()
    (folder / "limits/defaults.yaml").write_text(limits)
    (folder / "gateway.yaml").write_text(gateway + "routes:\n" + routes)


def passed_per_second(index):
    connection = http.client.HTTPConnection("127.0.0.1", LISTEN, timeout=10)
    begin = time.monotonic() + WARM_UP
    passed = 0
    while time.monotonic() < begin + SECONDS:
        connection.request("GET", f"/{index}")
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            passed += time.monotonic() >= begin
            continue
        millis = response.getheader("retry-after-ms")
        time.sleep(int(millis) / 1000 if millis else int(response.getheader("retry-after")))
    return passed / SECONDS


def main():
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        command = [str(Path(sys.argv[1]).resolve())]
        gateway = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        try:
            with ThreadPoolExecutor(len(KINDS)) as clients:
                for kind, rate in zip(KINDS, clients.map(passed_per_second, range(len(KINDS)))):
                    print(f"| {kind[0]} | {kind[1]} | {rate:.2f} a second |")
        finally:
            gateway.terminate()
            gateway.wait()


main()
