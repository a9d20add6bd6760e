#!/usr/bin/env python3
"""Load through Weir to three servers while these are killed, restarted, stopped and slowed down.

Prints, for each phase, how many requests got which status and how many were sent again, and the
file descriptors and the resident memory of Weir. Ends with 1 if a request failed although a server
was there to answer it. Needs nginx, and wrk or h2load (Debian: nginx-light, wrk, nghttp2-client).
"""

import signal
import subprocess
import sys
import threading
import time

import support

PORTS = [18921, 18922, 18923]


def load(kind, seconds):
    url = f"http://127.0.0.1:{support.LISTEN}/"
    if kind == "wrk":
        command = ["wrk", "-t", "2", "-c", "64", "-d", f"{seconds}s", "--timeout", "10s", url]
    else:
        command = ["h2load", "-c", "8", "-m", "8", "-t", "1", "-D", str(seconds), url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def phases(servers, length):
    """What happens to the servers, in order: each phase takes `length` seconds. The last value says
    whether a server is there to answer throughout."""
    first, second, third = servers

    def wait():
        time.sleep(length)

    def kill_one():
        first.kill()
        time.sleep(length / 2)
        first.start()
        time.sleep(length / 2)

    def restart_each():
        for server in servers:
            server.restart()
            time.sleep(length / 3)

    def stop_one():
        second.signal(signal.SIGSTOP)
        time.sleep(length / 2)
        second.signal(signal.SIGCONT)
        time.sleep(length / 2)

    def slow_one():
        third.slow_down(length)

    def kill_two():
        first.kill()
        second.kill()
        time.sleep(length / 2)
        first.start()
        second.start()
        time.sleep(length / 2)

    def stop_one_and_restart_two():
        third.signal(signal.SIGSTOP)
        time.sleep(length / 2)
        first.kill()
        second.kill()
        time.sleep(length / 10)
        first.start()
        second.start()
        time.sleep(length * 4 / 10)
        third.signal(signal.SIGCONT)

    yield "nothing", wait, True
    yield "one server is killed, later started", kill_one, True
    yield "one after the other restarts", restart_each, True
    yield "one server hangs, later goes on", stop_one, True
    yield "one server works a tenth of the time", slow_one, True
    yield "two servers are killed, later started", kill_two, True
    yield "one hangs, the other two restart", stop_one_and_restart_two, False
    yield "nothing", wait, True


def run(options, folder):
    servers = [support.Nginx(folder, port) for port in PORTS]
    upstream = ", response_timeout: 2s, idle_timeout: 2s"
    gateway = support.Gateway(folder, options.weir, PORTS, upstream)
    has_failed = False
    over = threading.Event()
    try:
        # What the first requests allocate is not a leak.
        load(options.load, 2).wait()
        time.sleep(5)
        before = gateway.descriptors(), gateway.resident()
        last = gateway.counts()
        client = load(options.load, options.seconds)
        peak = [0, 0]

        def watch():
            while not over.wait(0.25):
                peak[:] = max(peak[0], gateway.descriptors()), max(peak[1], gateway.resident())

        threading.Thread(target=watch, daemon=True).start()
        for name, happen, is_served in phases(servers, options.seconds / 8.5):
            happen()
            now = gateway.counts()
            difference = {key: now[key] - last.get(key, 0) for key in now}
            last = now
            shown = ", ".join(f"{key} {count:,}" for key, count in difference.items() if count)
            print(f"{name:45} {shown}", flush=True)
            has_failed |= is_served and difference.get("5xx", 0) > 0
        print(client.communicate()[0])
        over.set()
        time.sleep(5)
        after = gateway.descriptors(), gateway.resident()
        for name, values in zip(["file descriptors", "resident KiB"], zip(before, peak, after)):
            print("{}: {:,} before, {:,} at most, {:,} after".format(name, *values))
    finally:
        over.set()
        gateway.stop()
        for server in servers:
            server.signal(signal.SIGCONT)
            server.kill()
    return has_failed


def main():
    options = support.options(
        __doc__.splitlines()[0],
        load={"choices": ["wrk", "h2load"], "default": "wrk"},
        seconds={"type": int, "default": 60},
    )
    with support.folder() as folder:
        sys.exit(run(options, folder))


main()
