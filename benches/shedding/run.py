#!/usr/bin/env python3
"""A slow app behind Weir, HAProxy and Envoy: it loses nine tenths of its workers for a phase, and gets
twice its load all the time. Three of four requests have the lower priority.

    WEIR=target/release/weir benches/shedding/run.py out     # prints a table

The curves are written to out/curves.csv and drawn in out/curves.svg. Those of the same app in the
simulation, in virtual time, are drawn by

    cargo bench --bench concurrency -- --curves > simulated.csv
    benches/shedding/run.py --simulated simulated.csv docs/images/shedding.svg

How many requests of five accounts pass beside one account that takes all it can get, by slow requests
or by bodies that it keeps back, before an app that can handle all of it, is printed by

    WEIR=target/release/weir benches/shedding/run.py --greedy

for Weir alone: the others know no accounts. Each line has the share of the others' requests that
passed, in all and after the first two seconds of the attack, and the greedy account's in a second.

HAProxy limits by `maxconn` of its server, which is set to the app's workers, and queues by priority;
Envoy by its filter adaptive_concurrency, which knows no priorities. `haproxy` and `envoy` are found in
PATH, or named by HAPROXY and ENVOY; one that is missing is left out. All run beside the app and the
load on this machine, so the numbers compare within one run alone.
"""

import asyncio
import csv
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from pathlib import Path

WORKERS = [20, 2, 20]
SERVICE = 0.1
PHASE = float(os.environ.get("PHASE", "60"))
RATE = 2 * WORKERS[0] / SERVICE
APP, PROXY = 18081, 18082
GIVE_UP = 10


class App:
    """Serves as many requests at a time as it has workers; the others wait in their order."""

    def __init__(self):
        self.workers, self.busy, self.waiting = WORKERS[0], 0, deque()

    async def work(self):
        if self.busy >= self.workers:
            turn = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            await turn
        self.busy += 1
        await asyncio.sleep(SERVICE * random.uniform(0.8, 1.2))
        self.busy -= 1
        while self.waiting and self.busy < self.workers:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break

    async def serve(self, reader, writer):
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await self.work()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    def set_workers(self, workers):
        self.workers = workers
        for _ in range(workers - self.busy):
            if self.waiting and not self.waiting[0].done():
                self.waiting.popleft().set_result(None)


class Load:
    """Sends requests at random times, whether earlier ones were answered or not."""

    def __init__(self):
        self.idle, self.results = [], []

    async def request(self, path, start, high):
        began = time.monotonic()
        status = 0
        try:
            status = await asyncio.wait_for(self.exchange(path), GIVE_UP)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass
        now = time.monotonic()
        self.results.append((began - start, now - start, high, status, now - began))

    async def exchange(self, path):
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection(
            "127.0.0.1", PROXY)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: app\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            fields = head.decode("latin-1").lower().split("\r\n")
            length = [line for line in fields if line.startswith("content-length:")]
            await reader.readexactly(int(length[0].split(":")[1]) if length else 0)
        except BaseException:
            writer.close()
            raise
        if length and "connection: close" not in fields:
            self.idle.append((reader, writer))
        else:
            writer.close()
        return int(head.split()[1])

    async def run(self, app):
        start, tasks, next_at = time.monotonic(), set(), 0.0
        while next_at < len(WORKERS) * PHASE:
            await asyncio.sleep(max(0, start + next_at - time.monotonic()))
            phase = min(int((time.monotonic() - start) / PHASE), len(WORKERS) - 1)
            if app.workers != WORKERS[phase]:
                app.set_workers(WORKERS[phase])
            high = random.random() < 0.25
            task = asyncio.create_task(self.request("/high" if high else "/low", start, high))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            next_at += random.expovariate(RATE)
        await asyncio.gather(*tasks)
        return self.results


def weir(folder):
    (folder / "gateway.yaml").write_text(f"""
listen: [{{address: "127.0.0.1:{PROXY}"}}]
upstreams: {{app: {{servers: ["http://127.0.0.1:{APP}"], concurrency: adaptive}}}}
defaults: {{limits: []}}
log: {{access: false}}
routes:
  - {{match: {{path: /high}}, upstream: app, priority: high}}
  - {{match: {{path: /low}}, upstream: app, priority: low}}
""")
    return [os.environ.get("WEIR", "weir"), "run", "--config", str(folder / "gateway.yaml")]


