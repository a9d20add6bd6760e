"""What a bucket takes in Redis, by algorithm.

A gateway makes one bucket as it is in use. Its key is then written as often as is asked for, under
names of the same length, and the memory that Redis says it uses is divided by that number.
"""

import http.client
import time
from dataclasses import dataclass

from harness.processes import Failed

AT_ONCE = 10_000
#: How long the copies stay, in milliseconds.
KEPT = 3_600_000


@dataclass(frozen=True)
class Kind:
    name: str
    #: What the limit's line says of it.
    parameters: str
    #: Requests that make the bucket.
    requests: int = 1
    #: Seconds between two of them.
    pause: float = 0.0


KINDS = (
    Kind("gcra", "burst: 100, count: 100, period: 1h"),
    Kind("fixed_window", "algorithm: fixed_window, count: 100, period: 1h"),
    Kind("sliding_window, 1 part", "algorithm: sliding_window, count: 100, period: 1h", 10),
    # Its parts are sixtieths of the period.
    Kind("sliding_window, 60 parts", "algorithm: sliding_window, count: 100, period: 12s", 60, 0.2),
    Kind("sliding_log, 10 units", "algorithm: sliding_log, count: 100, period: 1h", 10),
    Kind("sliding_log, 100 units", "algorithm: sliding_log, count: 100, period: 1h", 100),
)


def limits():
    lines = (
        f"K{number}: {{per: \"path:id\", {kind.parameters}}}\n" for number, kind in enumerate(KINDS)
    )
    return "".join(lines)


def routes():
    items = (
        f"{{name: k{number}, match: {{path: '/k{number}/{{id}}'}}, upstream: app, "
        f"limits: [K{number}]}}"
        for number in range(len(KINDS))
    )
    return f"routes: [{', '.join(items)}]\n"


def measure(gateway_port, shard, count):
    """Bytes a bucket, by the name of its kind."""
    found = {}
    for number, kind in enumerate(KINDS):
        shard.connection.ask("FLUSHALL")
        use(gateway_port, f"/k{number}/subject", kind)
        keys = shard.connection.ask("KEYS", f"*K{number}*")
        if not keys:
            raise Failed(f"{kind.name}: the gateway has made no bucket")
        found[kind.name] = sum(bytes_of(shard, key, count) for key in keys)
    return found


def use(port, path, kind, patience=30):
    """Sends requests that are all let through. While Redis was busy with copies, the gateway may
    have given it up."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    deadline = time.monotonic() + patience
    left = kind.requests
    while left:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            left -= 1
        elif answer.status != 503 or time.monotonic() > deadline:
            raise Failed(f"{path} is answered by {answer.status}")
        time.sleep(kind.pause if answer.status == 200 else 0.1)
    connection.close()


def bytes_of(shard, key, count):
    """What each of so many copies of a key takes, with its share of the tables of all keys."""
    dump = shard.connection.ask("DUMP", key)
    before = used(shard)
    for start in range(0, count, AT_ONCE):
        names = [name(key, number) for number in range(start, min(start + AT_ONCE, count))]
        shard.connection.send(("RESTORE", copy, str(KEPT), dump) for copy in names)
        for _ in names:
            shard.connection.reply()
    grown = used(shard) - before
    shard.connection.ask("FLUSHALL")
    return grown / count


def name(key, number):
    """As long as the key of a subject with a dozen characters."""
    return key.replace(b"subject", b"s%011d" % number)


def used(shard):
    return shard.info("memory")["used_memory"]
