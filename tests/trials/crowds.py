#!/usr/bin/env python3
"""What clients get that share a bucket and wait out every Retry-After.

Each worker sends its next request when it has a response, and waits for the whole seconds that a
denial says. Takes the gateway's binary, and `memory` or the URL of a Redis, as its arguments. All
limits run at once, 20 workers each, for two minutes after a half of warming up.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LISTEN = 18933
WORKERS, WARM_UP, SECONDS = 20, 30, 120

# Name, units a second, and the limit.
KINDS = [
    ("`gcra` 10/s, burst 1", 10, "burst: 1, count: 10, period: 1s"),
    ("`gcra` 10/s, burst 5", 10, "burst: 5, count: 10, period: 1s"),
    ("`gcra` 10/s, burst 20", 10, "burst: 20, count: 10, period: 1s"),
    ("`gcra` 1/s, burst 1", 1, "burst: 1, count: 1, period: 1s"),
    ("`gcra` 1/s, burst 2", 1, "burst: 2, count: 1, period: 1s"),
    ("`gcra` 100/min, burst 20", 100 / 60, "burst: 20, count: 100, period: 1m"),
    ("`fixed_window` 60/min", 1, "algorithm: fixed_window, count: 60, period: 1m"),
    ("`sliding_window` 60/min", 1, "algorithm: sliding_window, count: 60, period: 1m"),
]


def write(folder, store):
    routes, limits = "", ""
    for index, (_, _, limit) in enumerate(KINDS):
        routes += f"  - {{match: {{path: /{index}}}, upstream: demo, limits: [L{index}]}}\n"
        limits += f"L{index}: {{per: global, {limit}}}\n"
    gateway = f'listen: [{{address: "127.0.0.1:{LISTEN}"}}]\nupstreams: {{demo: {{builtin: echo}}}}\n'
    if store != "memory":
        gateway += f'store: {{redis: {{url: "{store}", timeout: 1s}}}}\n'
    (folder / "limits").mkdir()
    (folder / "limits/defaults.yaml").write_text(limits)
    (folder / "gateway.yaml").write_text(gateway + "routes:\n" + routes)


async def send(reader, writer, index):
    """The status of a response, and the seconds that it tells."""
    writer.write(f"GET /{index} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    lines = head.split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    await reader.readexactly(int(fields.get("content-length", 0)))
    return int(lines[0].split()[1]), int(fields.get("retry-after", 0))


async def work(index, begin, figures):
    await asyncio.sleep(random.random())
    reader, writer = await asyncio.open_connection("127.0.0.1", LISTEN)
    while (now := time.monotonic()) < begin + SECONDS:
        status, wait = await send(reader, writer, index)
        if now >= begin:
            figures.append((status, wait))
        if wait:
            # The gateway closes connections that are idle for long.
            writer.close()
            await asyncio.sleep(wait)
            reader, writer = await asyncio.open_connection("127.0.0.1", LISTEN)
    writer.close()


async def run():
    begin = time.monotonic() + WARM_UP
    figures = [[] for _ in KINDS]
    workers = [work(index, begin, figures[index]) for index in range(len(KINDS)) for _ in range(WORKERS)]
    await asyncio.gather(*workers)
    for (name, rate, _), seen in zip(KINDS, figures):
        passed = sum(status == 200 for status, _ in seen)
        denied = len(seen) - passed
        unused = max(0, 1 - passed / rate / SECONDS)
        longest = max((wait for _, wait in seen), default=0)
        print(f"| {name} | {denied / max(passed, 1):.1f} | {unused:.0%} | {longest} s |", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), sys.argv[2])
        command = [str(Path(sys.argv[1]).resolve())]
        gateway = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        try:
            asyncio.run(run())
        finally:
            gateway.terminate()
            gateway.wait()


main()