def haproxy(folder):
    (folder / "haproxy.cfg").write_text(f"""
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout queue 1s
frontend front
  bind 127.0.0.1:{PROXY}
  http-request set-priority-class int(-10) if {{ path /high }}
  default_backend app
backend app
  server app 127.0.0.1:{APP} maxconn {WORKERS[0]}
""")
    return [os.environ.get("HAPROXY", "haproxy"), "-f", str(folder / "haproxy.cfg")]


def envoy(folder):
    (folder / "envoy.yaml").write_text(f"""
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {PROXY}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - {{name: app, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: app, timeout: 60s}}}}]}}
          http_filters:
          - name: envoy.filters.http.adaptive_concurrency
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency
              gradient_controller_config:
                sample_aggregate_percentile: {{value: 50}}
                concurrency_limit_params: {{concurrency_update_interval: 0.1s}}
                min_rtt_calc_params: {{interval: 60s, request_count: 50}}
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: app
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{{max_connections: 10000, max_pending_requests: 10000, max_requests: 10000}}]}}
    load_assignment:
      cluster_name: app
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {APP}}}}}}}}}]}}]
""")
    return [os.environ.get("ENVOY", "envoy"), "-c", str(folder / "envoy.yaml"), "-l", "error"]


class Bearing:
    """An app that serves any number of requests at a time: as many milliseconds each as the path says,
    once it has the body."""

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = [line for line in head.split("\r\n") if line.startswith("content-length:")]
                await reader.readexactly(int(length[0].split(":")[1]) if length else 0)
                await asyncio.sleep(int(head.split()[1].rpartition("/")[2]) / 1000)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()


class Account:
    """Connections of one account, each with one request at a time."""

    def __init__(self, name, until):
        self.name, self.until, self.results = name, until, []

    async def go_on(self, request, leaves_after, pause):
        stream = None
        while time.monotonic() < self.until:
            began, status = time.monotonic(), 0
            try:
                stream = stream or await asyncio.open_connection("127.0.0.1", PROXY)
                head, _, body = request.partition("\n\n")
                head = f"{head}\nhost: app\nx-account: {self.name}\n\n".replace("\n", "\r\n")
                stream[1].write(head.encode() + body.encode())
                status = await asyncio.wait_for(self.status(stream[0]), leaves_after)
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                if stream:
                    stream[1].close()
                stream = None
            self.results.append((began, status))
            await asyncio.sleep(pause() if status else 0)
        if stream:
            stream[1].close()

    @staticmethod
    async def status(reader):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = head.split("content-length: ")[1].split("\r\n")[0]
        await reader.readexactly(int(length))
        return int(head.split()[1])


FIXED = "{limit: 10, max_wait: 100ms}"
WITHHELD = "POST /0 HTTP/1.1\ncontent-length: 1000\n\nabc"
# What it is, `concurrency`, other keys of the upstream; the greedy account's connections, its
# request, and after how many seconds it leaves; how many milliseconds the others' requests take.
GREEDY = [
    ("bodies, 10 slots", FIXED, "", 12, WITHHELD, 0.95, 5),
    ("the same, buffered", FIXED, ", request_buffering: {max: 64KiB}", 12, WITHHELD, 0.95, 5),
    ("the same, `request_buffering: off`", FIXED, ", request_buffering: off", 12, WITHHELD, 0.95, 5),
    ("bodies, adaptive", "adaptive", "", 12, WITHHELD, 0.95, 5),
    ("requests of 0.5 s, adaptive", "adaptive", "", 40, "GET /500 HTTP/1.1", 10, 20),
    ("requests of 3 s, left after 1 s", "adaptive", "", 40, "GET /3000 HTTP/1.1", 1, 20),
]


