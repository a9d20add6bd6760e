"""Measures what a decision costs gateways and Redis in CPU time. `benches/scale/run.sh` prepares
what this needs."""

import argparse
import contextlib
import json
import os
import sys
from dataclasses import asdict

from harness.processes import Failed

from . import busy, envoy, memory, model
from .measure import LIMITS, Cell, Machine, measure, typical


def numbers(text):
    found = [int(part) for part in text.split(",")]
    if min(found) < 0:
        raise ValueError(text)
    return found


def options():
    parser = argparse.ArgumentParser(prog="benches/scale/run.sh", description=__doc__)
    add = parser.add_argument
    add("results", nargs="?", default="target/scale", help="folder to write to [%(default)s]")
    add("--gateways", type=numbers, default=[1, 2], help="how many [1,2]")
    add("--shards", type=numbers, default=[1, 3], help="how many; several are a Cluster [1,3]")
    add("--limits", type=numbers, default=[0, 1, 2, 3], help="of a request [0,1,2,3]")
    add("--rounds", type=int, default=5, help="the least CPU time counts [%(default)s]")
    add("--seconds", type=float, default=3.0, help="of each round [%(default)s]")
    add("--connections", type=int, default=64, help="to each gateway [%(default)s]")
    add("--subjects", type=int, default=8, help="that share them [%(default)s]")
    add("--buckets", type=int, default=1_000_000, help="to measure memory by; 0: not [%(default)s]")
    add("--busy", type=int, default=0, metavar="N", help="instead, by N decisions of busy shards")
    add("--envoy", metavar="PATH", help="instead, calls of Envoy beside envoyproxy/ratelimit at PATH")
    add("--requests", type=float, default=1e6, help="a second, to plan for [1000000]")
    add("--population", type=float, default=1e8, help="subjects to plan for [100000000]")
    add("--base-port", type=int, default=22_000, help="and the 60 after it [%(default)s]")
    parsed = parser.parse_args()
    if parsed.rounds < 1 or not 0 < parsed.seconds <= 60:
        parser.error("at least one round, and at most 60 seconds")
    if min(parsed.gateways) < 1 or min(parsed.shards) < 1 or max(parsed.limits) > len(LIMITS):
        parser.error(f"at least one gateway and one shard, and at most {len(LIMITS)} limits")
    if max(parsed.gateways) > 20 or max(parsed.shards) > 20:
        parser.error("at most 20 gateways and 20 shards")
    if not 0 < parsed.subjects <= parsed.connections:
        parser.error("at least one subject, and a connection for each")
    parsed.results = os.path.abspath(parsed.results)
    parsed.cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    parsed.cache = ""
    parsed.weir, parsed.load = os.environ["WEIR"], os.environ["WEIR_LOAD"]
    return parsed


def cells(parsed):
    """Without limits no shard is asked, so one number of them is enough."""
    return [
        Cell(gateways, shards, limits)
        for gateways in parsed.gateways
        for shards in parsed.shards
        for limits in parsed.limits
        if limits or shards == parsed.shards[0]
    ]


def main():
    parsed = options()
    os.makedirs(parsed.results, exist_ok=True)
    measured, rows = {}, []
    with Machine(parsed) as machine:
        if parsed.busy:
            busy.table(machine, max(parsed.shards), parsed.busy, parsed.rounds)
            return 0
        if parsed.envoy:
            envoy.table(machine, os.path.abspath(parsed.envoy), parsed.rounds)
            return 0
        print(TABLE_HEAD)
        for cell in cells(parsed):
            try:
                runs = measure(machine, cell)
            except Failed as failure:
                print(f"{cell} is left out: {failure}", file=sys.stderr, flush=True)
                continue
            measured[cell] = typical(runs)
            rows += [{**asdict(cell), **asdict(run)} for run in runs]
            print(table_row(cell, measured[cell]), flush=True)
        buckets = bytes_a_bucket(machine, parsed.buckets) if parsed.buckets else {}
    with open(os.path.join(parsed.results, "figures.json"), "w") as file:
        json.dump({"runs": rows, "bytes_a_bucket": buckets}, file, indent=1)
    print(summary(parsed, measured, buckets))
    print(f"\nwritten to {parsed.results}")
    return 0 if measured else 1


def bytes_a_bucket(machine, count):
    with contextlib.ExitStack() as services:
        (shard,) = machine.shards(services, 1)
        place = machine.place("memory", 50)
        place.write("limits/defaults.yaml", memory.limits())
        path = place.write(
            "gateway.yaml",
            f"listen: [{{address: 127.0.0.1:{place.port}}}]\nworkers: 1\n"
            "log: {access: false, level: warn}\n"
            f"store: {{redis: {{url: 'redis://127.0.0.1:{shard.port}', timeout: 5s, "
            "on_failure: deny}}\n"
            f"upstreams: {{app: {{servers: ['http://127.0.0.1:{place.upstream}']}}}}\n"
            f"{memory.routes()}",
        )
        machine.start(services, "memory", [machine.options.weir, "--config", path], place)
        return memory.measure(place.port, shard, count)


TABLE_HEAD = (
    "| gateways | shards | limits | gateway us/request | Redis us/decision | commands/decision "
    "| decisions/read | bytes there, back | requests/s |\n|---|---|---|---|---|---|---|---|---|"
)


def table_row(cell, figures):
    redis = "-"
    if cell.limits:
        redis = f"{figures.redis_us:.2f}"
    return (
        f"| {cell.gateways} | {cell.shards} | {cell.limits} | {figures.gateway_us:.1f} | {redis} "
        f"| {figures.commands:.2f} | {figures.a_read:.1f} "
        f"| {figures.bytes_there:.0f}, {figures.bytes_back:.0f} "
        f"| {figures.requests / figures.seconds:,.0f} |"
    )


def summary(parsed, measured, buckets):
    lines = []
    found = model.Model.of(measured)
    if found:
        lines += ["", "Against the model made of one gateway on one shard:"]
        for cell, figures in measured.items():
            if cell.limits:
                gateway, redis = found.deviation(cell, figures)
                lines.append(f"- {cell}: gateway {gateway:+.0f}%, Redis {redis:+.0f}%")
    if buckets:
        lines += ["", "| a bucket in Redis | bytes |", "|---|---|"]
        lines += [f"| {name} | {size:.0f} |" for name, size in buckets.items()]
    if found:
        limits = max(parsed.limits)
        size = buckets.get("gcra", 0)
        wish = model.Wish(parsed.requests, limits, parsed.population, size)
        lines += ["", f"For {parsed.requests:,.0f} requests a second with {limits} limits each:"]
        lines += [f"- {text}" for text in model.arithmetic(found, wish)]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"run.sh: {failure}")
