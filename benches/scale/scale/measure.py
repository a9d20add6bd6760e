"""One cell: so many gateways on so many shards, each request with so many limits."""

import contextlib
import os
import shutil
import statistics
from dataclasses import asdict, dataclass

from harness.peers import Place, executable
from harness.peers import upstream as upstream_words
from harness.processes import Failed, Load, Service, refuse_taken
from harness.scenarios import Scenario

from . import redis

#: What limits count per. Each has a bucket for each subject, so they spread over the shards.
LIMITS = ("path:id", "[path:id, method]", "[path:id, host]", "[path:id, domain]")
PLENTY = 1_000_000_000


@dataclass(frozen=True)
class Cell:
    gateways: int
    shards: int
    limits: int

    def __str__(self):
        return f"{self.gateways} gateways, {self.shards} shards, {self.limits} limits"


@dataclass
class Figures:
    """Of one run. A decision is one limit's about one request."""

    #: Microseconds of CPU of all gateways for a request.
    gateway_us: float
    #: Microseconds of CPU of all shards for a decision; 0 without limits.
    redis_us: float
    #: Commands that decide, for a decision.
    commands: float
    #: Bytes of payload between gateways and shards for a decision, there and back.
    bytes_there: float
    bytes_back: float
    #: Decisions that a shard has found in what it read at once.
    a_read: float
    requests: int
    seconds: float


CPU = ("gateway_us", "redis_us")


def typical(runs):
    """The median of each figure; of CPU time the least, as what else the machine does only adds."""
    values = [asdict(run) for run in runs]
    found = {name: statistics.median(v[name] for v in values) for name in values[0]}
    return Figures(**found | {name: min(v[name] for v in values) for name in CPU})


