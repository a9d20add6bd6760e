"""Honest clients beside a flood of connections of banned ones: `benches/compare/soak.sh`.

Each banned address earns its ban, and then tries to connect again and again, past its end. Honest
clients, half of them next to a banned one, send requests at a rate. What must hold of each: who is
not banned always gets a response; who is banned gets none before its ban ends, and one soon after.
How long the honest ones wait is compared with a while before, in which the same flood goes to a port
where nobody hears it: so the flood's own CPU is on both sides.
"""

import argparse
import collections
import heapq
import json
import multiprocessing
import os
import random
import select
import socket
import sys
import time
import urllib.request

from . import flood
from .measure import command
from .peers import Place, upstream
from .processes import Failed, Service, count_cores

#: Requests on a connection of an honest client, before it opens another.
ON_A_CONNECTION = 20
#: After how long a request counts as lost.
PATIENCE = 5.0

HEAD = b"GET %s HTTP/1.1\r\nhost: soak\r\n\r\n"
WELCOME = b"HTTP/1.1 200 "


def options():
    parser = argparse.ArgumentParser(prog="benches/compare/soak.sh", description=__doc__)
    add = parser.add_argument
    add("results", nargs="?", default="target/soak", help="folder to write to [%(default)s]")
    add("--rounds", type=int, default=1, help="[%(default)s]")
    add("--seconds", type=float, default=60.0, help="of the flood [%(default)s]")
    add("--banned", type=int, default=5_000, help="addresses [%(default)s]")
    add("--rate", type=float, default=5_000.0, help="connections/s of theirs [%(default)s]")
    add("--honest", type=int, default=200, help="clients [%(default)s]")
    add("--honest-rate", type=float, default=1_000.0, help="requests/s of theirs [%(default)s]")
    add("--earn", type=float, default=20.0, help="s in which all can earn bans [%(default)s]")
    add("--late", type=float, default=3.0, help="s after which an ended ban holds no more")
    add("--base-port", type=int, default=21_000, help="[%(default)s]")
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    add("--proxy-core", default=cores[0], help="Weir's core [%(default)s]")
    add("--load-cores", default=",".join(cores[1:] or cores), help="all others' [%(default)s]")
    parsed = parser.parse_args()
    parsed.results = os.path.abspath(parsed.results)
    return parsed


def main():
    parsed = options()
    if not os.environ.get("WEIR_SOAK"):
        flood.require_namespace()
        words = flood.within_namespace([sys.executable, "-B", "-m", "harness.soak", *sys.argv[1:]])
        os.execvpe(words[0], words, {**os.environ, "WEIR_SOAK": "within"})
    os.makedirs(parsed.results, exist_ok=True)
    figures = []
    for number in range(1, parsed.rounds + 1):
        figures.append(one_round(parsed))
        print(f"round {number}: {json.dumps(figures[-1])}", flush=True)
        with open(os.path.join(parsed.results, "soak.json"), "w") as file:
            json.dump(figures, file, indent=1)
    return 1 if any(own["faults"] for own in figures) else 0


def one_round(parsed):
    os.sched_setaffinity(0, {int(core) for core in parsed.load_cores.split(",")})
    banned, honest = addresses(parsed.banned, parsed.honest)
    services = []
    try:
        gateway = Gateway(parsed, services)
        deaf = flood.deaf_listener(parsed.base_port + 9)
        unheard = Attackers({address: (0.0, 0.0) for address in banned}, deaf.getsockname())
        before, _ = together(parsed, gateway, honest, unheard, parsed.seconds)
        deaf.close()
        bans = gateway.ban(banned)
        first = min(earliest for earliest, _ in bans.values()) - time.time()
        if first < parsed.seconds:
            raise Failed(f"the first ban ends before the flood does, after {first:.0f} s")
        attackers = Attackers(bans, gateway.address)
        during, refused = together(parsed, gateway, honest, attackers, parsed.seconds)
        # Those who were let in are known to the other process alone, where there were any: faults.
        attackers.let_in |= refused["let_in"]
        metrics = gateway.metrics()
        left = max(latest for _, latest in bans.values()) + parsed.late - time.time()
        ending, ended = together(parsed, gateway, honest, attackers, max(left, 1.0))
    finally:
        for service in reversed(services):
            service.end()
    return {
        "p99_ratio": round(during["p99_ms"] / before["p99_ms"], 2),
        "before": before,
        "during": during,
        "while_bans_end": ending,
        "attempts": refused["attempts"],
        "connected": refused["connected"],
        "metrics": metrics,
        "ends": ends(bans, ended["let_in"]),
        "faults": faults(parsed, [before, during, ending], bans, ended["let_in"]),
    }


