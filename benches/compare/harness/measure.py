"""One scenario: its contestants started, measured round by round in random order, and ended."""

import contextlib
import functools
import http.client
import os
import random
import ssl

from . import certificate
from .peers import PEERS, Place, executable, redis, upstream
from .processes import Failed, Load, Service, count_cores, refuse_taken

#: Figures of a round, in the order in which they are shown.
METRICS = (
    "cpu_us",
    "machine_us",
    "rps",
    "busy",
    "redis_us",
    "open_cpu_us",
    "open_busy",
    "p50_us",
    "p99_us",
    "p999_us",
    "peak_mib",
)
#: Part of the lesser of Weir's and nginx's peaks that the open loop sends.
OPEN_PART = 0.5
#: Part of the new connections that has to resume a session where all should.
RESUMED_PART = 0.99


class Bench:
    """What is the same for all scenarios: cores, ports, folders, and the servers behind."""

    def __init__(self, options):
        self.options = options
        self.load = options.load
        self.store = None
        self.services = contextlib.ExitStack()

    def __enter__(self):
        cores = self.options.load_cores
        place = self.place("upstream", 0, workers=count_cores(cores))
        argv, environment = command("nginx", upstream(place), self.options.cache)
        with contextlib.ExitStack() as services:
            self.start("upstream", argv, environment, cores, place, services)
            self.services = services.pop_all()
        return self

    def __exit__(self, *failure):
        return self.services.__exit__(*failure)

    @functools.cached_property
    def certificate(self):
        return certificate.make(os.path.join(self.options.results, "run", "certificate"))

    def place(self, name, port, own=None, workers=1):
        base = self.options.base_port
        folder = os.path.join(self.options.results, "run", name)
        os.makedirs(folder, exist_ok=True)
        return Place(folder, base + port, base, base + 1, self.options.cache, own, workers)

    def start(self, name, argv, environment, cores, place, services=None):
        refuse_taken(name, place.port)
        log = os.path.join(place.folder, "log")
        service = Service(name, argv, cores, log, environment)
        (services or self.services).callback(service.end)
        service.wait_for_port(place.port, host=place.host)
        return service

    def redis(self):
        if not self.store:
            place = self.place("redis", 1)
            argv, environment = command("redis-server", redis(place), self.options.cache)
            cores = self.options.load_cores
            self.store = self.start("redis", argv, environment, cores, place)
        return self.store


def command(peer, words_and_environment, cache):
    words, environment = words_and_environment
    path = executable(peer, cache)
    if not path:
        raise Failed("it is not installed")
    return [path, *words], environment


class Entrant:
    """A contestant that runs."""

    def __init__(self, contestant, service, place):
        self.label = contestant.label
        self.job = contestant.job
        self.service = service
        self.place = place
        #: Requests a second while it warmed up.
        self.peak = 0.0

    def resumes(self, scenario):
        """Whether each new connection should resume a TLS session; None without new ones."""
        if not self.job.tls or not scenario.reconnect:
            return None
        return scenario.reconnect == "resumed"


def measure(bench, scenario, rows, note):
    """Appends rows of figures, one for each contestant and round."""
    with contextlib.ExitStack() as services:
        entrants = start_all(bench, scenario, services, note)
        rate = warm_up(bench, scenario, entrants, note)
        for number in range(1, bench.options.rounds + 1):
            random.shuffle(entrants)
            for entrant in list(entrants):
                try:
                    figures = cell(bench, scenario, entrant, bench.options.seconds, rate)
                except (Failed, OSError) as failure:
                    note(f"{scenario.name}: {entrant.label} is left out: {failure}")
                    entrants.remove(entrant)
                    continue
                row = {"scenario": scenario.name, "round": number, "proxy": entrant.label}
                rows.append({**row, "rate": rate, **figures})
            print(f"  round {number} of {bench.options.rounds}", flush=True)


def start_all(bench, scenario, services, note):
    entrants = []
    for number, contestant in enumerate(scenario.contestants):
        if contestant.peer not in bench.options.peers:
            continue
        try:
            entrants.append(start(bench, scenario, contestant, number, services))
        except (Failed, OSError) as failure:
            note(f"{scenario.name}: {contestant.label} is left out: {failure}")
    return entrants


def start(bench, scenario, contestant, number, services):
    job = contestant.job
    if job.redis:
        bench.redis()
    name = f"{scenario.name}-{contestant.label.replace(', ', '-').replace(' ', '-')}"
    cores = bench.options.all_cores if scenario.all_cores else bench.options.proxy_core
    own = bench.certificate if job.tls else None
    place = bench.place(name, 10 + number, own, count_cores(cores))
    configured = PEERS[contestant.peer](place, job)
    argv, environment = command(contestant.peer, configured, bench.options.cache)
    service = bench.start(contestant.label, argv, environment, cores, place, services)
    if not job.http2:
        prove(job, scenario, place)
    return Entrant(contestant, service, place)


