"""A flood of connections of clients that are refused, in a network namespace of its own.

Nothing is measured of what a client of the flood sees, but what an attempt of it costs: the proxy's
CPU; and all of it, with that of interrupts and of the client, less what the same client and its
interrupts cost where nobody hears it. The rest of what the machine does is left out.
"""

import argparse
import contextlib
import functools
import gzip
import json
import os
import random
import socket
import subprocess
import sys
import time

from . import flood
from .measure import METRICS, Bench, command
from .peers import PEERS, Place
from .processes import TICKS, Failed, answer, count_cores, cpu_nanos, on_cores
from .scenarios import SCENARIOS

#: A client that nobody refuses.
WELCOME = "198.18.0.2"
#: What the kernel asks for of those who attach filters is taken away by it.
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def measure(options, scenario, rows, note):
    """Appends rows of figures. All of it runs in the namespace, as another process."""
    flood.require_namespace()
    wanted = {name: value for name, value in vars(options).items() if not callable(value)}
    wanted |= {"scenario": scenario.name, "results": os.path.join(options.results, "refused")}
    own = [sys.executable, "-B", "-m", "harness.refused", json.dumps(wanted)]
    words = flood.within_namespace(own)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Failed(f"{scenario.name}: it ended early")
    found = json.loads(done.stdout)
    rows += found["rows"]
    for remark in found["remarks"]:
        note(remark)


class Entrant:
    def __init__(self, contestant, service, port):
        self.label, self.service, self.port = contestant.label, service, port
        self.refuse = contestant.job.refuse


def main():
    options = argparse.Namespace(**json.loads(sys.argv[1]))
    scenario = next(own for own in SCENARIOS if own.name == options.scenario)
    os.makedirs(options.results, exist_ok=True)
    rows, remarks, alone = [], [], []
    with Bench(options) as bench, contextlib.ExitStack() as services:
        entrants = start_all(bench, scenario, services, remarks)
        port = options.base_port + 9
        services.enter_context(flood.deaf_listener(port))
        for number in range(1, options.rounds + 1):
            of_client = run(options, scenario, port)["outside_us"]
            alone.append(of_client)
            random.shuffle(entrants)
            for entrant in list(entrants):
                try:
                    figures = cell(options, scenario, entrant)
                except Failed as failure:
                    remarks.append(f"{scenario.name}: {entrant.label} is left out: {failure}")
                    entrants.remove(entrant)
                    continue
                figures["machine_us"] = figures["cpu_us"] + figures.pop("outside_us") - of_client
                row = {"scenario": scenario.name, "round": number, "proxy": entrant.label}
                rows.append({**row, "rate": None, **dict.fromkeys(METRICS), **figures})
            print(f"  round {number} of {options.rounds}", file=sys.stderr, flush=True)
    remarks.append(
        f"{scenario.name}: an attempt that nobody hears took the client "
        f"{min(alone):.1f} to {max(alone):.1f} µs, which is taken off"
    )
    print(json.dumps({"rows": rows, "remarks": remarks}))


def start_all(bench, scenario, services, remarks):
    entrants = []
    for number, contestant in enumerate(scenario.contestants):
        if contestant.peer not in bench.options.peers:
            continue
        try:
            entrants.append(start(bench, contestant, number, services))
        except (Failed, OSError) as failure:
            remarks.append(f"{scenario.name}: {contestant.label} is left out: {failure}")
    return entrants


def start(bench, contestant, number, services):
    options, job = bench.options, contestant.job
    folder = os.path.join(options.results, "run", str(number))
    os.makedirs(folder, exist_ok=True)
    port, base = options.base_port + 10 + number, options.base_port
    workers = count_cores(options.proxy_core)
    place = Place(folder, port, base, base + 1, options.cache, None, workers, flood.SERVER)
    argv, environment = command(
        contestant.peer, PEERS[contestant.peer](place, job), options.cache
    )
    if job.refuse == "accept":
        argv = [*WITHOUT_RIGHTS, *argv]
    service = bench.start(contestant.label, argv, environment, options.proxy_core, place, services)
    prove(place)
    return Entrant(contestant, service, port)


def prove(place):
    """Whether a proxy lets one client in and refuses the other, before it is measured."""
    # A filter is attached once the configuration is in force.
    time.sleep(0.5)
    to = (place.host, place.port)
    with socket.create_connection(to, 5, (WELCOME, 0)) as client:
        client.sendall(flood.REQUEST)
        if b" 200 " not in client.recv(1024):
            raise Failed("it refuses everybody")
    client = flood.begin(str(flood.REFUSED[1]), to)
    if flood.sent(client):
        time.sleep(0.2)
        try:
            if client.recv(1):
                raise Failed("it answers whom it should refuse")
        except OSError:
            pass
    flood.reset(client)


def cell(options, scenario, entrant):
    """One contestant in one round."""
    before = entrant.service.cpu_seconds()
    figures = run(options, scenario, entrant.port)
    if figures.pop("answered"):
        raise Failed("it answered whom it should refuse")
    dropped = figures.pop("connected") == 0
    if dropped != (entrant.refuse == "kernel"):
        raise Failed(f"handshakes were {'not ' * (not dropped)}dropped")
    cpu = entrant.service.cpu_seconds() - before
    seconds = figures.pop("seconds")
    figures["cpu_us"] = cpu * 1e6 / figures.pop("attempts")
    figures["busy"] = 100 * cpu / seconds
    return figures


def run(options, scenario, port):
    words = [sys.executable, "-B", "-m", "harness.flood"]
    words += ["--port", str(port), "--rate", str(scenario.flood)]
    client = subprocess.Popen(
        on_cores(options.load_cores, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        answer(client, 10)
        interrupts = interrupt_seconds()
        client.stdin.write(f"run {options.seconds}\n".encode())
        client.stdin.flush()
        counts = json.loads(answer(client, options.seconds + 10))
        interrupts = interrupt_seconds() - interrupts
    finally:
        client.kill()
        client.communicate()
    attempts = counts["attempts"]
    return {
        "outside_us": (counts["cpu"] + interrupts) * 1e6 / attempts,
        "rps": attempts / counts["seconds"],
        "attempts": attempts,
        "seconds": counts["seconds"],
        "connected": counts.get("connected", 0),
        "answered": counts.get("answered", 0),
    }


@functools.cache
def tells_interrupts_apart():
    """Whether the kernel counts interrupts by themselves, and not as part of what they stop."""
    wanted = "CONFIG_IRQ_TIME_ACCOUNTING=y"
    with contextlib.suppress(OSError), gzip.open("/proc/config.gz", "rt") as config:
        return wanted in config.read()
    with contextlib.suppress(OSError), open(f"/boot/config-{os.uname().release}") as config:
        return wanted in config.read()
    return False


def interrupt_seconds():
    """CPU time of interrupts that is not in that of the processes which they stop."""
    if tells_interrupts_apart():
        with open("/proc/stat") as file:
            irq, softirq = file.readline().split()[6:8]
        return (int(irq) + int(softirq)) / TICKS
    return sum(sum(cpu_nanos(pid).values()) for pid in soft_interrupts()) / 1e9


@functools.cache
def soft_interrupts():
    """The threads of the kernel that do what interrupts leave over."""
    names = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/comm") as file:
            names[entry] = file.read()
    return [int(pid) for pid, name in names.items() if name.startswith("ksoftirqd/")]


if __name__ == "__main__":
    main()
