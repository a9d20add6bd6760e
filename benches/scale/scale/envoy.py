"""What a decision of Envoy's rate limit service costs: Weir beside envoyproxy/ratelimit, with the same
calls, the same limits and a Redis of the same kind."""

import contextlib
from dataclasses import dataclass

from harness.processes import Failed, Load
from harness.scenarios import Scenario

DOMAIN = "edge"
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
PLENTY = 1_000_000_000

#: Settings of envoyproxy/ratelimit beside those that it needs to run here.
DEFAULTS = {}
#: Those that its documentation has for more load: calls share pipelines, and denials are remembered.
TUNED = {
    "REDIS_PIPELINE_WINDOW": "150us",
    "REDIS_PIPELINE_LIMIT": "8",
    "LOCAL_CACHE_SIZE_IN_BYTES": "10000000",
}

HEAD = (
    "| calls | service | service us/call | Redis us/call | commands/call | calls/s |\n"
    "|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Case:
    """Calls with so many descriptors, each of which has a limit."""

    title: str
    descriptors: int
    is_denied: bool = False


CASES = (
    Case("one descriptor", 1),
    Case("two descriptors", 2),
    Case("one descriptor, over its limit", 1, is_denied=True),
)


@dataclass
class Spent:
    """By one run."""

    service: float
    redis: float
    commands: float
    calls: int
    seconds: float


def table(machine, binary, rounds):
    """Prints a row for each service and case."""
    services = (
        ("Weir", lambda stack, case, shard: weir(machine, stack, case, shard)),
        (
            "envoyproxy/ratelimit",
            lambda stack, case, shard: ratelimit(machine, stack, binary, DEFAULTS, case, shard),
        ),
        (
            "envoyproxy/ratelimit, tuned",
            lambda stack, case, shard: ratelimit(machine, stack, binary, TUNED, case, shard),
        ),
    )
    print(HEAD)
    for case in CASES:
        for name, start in services:
            runs = measure(machine, start, case, rounds)
            print(row(case, name, runs), flush=True)


def row(case, name, runs):
    """The least CPU time counts, as what else the machine does only adds."""
    service = min(run.service / run.calls for run in runs) * 1e6
    shard = min(run.redis / run.calls for run in runs) * 1e6
    commands = min(run.commands / run.calls for run in runs)
    rate = max(run.calls / run.seconds for run in runs)
    return f"| {case.title} | {name} | {service:.1f} | {shard:.2f} | {commands:.2f} | {rate:,.0f} |"


def measure(machine, start, case, rounds):
    with contextlib.ExitStack() as services:
        (shard,) = machine.shards(services, 1)
        service, place = start(services, case, shard)
        loads = [
            services.enter_context(load(machine, place, case, subject))
            for subject in range(machine.options.subjects)
        ]
        return [run(machine.options.seconds, service, shard, loads) for _ in range(rounds)]


def run(seconds, service, shard, loads):
    before = counters(service, shard)
    for asking in loads:
        asking.send(f"closed {seconds}")
    outcomes = [asking.outcome(seconds) for asking in loads]
    after = counters(service, shard)
    calls = sum(outcome["answered"] for outcome in outcomes)
    wrong = sum(outcome["unexpected"] + outcome["lost"] for outcome in outcomes)
    if not calls or wrong > calls / 1000:
        raise Failed(f"{wrong} of {calls} calls went wrong")
    spent = [end - begin for begin, end in zip(before, after)]
    return Spent(*spent, calls, max(outcome["seconds"] for outcome in outcomes))


def counters(service, shard):
    commands = shard.calls("bitfield") + shard.calls("incrby")
    return service.cpu_seconds(), shard.service.cpu_seconds(), commands


def load(machine, place, case, subject):
    options = machine.options
    scenario = Scenario(
        "envoy",
        "",
        (),
        path=METHOD,
        # Envoy has a connection for each of its workers, with many calls on it.
        connections=1,
        load={
            "http2": max(options.connections // options.subjects, 1),
            "grpc": message(case.descriptors, f"10.0.0.{subject}").hex(),
        },
    )
    return Load(options.load, options.cores, place, scenario, 0)


def message(descriptors, subject):
    """A `RateLimitRequest`."""

    def text(tag, value):
        value = value if isinstance(value, bytes) else value.encode()
        return bytes([tag << 3 | 2, len(value)]) + value

    entries = [text(1, f"key{number}") + text(2, subject) for number in range(descriptors)]
    return text(1, DOMAIN) + b"".join(text(2, text(1, entry)) for entry in entries)


def quota(case):
    return 1 if case.is_denied else PLENTY


def weir(machine, services, case, shard):
    place = machine.place("weir", 30)
    rules = "".join(f"    - {{key: key{number}, limit: L{number}}}\n" for number in range(2))
    limits = "".join(
        f"  L{number}: {{per: 'path:key{number}', algorithm: fixed_window, "
        f"count: {quota(case)}, period: 1d}}\n"
        for number in range(2)
    )
    path = place.write(
        "gateway.yaml",
        f"decide:\n  address: 127.0.0.1:{place.port}\n  trusted_proxies: [127.0.0.1]\n"
        f"  envoy:\n  - domain: {DOMAIN}\n    descriptors:\n{rules}"
        "workers: 1\ngrace: 1s\nlog: {access: false, level: warn}\n"
        f"store: {{redis: {{url: 'redis://127.0.0.1:{shard.port}', timeout: 5s, "
        "on_failure: deny}}\n"
        f"limits:\n{limits}routes: [{{match: {{path: '/*'}}, limits: []}}]\n",
    )
    argv = [machine.options.weir, "--config", path]
    return machine.start(services, "weir", argv, place), place


def ratelimit(machine, services, binary, settings, case, shard):
    place = machine.place("ratelimit", 40)
    rules = "".join(
        f"  - key: key{number}\n    rate_limit: {{unit: day, requests_per_unit: {quota(case)}}}\n"
        for number in range(2)
    )
    place.write("ratelimit/config/edge.yaml", f"domain: {DOMAIN}\ndescriptors:\n{rules}")
    environment = {
        "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": str(place.port),
        "HOST": "127.0.0.1",
        "PORT": str(place.port + 1),
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": str(place.port + 2),
        "RUNTIME_ROOT": place.folder,
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "RUNTIME_WATCH_ROOT": "false",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{shard.port}",
        "USE_STATSD": "false",
        "LOG_LEVEL": "warn",
        **settings,
    }
    return machine.start(services, "ratelimit", [binary], place, environment), place