def addresses(banned, honest):
    """Scattered, and each second honest one next to a banned one."""
    places = range(1, flood.NETWORK.num_addresses // 2 - 1)
    drawn = [flood.NETWORK[2 * place] for place in random.sample(places, banned + honest)]
    beside = [address + 1 for address in drawn[: min(honest // 2, banned)]]
    others = drawn[banned:][: honest - len(beside)]
    return [str(it) for it in drawn[:banned]], [str(it) for it in [*beside, *others]]


class Gateway:
    """Weir before an upstream, with bans that outlast the flood."""

    def __init__(self, parsed, services):
        self.length = parsed.seconds + parsed.earn
        self.services, self.parsed = services, parsed
        behind = self.place("upstream", 0)
        self.start("nginx", upstream(behind), parsed.load_cores, behind)
        own = self.place("weir", 10, flood.SERVER)
        self.address = (own.host, own.port)
        self.admin = own.port + 1
        path = own.write(
            "gateway.yaml",
            f"listen: [{{address: '{own.host}:{own.port}'}}]\n"
            f"admin: {{address: '127.0.0.1:{self.admin}'}}\n"
            f"workers: {own.workers}\n"
            "grace: 1s\n"
            "log: {access: false, level: warn}\n"
            "bans:\n"
            "  scanners:\n"
            "    per: address\n"
            "    strikes: {paths: /trap, count: 1, period: 1h}\n"
            f"    for: {self.length:.0f}s\n"
            "    on_denied: {drop: {in_kernel: auto}}\n"
            f"upstreams: {{app: {{servers: ['http://127.0.0.1:{own.upstream}']}}}}\n"
            "routes: [{name: all, match: {path: '/*'}, upstream: app}]\n",
        )
        self.service = self.start("weir", (["--config", path], {}), parsed.proxy_core, own)

    def place(self, name, port, host="127.0.0.1"):
        base = self.parsed.base_port
        folder = os.path.join(self.parsed.results, "run", name)
        os.makedirs(folder, exist_ok=True)
        workers = count_cores(self.parsed.proxy_core)
        return Place(folder, base + port, base, base + 1, "", None, workers, host)

    def start(self, peer, configured, cores, place):
        argv, environment = command(peer, configured, "")
        service = Service(peer, argv, cores, os.path.join(place.folder, "log"), environment)
        self.services.append(service)
        service.wait_for_port(place.port, host=place.host)
        return service

    def ban(self, banned):
        """Has each earn its ban, and come once more. Says when it ends at the earliest and latest."""
        bans = {}
        for address in banned:
            earned = time.time()
            if not self.ask(address, b"/trap").startswith(WELCOME):
                raise Failed(f"{address} was refused before it was banned")
            bans[address] = (earned + self.length, time.time() + self.length)
            if self.ask(address, b"/"):
                raise Failed(f"{address} was answered although it is banned")
        return bans

    def ask(self, address, path):
        with socket.create_connection(self.address, PATIENCE, (address, 0)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, flood.RESET)
            client.sendall(HEAD % path)
            try:
                return client.recv(4096)
            except ConnectionError:
                return b""

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics") as page:
            lines = [line.split() for line in page.read().decode().splitlines()]
        shown = ("weir_refused_peers", "weir_refused_in_kernel", "weir_connections_refused_total")
        return {line[0]: float(line[1]) for line in lines if line[0].startswith(shown)}


class Attackers(flood.Flood):
    """Those who are banned, each in its turn. Who was let in tries no more."""

    def __init__(self, bans, to):
        super().__init__(to, list(bans), 0)
        #: When the connection was made that was answered, by address.
        self.let_in = {}
        self.connected = {}

    def run(self, seconds):
        self.connected.clear()
        counts = super().run(seconds)
        return {"attempts": 0, "connected": 0, **counts, "let_in": self.let_in}

    def attempt(self, now):
        address = next(self.sources)
        self.counts["attempts"] += 1
        if address in self.let_in or address in self.connected:
            return
        own = flood.begin(address, self.to)
        if flood.sent(own):
            self.counts["connected"] += 1
            self.connected[address] = time.time()
            self.open.append((now, own, address))
        else:
            own.close()

    def end(self, own, address):
        """Sees to a connection, which is kept while it is neither answered nor closed."""
        try:
            is_welcome = own.recv(64).startswith(WELCOME)
        except BlockingIOError:
            if time.time() < self.connected[address] + PATIENCE:
                self.open.append((time.monotonic(), own, address))
                return
            is_welcome = False
        except OSError:
            is_welcome = False
        at = self.connected.pop(address)
        if is_welcome:
            self.let_in[address] = at
        flood.reset(own)


class Honest:
    """A client that sends requests at a rate, each at its time, one after another."""

    def __init__(self, address, due):
        self.address, self.due = address, due
        self.own, self.requests, self.is_sent = None, 0, False

    def __lt__(self, other):
        return self.due < other.due


def honest_clients(addresses, to, rate, seconds):
    """Latencies from when requests were due, and what went wrong."""
    counts = collections.Counter({"lost": 0, "denied": 0, "unheard": 0})
    latencies = []
    period = len(addresses) / rate
    start = time.monotonic()
    idle = [Honest(it, start + place / rate) for place, it in enumerate(addresses)]
    poll, waiting = select.epoll(), {}
    now = start
    while now < start + seconds or (waiting and now < start + seconds + PATIENCE):
        while idle and idle[0].due <= min(now, start + seconds):
            client = heapq.heappop(idle)
            begin_request(client, to, poll, counts)
            waiting[client.own.fileno()] = client
        for number, _ in poll.poll(0.001):
            if not waiting[number].is_sent:
                send_late(waiting[number], poll)
                continue
            client = waiting.pop(number)
            now = time.monotonic()
            poll.unregister(number)
            if end_request(client, counts):
                latencies.append(now - client.due)
            if client.requests % ON_A_CONNECTION == 0:
                close(client)
            # Who was late skips nothing: the next request is due as planned.
            client.due += period
            heapq.heappush(idle, client)
        now = time.monotonic()
    counts["lost"] += len(waiting)
    for client in [*idle, *waiting.values()]:
        close(client)
    latencies.sort()
    return {
        "requests": len(latencies),
        "p50_ms": round(1e3 * quantile(latencies, 0.5), 3),
        "p99_ms": round(1e3 * quantile(latencies, 0.99), 3),
        "longest_ms": round(1e3 * latencies[-1], 1),
        **counts,
    }


def begin_request(client, to, poll, counts):
    if client.own is None:
        client.own = flood.begin(client.address, to)
    client.requests += 1
    client.is_sent = flood.sent(client.own, HEAD % b"/")
    poll.register(client.own, select.EPOLLIN if client.is_sent else select.EPOLLOUT)
    if not client.is_sent:
        # The handshake was dropped. The kernel tries again after a second.
        counts["unheard"] += 1


def send_late(client, poll):
    flood.sent(client.own, HEAD % b"/")
    client.is_sent = True
    poll.modify(client.own, select.EPOLLIN)


def end_request(client, counts):
    """Whether it was answered as it should be."""
    try:
        response = client.own.recv(4096)
    except OSError:
        response = b""
    if response.startswith(WELCOME):
        return True
    counts["denied" if response else "lost"] += 1
    close(client)
    return False


def close(client):
    if client.own:
        flood.reset(client.own)
        client.own = None


def quantile(ordered, part):
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def together(parsed, gateway, honest, attackers, seconds):
    """What honest clients see while others attack, and what those see. Each has a process."""
    attackers.rate = parsed.rate
    cpu = gateway.service.cpu_seconds()
    attack = apart(lambda: attackers.run(seconds))
    seen = apart(lambda: honest_clients(honest, gateway.address, parsed.honest_rate, seconds))
    seen, attack = seen(), attack()
    cpu = gateway.service.cpu_seconds() - cpu
    return {**seen, "busy_percent": round(100 * cpu / seconds, 1)}, attack


def apart(work):
    """Begins work in another process. Returns what waits for its result."""
    context = multiprocessing.get_context("fork")
    result, own = context.Pipe(duplex=False)
    process = context.Process(target=lambda: own.send(work()))
    process.start()
    # So that the end of the process is the end of the pipe.
    own.close()

    def wait():
        try:
            return result.recv()
        except EOFError:
            raise Failed("a process of the soak ended early") from None
        finally:
            process.join()

    return wait


def ends(bans, let_in):
    """How long after its end the first and the last ban held, as far as attempts can say it."""
    after = [at - bans[address][1] for address, at in let_in.items()]
    if not after:
        return {"ended": 0}
    after.sort()
    return {
        "ended": len(after),
        "first_s": round(after[0], 3),
        "median_s": round(quantile(after, 0.5), 3),
        "last_s": round(after[-1], 3),
    }


def faults(parsed, phases, bans, let_in):
    found = [
        f"{count} requests of honest clients were {what}"
        for what in ("lost", "denied", "unheard")
        if (count := sum(phase[what] for phase in phases))
    ]
    early = [address for address, at in let_in.items() if at < bans[address][0]]
    if early:
        found.append(f"{len(early)} were let in although they were banned, such as {early[0]}")
    late = [
        address
        for address, (_, latest) in bans.items()
        if let_in.get(address, latest + parsed.late + 1) > latest + parsed.late
    ]
    if late:
        found.append(f"{len(late)} were refused after their bans, such as {late[0]}")
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"soak.sh: {failure}")