def weir_with_accounts(folder, concurrency, keys):
    (folder / "gateway.yaml").write_text(f"""
listen: [{{address: "127.0.0.1:{PROXY}"}}]
account: [{{header: x-account}}]
upstreams: {{app: {{servers: ["http://127.0.0.1:{APP}"], concurrency: {concurrency}{keys}}}}}
defaults: {{limits: []}}
log: {{access: false}}
routes: [{{match: {{path: "/*"}}, upstream: app}}]
""")
    return [os.environ.get("WEIR", "weir"), "run", "--config", str(folder / "gateway.yaml")]


async def beside_greedy(connections, request, leaves_after, millis, seconds):
    """The others' statuses with the seconds since the attack began, and how many requests of the greedy
    account passed in a second."""
    start = time.monotonic() + 2
    until = start + seconds
    others = [Account(f"other-{number}", until) for number in range(5)]
    greedy = Account("greedy", until)
    calm = [other.go_on(f"GET /{millis} HTTP/1.1", GIVE_UP, lambda: random.expovariate(20))
            for other in others]

    async def attack():
        await asyncio.sleep(2)
        # One that is shed comes back after 20 ms.
        one = lambda: greedy.go_on(request, leaves_after, lambda: 0.02)
        await asyncio.gather(*[one() for _ in range(connections)])

    await asyncio.gather(*calm, attack())
    results = [(began - start, status) for other in others for began, status in other.results]
    passed = sum(status == 200 for _, status in greedy.results)
    return [result for result in results if result[0] > 0], passed / seconds


async def greedy_accounts():
    for name, concurrency, keys, connections, request, leaves_after, millis in GREEDY:
        make = lambda folder: weir_with_accounts(folder, concurrency, keys)
        seconds = min(PHASE, 20)
        run = lambda: beside_greedy(connections, request, leaves_after, millis, seconds)
        results, passed = await behind(make, Bearing(), run)
        share = lambda rows: sum(status == 200 for _, status in rows) / max(1, len(rows))
        later = [result for result in results if result[0] > 2]
        print(f"{name:36} {share(results):4.0%} {share(later):4.0%} {passed:5.0f}/s", flush=True)


async def behind(make, app, run):
    """Runs something while the proxy that `make` starts stands before the app."""
    with tempfile.TemporaryDirectory() as folder:
        command = make(Path(folder))
        if not shutil.which(command[0]):
            return None
        server = await asyncio.start_server(app.serve, "127.0.0.1", APP)
        with open(Path(folder) / "log", "wb") as log:
            proxy = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(100):
                await asyncio.sleep(0.1)
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", PROXY)
                    writer.close()
                    break
                except OSError:
                    continue
            return await run()
        finally:
            proxy.terminate()
            proxy.wait()
            server.close()