class Machine:
    """What the cells share: the upstream, and where things are put."""

    def __init__(self, options):
        self.options = options
        self.services = contextlib.ExitStack()

    def __enter__(self):
        options = self.options
        with contextlib.ExitStack() as services:
            place = self.place("upstream", 0)
            words, environment = upstream_words(place)
            nginx = executable("nginx", options.cache)
            if not nginx:
                raise Failed("nginx is not installed")
            self.start(services, "upstream", [nginx, *words], place, environment)
            self.services = services.pop_all()
        return self

    def __exit__(self, *failure):
        return self.services.__exit__(*failure)

    def place(self, name, port):
        base = self.options.base_port
        folder = os.path.join(self.options.results, "run", name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return Place(folder, base + port, base, base + 1, self.options.cache)

    def start(self, services, name, argv, place, environment=None):
        refuse_taken(name, place.port)
        log = os.path.join(place.folder, "log")
        service = Service(name, argv, self.options.cores, log, environment)
        services.callback(service.end)
        service.wait_for_port(place.port)
        return service

    def shards(self, services, count, first=10, in_cluster=False):
        """Several are a Cluster, and so is one if asked for."""
        in_cluster = in_cluster or count > 1
        shards = []
        for number in range(first - 10, first - 10 + count):
            place = self.place(f"shard-{number}", 10 + number)
            words = redis.arguments(place.port, place.folder, in_cluster)
            service = self.start(services, f"shard {number}", ["redis-server", *words], place)
            shard = redis.Shard(service, place.port)
            services.callback(shard.connection.close)
            shards.append(shard)
        if in_cluster:
            redis.join(shards)
        return shards

    def gateway(self, services, number, cell, shards):
        place = self.place(f"gateway-{number}", 30 + number)
        place.write("limits/defaults.yaml", limits(cell.limits))
        ports = [shard.port for shard in shards]
        path = place.write("gateway.yaml", gateway(place, cell.limits, ports))
        argv = [self.options.weir, "--config", path]
        return self.start(services, f"gateway {number}", argv, place), place


def limits(count):
    quota = f"burst: {PLENTY}, count: {PLENTY}, period: 100s"
    lines = [f"L{number}: {{per: {per}, {quota}}}\n" for number, per in enumerate(LIMITS[:count])]
    return "".join(lines) or "{}\n"


def gateway(place, count, ports):
    nodes = ", ".join(f"'redis://127.0.0.1:{port}'" for port in ports)
    where = f"cluster: {{nodes: [{nodes}]}}" if len(ports) > 1 else f"url: {nodes}"
    names = ", ".join(f"L{number}" for number in range(count))
    return (
        f"listen: [{{address: 127.0.0.1:{place.port}}}]\n"
        "workers: 1\n"
        "grace: 1s\n"
        "log: {access: false, level: warn}\n"
        f"store: {{redis: {{{where}, timeout: 5s, on_failure: deny}}}}\n"
        f"upstreams: {{app: {{servers: ['http://127.0.0.1:{place.upstream}']}}}}\n"
        f"routes: [{{name: all, match: {{path: '/{{id}}'}}, upstream: app, limits: [{names}]}}]\n"
    )


def measure(machine, cell):
    """The figures of each round."""
    with contextlib.ExitStack() as services:
        shards = machine.shards(services, cell.shards) if cell.limits else []
        gateways = [
            machine.gateway(services, number, cell, shards or [_Nowhere()])
            for number in range(cell.gateways)
        ]
        loads = [
            services.enter_context(load(machine, place, subject))
            for _, place in gateways
            for subject in range(machine.options.subjects)
        ]
        services_of_gateways = [service for service, _ in gateways]
        return [
            run(machine.options.seconds, cell, services_of_gateways, shards, loads)
            for _ in range(machine.options.rounds)
        ]


class _Nowhere:
    """A shard that nothing asks, as no request has a limit."""

    port = 1


def load(machine, place, subject):
    options = machine.options
    connections = max(options.connections // options.subjects, 1)
    scenario = Scenario("scale", "", (), path=f"/{subject}", connections=connections)
    return Load(options.load, options.cores, place, scenario, 0)


def run(seconds, cell, gateways, shards, loads):
    before = counters(gateways, shards)
    outcomes = in_parallel(loads, f"closed {seconds}", seconds)
    after = counters(gateways, shards)
    return figures(cell, before, after, outcomes)


def in_parallel(loads, command, seconds):
    """All begin before the first answer is awaited."""
    for load in loads:
        load.send(command)
    return [load.outcome(seconds) for load in loads]


def counters(gateways, shards):
    stats = [shard.info("stats") for shard in shards]
    return {
        "gateways": sum(service.cpu_seconds() for service in gateways),
        "shards": sum(shard.service.cpu_seconds() for shard in shards),
        "commands": sum(shard.calls("bitfield") for shard in shards),
        "there": sum(stat["total_net_input_bytes"] for stat in stats),
        "back": sum(stat["total_net_output_bytes"] for stat in stats),
        "reads": sum(stat["total_reads_processed"] for stat in stats),
    }


def figures(cell, before, after, outcomes):
    requests = sum(outcome["answered"] for outcome in outcomes)
    wrong = sum(outcome["unexpected"] + outcome["lost"] for outcome in outcomes)
    if not requests or wrong > requests / 1000:
        raise Failed(f"{cell}: {wrong} of {requests} requests went wrong")
    spent = {name: after[name] - before[name] for name in before}
    decisions = requests * cell.limits
    each = decisions or 1
    if cell.limits and spent["commands"] < decisions * 0.99:
        raise Failed(f"{cell}: {spent['commands']} commands for {decisions} decisions")
    return Figures(
        gateway_us=spent["gateways"] * 1e6 / requests,
        redis_us=spent["shards"] * 1e6 / each,
        commands=spent["commands"] / each,
        bytes_there=spent["there"] / each,
        bytes_back=spent["back"] / each,
        a_read=decisions / max(spent["reads"], 1),
        requests=requests,
        seconds=max(outcome["seconds"] for outcome in outcomes),
    )


