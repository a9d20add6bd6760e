"""Clients with addresses of their own, in a network namespace: a flood of those who are refused.

As a program it opens connections at a rate, each from the next of many addresses, sends a request
where the handshake was done, and closes after a while. It prints `ready`, takes `run SECONDS` on
standard input, and answers each with a line of JSON.
"""

import argparse
import collections
import ctypes
import ipaddress
import itertools
import json
import resource
import select
import socket
import struct
import subprocess
import sys
import time

from .processes import Failed

#: Each address in it is one of the namespace.
NETWORK = ipaddress.ip_network("198.18.0.0/15")
#: Where proxies are reached.
SERVER = "198.18.0.1"
#: Whom they have to refuse.
REFUSED = ipaddress.ip_network("198.18.1.0/28")

REQUEST = b"GET / HTTP/1.1\r\nhost: flood\r\n\r\n"
#: How long a connection is kept that is neither answered nor closed.
HELD = 0.05
#: To close by a reset, or the ports would be used up.
RESET = struct.pack("ii", 1, 0)
#: A port is chosen when the socket connects, so that it may be one of another address as well.
IP_BIND_ADDRESS_NO_PORT = 24
SO_ATTACH_FILTER = 26


def within_namespace(argv):
    """The words of a command that runs in a namespace of its own, where all addresses are local."""
    setup = f"ip link set lo up && ip route add local {NETWORK} dev lo"
    script = f'{setup} && exec "$0" "$@"'
    return ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, *argv]


def require_namespace():
    made = subprocess.run(within_namespace(["true"]), capture_output=True, text=True, check=False)
    if made.returncode:
        raise Failed(f"no network namespace can be made: {made.stderr.strip()}")


def begin(source, to):
    """A connection that is being made. On loopback it is made, or dropped, when this returns."""
    own = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    own.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
    own.bind((source, 0))
    own.connect_ex(to)
    return own


def sent(own, request=REQUEST):
    """Whether the handshake was done, so that a request could be sent, or was refused with one."""
    try:
        own.send(request)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def reset(own):
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    own.close()


def deaf_listener(port):
    """A socket to which no packet gets: what a client alone costs."""
    own = socket.create_server((SERVER, port))
    # `return 0`, as classic BPF.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0), 8)
    wanted = struct.pack("HP", 1, ctypes.addressof(program))
    own.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, wanted)
    return own


class Flood:
    def __init__(self, to, sources, rate):
        self.to, self.rate = to, rate
        self.sources = itertools.cycle(sources)
        self.open = collections.deque()
        self.counts = collections.Counter()

    def run(self, seconds):
        self.counts.clear()
        spent = cpu_seconds()
        start = now = time.monotonic()
        while now < start + seconds:
            for _ in range(int((now - start) * self.rate) - self.counts["attempts"]):
                self.attempt(now)
            self.end_those_before(now - HELD)
            select.select([], [], [], 0.001)
            now = time.monotonic()
        while self.open:
            select.select([], [], [], 0.01)
            self.end_those_before(time.monotonic())
        return {"seconds": now - start, "cpu": cpu_seconds() - spent, **self.counts}

    def end_those_before(self, moment):
        while self.open and self.open[0][0] < moment:
            self.end(*self.open.popleft()[1:])

    def attempt(self, now):
        own = begin(next(self.sources), self.to)
        self.counts["attempts"] += 1
        if sent(own):
            self.counts["connected"] += 1
            self.open.append((now, own))
        else:
            own.close()

    def end(self, own):
        try:
            self.counts["answered" if own.recv(1) else "closed"] += 1
        except BlockingIOError:
            self.counts["held"] += 1
        except OSError:
            self.counts["closed"] += 1
        reset(own)


def cpu_seconds():
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parsed = parser.parse_args()
    sources = [str(source) for source in REFUSED]
    flood = Flood((SERVER, parsed.port), sources, parsed.rate)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(flood.run(float(line.split()[1]))), flush=True)


if __name__ == "__main__":
    main()