def prove(job, scenario, place):
    """Whether a proxy does what the scenario is about, before it is measured."""
    connection = connect(place)
    try:
        for _ in range(4):
            connection.request("GET", scenario.path)
            answer = connection.getresponse()
            body = answer.read()
    except (OSError, http.client.HTTPException) as failure:
        raise Failed(f"a first request failed: {failure}") from failure
    finally:
        connection.close()
    if answer.status != scenario.expect:
        raise Failed(f"it answers {answer.status} in the place of {scenario.expect}")
    if job.outcome == "shadow" and b"decoy" not in body:
        raise Failed("it forwards what it should invent an answer for")


def connect(place):
    if not place.certificate:
        return http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
    trust = ssl.create_default_context(cafile=place.certificate.path)
    name = certificate.SERVER_NAME
    return http.client.HTTPSConnection(name, place.port, timeout=10, context=trust)


def warm_up(bench, scenario, entrants, note):
    """Answers a rate that Weir and nginx both hold with ease; others may not.

    None where there is no open loop.
    """
    seconds = min(1.0, bench.options.seconds)
    for entrant in list(entrants):
        try:
            entrant.peak = cell(bench, scenario, entrant, seconds)["rps"]
        except (Failed, OSError) as failure:
            note(f"{scenario.name}: {entrant.label} is left out: {failure}")
            entrants.remove(entrant)
    if not scenario.open_loop:
        return None
    if bench.options.rate or not entrants:
        return bench.options.rate
    leading = [entrant for entrant in entrants if entrant.label in ("weir", "nginx")]
    return max(round(OPEN_PART * min(entrant.peak for entrant in leading or entrants), -1), 10)


def cell(bench, scenario, entrant, seconds, rate=None):
    """One contestant in one round: a closed loop, and an open one if there is a rate."""
    service, store = entrant.service, bench.store if entrant.job.redis else None
    service.forget_peak()
    target = (bench.load, bench.options.load_cores, entrant.place, scenario)
    loads = count_cores(bench.options.load_cores) if scenario.all_cores else 1
    with Load(*target, bench.options.idle(scenario), loads) as load:
        cpu, store_cpu = service.cpu_seconds(), store.cpu_seconds() if store else 0
        closed = checked(load.run(f"closed {seconds}", seconds), entrant.resumes(scenario))
        cpu = service.cpu_seconds() - cpu
        store_cpu = store.cpu_seconds() - store_cpu if store else 0
        figures = {
            "cpu_us": cpu * 1e6 / closed["answered"],
            "machine_us": None,
            "rps": closed["answered"] / closed["seconds"],
            "busy": 100 * cpu / closed["seconds"] / entrant.place.workers,
            "redis_us": store_cpu * 1e6 / closed["answered"] if store else None,
        }
        figures |= open_loop(load, seconds, rate, entrant)
        figures["peak_mib"] = service.peak_mib()
    return figures


def checked(outcome, resumes=None):
    """`resumes` says whether new connections should resume sessions; None if either is right."""
    if not outcome["answered"]:
        raise Failed("it answered nothing")
    resumed = f"{outcome['resumed']} of {outcome['answered']} connections resumed a session"
    if resumes and outcome["resumed"] < outcome["answered"] * RESUMED_PART:
        raise Failed(f"only {resumed}")
    if resumes is False and outcome["resumed"]:
        raise Failed(resumed)
    bad = outcome["unexpected"] + outcome["lost"]
    if bad > outcome["answered"] / 1000:
        raise Failed(f"{bad} of {outcome['answered']} requests went wrong")
    return outcome


def open_loop(load, seconds, rate, entrant):
    """None for a proxy that cannot keep up: it would be the latency of the queue before it.

    None without a rate, too. A request costs more where the proxy sleeps in between.
    """
    outcome, busy = None, None
    if rate and entrant.peak >= rate:
        cpu = entrant.service.cpu_seconds()
        outcome = load.run(f"open {seconds} {rate}", seconds)
        cpu = entrant.service.cpu_seconds() - cpu
        if outcome["unanswered"]:
            outcome = None
        else:
            checked(outcome)
            busy = 100 * cpu / outcome["seconds"] / entrant.place.workers
    figures = {
        f"{name}_us": outcome[name] if outcome else None for name in ("p50", "p99", "p999")
    }
    return {
        "open_cpu_us": cpu * 1e6 / outcome["answered"] if outcome else None,
        "open_busy": busy,
        **figures,
    }
