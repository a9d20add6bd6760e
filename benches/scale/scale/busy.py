"""What a decision costs shards that are busy with nothing else: one server, a Cluster of one node,
and one of several, of which each is asked by a redis-benchmark of its own."""

import contextlib
import shutil
import subprocess
from dataclasses import dataclass

from harness.processes import Failed

from . import redis

#: What a gateway asks about a bucket that it knows, which is never used up here.
DECISION = (
    "GET u33 63 OVERFLOW SAT INCRBY u63 0 -1000 OVERFLOW FAIL INCRBY u63 0 9000000000000000000 "
    "INCRBY u63 0 -8999999999999999000 INCRBY u63 0 1000"
).split()

#: How many commands come together, and by how many connections.
LOADS = ((1, 32), (4, 8), (16, 4), (64, 4))
HEAD = (
    "| decisions/read | one server | a Cluster of one node | {nodes} nodes, as much for all of them "
    "| {nodes} nodes, as much for each |\n|---|---|---|---|---|"
)


@dataclass
class Spent:
    """By one run of all shards."""

    cpu_seconds: float
    commands: float
    reads: float


def least(runs):
    """Microseconds of CPU for a decision, and decisions in a read. Other work only adds to CPU."""
    best = min(runs, key=lambda spent: spent.cpu_seconds / spent.commands)
    return best.cpu_seconds * 1e6 / best.commands, best.commands / best.reads


def table(machine, nodes, decisions, rounds):
    """Prints a row for each load."""
    if not shutil.which("redis-benchmark"):
        raise Failed("redis-benchmark is not installed (Debian: redis-tools)")
    with contextlib.ExitStack() as services:
        one = machine.shards(services, 1, first=10)
        alone = machine.shards(services, 1, first=11, in_cluster=True)
        several = machine.shards(services, nodes, first=12)
        print(HEAD.format(nodes=nodes))
        for together, connections in LOADS:
            # One at a time takes so much longer that fewer are enough.
            all_of_them = decisions if together > 1 else decisions // 3
            share = all_of_them // nodes
            cells = [(one, all_of_them), (alone, all_of_them), (several, share)]
            found = []
            for shards, each in [*cells, (several, all_of_them)]:
                runs = [run(shards, each, together, connections) for _ in range(rounds)]
                found.append(least(runs))
            costs = " | ".join(f"{cost:.2f} us" for cost, _ in found)
            print(f"| {found[0][1]:.0f} | {costs} |", flush=True)


def run(shards, decisions, together, connections):
    """Asks all shards at the same time, each as much."""
    before = counters(shards)
    asking = [ask(shard, place, len(shards), decisions, together, connections)
              for place, shard in enumerate(shards)]
    if any([process.wait() for process in asking]):
        raise Failed("redis-benchmark has failed")
    after = counters(shards)
    return Spent(*(end - begin for begin, end in zip(before, after)))


def counters(shards):
    reads = sum(shard.info("stats")["total_reads_processed"] for shard in shards)
    commands = sum(shard.calls("bitfield") for shard in shards)
    return sum(shard.service.cpu_seconds() for shard in shards), commands, reads


def ask(shard, place, count, decisions, together, connections):
    words = ["redis-benchmark", "-p", str(shard.port), "-q", "-n", str(decisions)]
    words += ["-P", str(together), "-c", str(connections)]
    words += ["BITFIELD", key_of(shard, place, count), *DECISION]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def key_of(shard, place, count):
    """A key of one of so many shards, as long as one of a gateway's."""
    first, last = redis.slots_of(place, count)
    for number in range(100_000):
        key = f"weir:RequestsPerAddress:203.0.113.{number}"
        # A server by itself has all keys, and refuses to tell slots.
        if count == 1 or first <= shard.connection.ask("CLUSTER", "KEYSLOT", key) <= last:
            return key
    raise Failed("no key is in the slots of a shard")
