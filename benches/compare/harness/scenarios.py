"""What is measured: the jobs, and who takes part in each.

A new scenario is a line in SCENARIOS.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """What a proxy has to do, in terms that each of them can be configured with."""

    limits: int = 0
    #: What becomes of requests: "pass", "deny" with 429, or "shadow", an invented 200.
    outcome: str = "pass"
    redis: bool = False
    http2: bool = False
    #: From the client; the upstream is spoken to without.
    tls: bool = False


@dataclass(frozen=True)
class Contestant:
    """A proxy with a job, which may be another job than the scenario's to compare with."""

    label: str
    peer: str
    job: Job


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    contestants: tuple
    path: str = "/"
    #: Options of the load generator.
    load: dict = field(default_factory=dict)
    connections: int = 64
    idle: int = 0
    expect: int = 200


LIMITING = ("weir", "nginx", "haproxy", "envoy")
ALL = (*LIMITING, "caddy")


def same(peers, **job):
    """All these peers with the same job, under their own names."""
    return tuple(Contestant(peer, peer, Job(**job)) for peer in peers)


CADDY_PLAIN = Contestant("caddy, no limit", "caddy", Job())
CADDY_PLAIN_TLS = Contestant("caddy, no limit", "caddy", Job(tls=True))
WEIR_PLAIN = Contestant("weir, no limit", "weir", Job())
WEIR_DENIED_REDIS = Contestant("weir, Redis", "weir", Job(limits=1, outcome="deny", redis=True))

SCENARIOS = (
    Scenario("plain", "Plain forwarding, no limit", same(ALL)),
    Scenario(
        "memory-1",
        "One limit in memory, per address",
        (*same(LIMITING, limits=1), CADDY_PLAIN),
    ),
    Scenario("memory-3", "Three limits in memory", same(LIMITING, limits=3)),
    Scenario(
        "redis-3",
        "Three limits in Redis, beside no limit",
        (*same(("weir",), limits=3, redis=True), WEIR_PLAIN),
    ),
    Scenario(
        "denied",
        "A flood of which all is denied with 429",
        (*same(LIMITING, limits=1, outcome="deny"), WEIR_DENIED_REDIS),
        expect=429,
    ),
    Scenario(
        "shadow",
        "A flood of which all gets an invented answer",
        same(("weir", "nginx", "haproxy"), limits=1, outcome="shadow"),
    ),
    Scenario("download-1m", "Answers of 1 MiB", same(ALL), path="/large", connections=16),
    Scenario(
        "upload-1m",
        "Requests of 1 MiB",
        same(ALL),
        path="/upload",
        connections=16,
        load={"upload": 1 << 20},
    ),
    Scenario(
        "http2",
        "HTTP/2 from the client, no limit",
        same(ALL, http2=True),
        connections=4,
        load={"http2": 16},
    ),
    Scenario(
        "tls",
        "TLS from the client, one limit in memory",
        (*same(LIMITING, limits=1, tls=True), CADDY_PLAIN_TLS),
    ),
    Scenario(
        "idle-10k",
        "One limit in memory, 10,000 connections of which 64 are busy",
        (*same(LIMITING, limits=1), CADDY_PLAIN),
        idle=9_936,
    ),
)