def percentile(values, percent):
    values = sorted(values)
    return 1000 * values[min(len(values) * percent // 100, len(values) - 1)] if values else 0


def report(name, results, rows):
    cells = []
    for phase, workers in enumerate(WORKERS):
        # The first twelfth of a phase is the way there.
        begin, end = (phase + 1 / 12) * PHASE, (phase + 1) * PHASE
        sent = [row for row in results if begin <= row[0] < end]
        good = [row for row in results if begin <= row[1] < end and row[3] == 200]
        high = [row for row in sent if row[2]]
        served = sum(row[3] == 200 for row in high) / max(1, len(high))
        latencies = [row[4] for row in good]
        goodput = len(good) / (end - begin) / (workers / SERVICE)
        cells.append(f"{goodput:4.0%} {percentile(latencies, 50):6.0f} ms "
                     f"{percentile(latencies, 99):6.0f} ms {served:4.0%}")
    print(f"{name:8} | " + " | ".join(cells), flush=True)
    served, sent = defaultdict(list), defaultdict(list)
    for row in results:
        if row[3] == 200:
            served[int(row[1])].append(row)
        if row[2]:
            sent[int(row[0])].append(row[3] == 200)
    for second in range(int(len(WORKERS) * PHASE)):
        capacity = WORKERS[int(second / PHASE)] / SERVICE
        better = sent[second]
        rows.append([name, second, round(100 * len(served[second]) / capacity, 1),
                     round(100 * sum(better) / max(1, len(better)), 1),
                     round(percentile([row[4] for row in served[second]], 50), 1)])


# Name of the panel, column of the rows, least and greatest value, lines, whether it is logarithmic.
PANELS = [("served, % of the app's capacity", 2, 0, 150, [0, 50, 100, 150], False),
          ("better class served, %", 3, 0, 100, [0, 50, 100], False),
          ("median latency of what was served, ms", 4, 50, 20000, [100, 1000, 10000], True)]
SIMULATED = [PANELS[0], PANELS[2], ("limit on requests in flight", 3, 1, 100, [1, 10, 100], True)]
COLOURS = {"Weir": "#0b7285", "HAProxy": "#c2410c", "Envoy": "#7c3aed",
           "fixed at its workers": "#c2410c"}
WIDTH, HEIGHT, LEFT, TOP = 640, 130, 50, 40


def svg(rows, panels, phase):
    """The curves as a picture that needs nothing else."""
    seconds = len(WORKERS) * phase
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 25} '
           f'{TOP + len(panels) * (HEIGHT + 40)}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="#fff"/>']
    names = [name for name in COLOURS if any(row[0] == name for row in rows)]
    for index, name in enumerate(names):
        x = LEFT + index * 110
        out.append(f'<rect x="{x}" y="6" width="12" height="12" fill="{COLOURS[name]}"/>'
                   f'<text x="{x + 17}" y="16">{name}</text>')
    for index, (title, column, least, most, lines, is_log) in enumerate(panels):
        top = TOP + index * (HEIGHT + 40)
        scale = math.log if is_log else float

        def y(value):
            value = min(max(value, least), most)
            share = (scale(value) - scale(least)) / (scale(most) - scale(least))
            return top + HEIGHT * (1 - share)

        def x(second):
            return LEFT + WIDTH * second / seconds

        out.append(f'<text x="{LEFT}" y="{top - 6}">{title}</text>'
                   f'<rect x="{x(phase):.0f}" y="{top}" width="{WIDTH / len(WORKERS):.0f}" '
                   f'height="{HEIGHT}" fill="#f1f3f5"/>')
        for line in lines:
            out.append(f'<path d="M{LEFT} {y(line):.1f}h{WIDTH}" stroke="#ced4da"/><text '
                       f'x="{LEFT - 5}" y="{y(line) + 4:.1f}" text-anchor="end">{line}</text>')
        for second in range(0, int(seconds) + 1, max(1, int(phase / 2))):
            out.append(f'<text x="{x(second):.0f}" y="{top + HEIGHT + 15}" '
                       f'text-anchor="middle">{second} s</text>')
        for name in names:
            points = " ".join(f"{x(row[1] + 0.5):.1f},{y(row[column]):.1f}" for row in rows
                              if row[0] == name)
            out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" '
                       'stroke-width="1.5"/>')
    return "\n".join(out + ["</svg>", ""])


def simulated(path):
    """Rows of the simulation for the app that `App` is too."""
    rows, is_ours = [], False
    for line in Path(path).read_text().splitlines():
        cells = line.rsplit(",", 4)
        if len(cells) != 5:
            is_ours = line.startswith("20 workers") or (is_ours and line.startswith(" "))
        elif is_ours and cells[0] in COLOURS:
            name, second, served, median, limit = cells[0], *map(float, cells[1:])
            capacity = WORKERS[int(second / 60)] / SERVICE
            rows.append([name, second, 100 * served / capacity, limit, median])
    return rows


async def measure(name, make, rows):
    app = App()
    results = await behind(make, app, lambda: Load().run(app))
    if results is None:
        print(f"{name:8} | left out: it is not installed")
        return
    report(name, results, rows)


async def main(out):
    print("for each phase: goodput of capacity, median and 99th percentile of the latency of what was "
          "served, share of the better class that was")
    rows = []
    for name, make in [("Weir", weir), ("HAProxy", haproxy), ("Envoy", envoy)]:
        await measure(name, make, rows)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "curves.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["proxy", "second", "served_percent", "better_class_percent", "median_ms"])
        writer.writerows(rows)
    (out / "curves.svg").write_text(svg(rows, PANELS, PHASE))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--greedy"]:
        asyncio.run(greedy_accounts())
    elif sys.argv[1:2] == ["--simulated"]:
        Path(sys.argv[3]).write_text(svg(simulated(sys.argv[2]), SIMULATED, 60))
    else:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out")))
