#!/usr/bin/env python3
"""Thousands of clients that send or read slowly, and how others are served meanwhile.

Runs slowhttptest (Debian: slowhttptest; and nginx-light) in its three modes with 2,000 connections,
and measures the latency of one client that sends 200 requests a second, each on a kept connection
and every tenth on a new one.
"""

import http.client
import statistics
import subprocess
import threading
import time

import support

# Its own server has what is read slowly: it is busy with 2,000 clients, too.
PORT, LARGE = 18921, 18922
URL = f"http://127.0.0.1:{support.LISTEN}"


def modes(count, seconds):
    common = ["slowhttptest", "-c", str(count), "-r", "1000", "-l", str(seconds), "-p", "3"]
    yield "slow headers", [*common, "-H", "-i", "5", "-u", URL + "/"]
    yield "slow body", [*common, "-B", "-i", "5", "-s", "8192", "-u", URL + "/"]
    reading = ["-X", "-n", "5", "-w", "512", "-y", "1024", "-z", "32", "-k", "3"]
    yield "slow read", [*common, *reading, "-u", URL + "/large"]


def measure(over):
    """The latencies in milliseconds until the event, and how many requests failed."""
    latencies, failures = [], 0
    kept = http.client.HTTPConnection("127.0.0.1", support.LISTEN, timeout=10)
    while not over.is_set():
        begin = time.perf_counter()
        is_new = len(latencies) % 10 == 0
        try:
            connection = kept
            if is_new:
                connection = http.client.HTTPConnection("127.0.0.1", support.LISTEN, timeout=10)
            connection.request("GET", "/")
            response = connection.getresponse()
            response.read()
            failures += response.status != 200
            if is_new:
                connection.close()
        except OSError as error:
            print("failed:", error)
            failures += 1
            kept.close()
        latencies.append(1000 * (time.perf_counter() - begin))
        time.sleep(max(0, 0.005 - (time.perf_counter() - begin)))
    return latencies, failures


def report(name, latencies, failures, gateway, most=0):
    cuts = statistics.quantiles(latencies, n=100)
    latency = "median {:.2f} ms, p90 {:.2f} ms, p99 {:.2f} ms".format(cuts[49], cuts[89], cuts[98])
    print(
        f"{name}: {len(latencies):,} requests, {failures} failed; {latency},",
        f"longest {max(latencies):.1f} ms; {most:,} connections at most;",
        f"{gateway.resident():,} KiB, {gateway.descriptors():,} file descriptors",
        flush=True,
    )


def main():
    options = support.options(
        __doc__.splitlines()[0],
        connections={"type": int, "default": 2000},
        seconds={"type": int, "default": 30},
    )
    with support.folder() as folder:
        (folder / "large").write_bytes(b"x" * 1_000_000)
        (folder / "large").chmod(0o644)
        servers = [support.Nginx(folder, port) for port in (PORT, LARGE)]
        gateway = support.Gateway(folder, options.weir, [PORT], large=LARGE)
        try:
            over = threading.Event()
            threading.Timer(10, over.set).start()
            report("nothing", *measure(over), gateway)
            for name, command in modes(options.connections, options.seconds):
                over = threading.Event()
                most = 0

                def run():
                    nonlocal most
                    tester = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                    while tester.poll() is None:
                        time.sleep(0.5)
                        most = max(most, int(gateway.metric("weir_connections_open")))
                    over.set()

                threading.Thread(target=run).start()
                latencies, failures = measure(over)
                report(name, latencies, failures, gateway, most)
        finally:
            gateway.stop()
            for server in servers:
                server.kill()


main()
