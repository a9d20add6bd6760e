"""Measures Weir beside its peers. `benches/compare/run.sh` prepares what this needs."""

import argparse
import os
import resource
import signal
import sys

from . import refused, results, versions
from .measure import Bench, measure
from .peers import PEERS
from .processes import Failed
from .scenarios import SCENARIOS

#: Which end a run early, with what was measured until then.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Descriptors that a proxy needs beside those of idle connections.
SPARE_DESCRIPTORS = 600


def options():
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="benches/compare/run.sh", description=__doc__)
    add = parser.add_argument
    add("results", nargs="?", default="target/compare", help="folder to write to [%(default)s]")
    add("--scenario", action="append", choices=names, help="only these (may be repeated)")
    add("--peer", action="append", choices=list(PEERS), help="only these (may be repeated)")
    add("--rounds", type=int, default=int(os.environ.get("ROUNDS", "7")))
    add("--seconds", type=float, default=2.0, help="of each phase [%(default)s]")
    add("--rate", type=float, help="requests/s of the open loop [half of the lesser peak]")
    add("--base-port", type=int, default=21_000, help="and the 20 after it [%(default)s]")
    add("--no-pgo", action="store_true", help="build Weir without a profile")
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    add("--proxy-core", default=cores[0], help="the proxies' core [%(default)s]")
    add("--load-cores", default=",".join(cores[1:] or cores), help="all others' [%(default)s]")
    help = "the proxies', where they have a worker on each [%(default)s]"
    add("--all-cores", default=",".join(cores), help=help)
    parsed = parser.parse_args()
    if parsed.rounds < 1 or not 0 < parsed.seconds <= 60:
        parser.error("at least one round, and at most 60 seconds")
    parsed.peers = parsed.peer or list(PEERS)
    parsed.results = os.path.abspath(parsed.results)
    parsed.cache = os.environ["WEIR_COMPARE_CACHE"]
    parsed.load = os.environ["WEIR_LOAD"]
    return parsed


def allow_descriptors():
    """As many as may be had, for the proxies too, which inherit it."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def main():
    parsed = options()
    os.makedirs(parsed.results, exist_ok=True)
    remarks = []
    chosen = [s for s in SCENARIOS if not parsed.scenario or s.name in parsed.scenario]
    most_idle = max(allow_descriptors() - SPARE_DESCRIPTORS, 0)
    parsed.idle = lambda scenario: min(scenario.idle, most_idle)

    def note(remark):
        print(f"  {remark}", file=sys.stderr, flush=True)
        remarks.append(remark.splitlines()[0])

    for scenario in chosen:
        if scenario.idle > most_idle:
            note(f"{scenario.name}: only {most_idle} idle connections: see ulimit -Hn")
    rows, is_whole = [], True
    try:
        with Bench(parsed) as bench:
            for scenario in chosen:
                print(f"{scenario.name}: {scenario.title}", flush=True)
                if scenario.flood:
                    refused.measure(parsed, scenario, rows, note)
                else:
                    measure(bench, scenario, rows, note)
    except Failed as failure:
        sys.exit(f"run.sh: {failure}")
    except KeyboardInterrupt:
        note("the run was interrupted")
        is_whole = False
    measured = versions.installed([*parsed.peers, "redis-server"], parsed.cache)
    print("\n" + results.write(rows, chosen, parsed.results, measured, remarks))
    print(f"written to {parsed.results}")
    return 0 if is_whole else 130


def interrupt(*_):
    # Once, so that impatience does not leave servers behind.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    # SIGINT too: the shell makes a background job ignore it.
    for number in SIGNALS:
        signal.signal(number, interrupt)
    sys.exit(main())
