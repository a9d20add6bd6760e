"""Shards of Redis: one server, or the primaries of a Cluster; and what they say of themselves."""

import socket
import time

from harness.processes import Failed

SLOTS = 16_384


class Shard:
    """A running server, and a connection to it."""

    def __init__(self, service, port):
        self.service = service
        self.port = port
        self.connection = Connection(port)

    def info(self, section):
        """The numbers in a section of INFO."""
        lines = self.connection.ask("INFO", section).decode().splitlines()
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        return {name: float(value) for name, value in pairs if is_number(value)}

    def calls(self, command):
        """How often a command was carried out."""
        found = self.connection.ask("INFO", "commandstats").decode()
        for line in found.splitlines():
            if line.startswith(f"cmdstat_{command}:calls="):
                return int(line.partition("=")[2].partition(",")[0])
        return 0


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def arguments(port, folder, in_cluster):
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
    words += ["--save", "", "--appendonly", "no"]
    if in_cluster:
        words += ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf"]
        words += ["--cluster-require-full-coverage", "no"]
    return words


def slots_of(number, count):
    """The first and the last slot of one of so many shards."""
    return SLOTS * number // count, SLOTS * (number + 1) // count - 1


def join(shards, seconds=30):
    """Makes a Cluster of servers that know nothing of each other."""
    for number, shard in enumerate(shards):
        first, last = slots_of(number, len(shards))
        shard.connection.ask("CLUSTER", "ADDSLOTS", *map(str, range(first, last + 1)))
        shard.connection.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
    for shard in shards[1:]:
        shard.connection.ask("CLUSTER", "MEET", "127.0.0.1", str(shards[0].port))
    deadline = time.monotonic() + seconds
    while not all(is_whole(shard, len(shards)) for shard in shards):
        if time.monotonic() > deadline:
            raise Failed("the shards have not become a Cluster")
        time.sleep(0.1)


def is_whole(shard, count):
    state = shard.connection.ask("CLUSTER", "INFO").decode()
    return "cluster_state:ok" in state and f"cluster_known_nodes:{count}\r\n" in state


class Connection:
    """As much of the protocol as is needed: a command, and its reply."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.stream = self.socket.makefile("rb")

    def ask(self, *words):
        self.send([words])
        return self.reply()

    def send(self, commands):
        self.socket.sendall(b"".join(encoded(words) for words in commands))

    def reply(self):
        line = self.stream.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            if rest == b"-1":
                return None
            return self.stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        raise Failed(f"Redis answers {line.decode(errors='replace') or 'nothing'}")

    def close(self):
        self.stream.close()
        self.socket.close()


def encoded(words):
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    body = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), body)
