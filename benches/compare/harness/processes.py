"""Starting, watching and ending processes."""

import contextlib
import json
import os
import select
import socket
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """Something that leaves a contestant out, but does not end the run."""


def on_cores(cores, argv):
    return ["taskset", "-c", cores, *argv]


def refuse_taken(name, port):
    """What listens there already would be measured in the place of the server to be started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as failure:
            raise Failed(f"no port for {name}: {port} is taken (--base-port)") from failure


class Service:
    """A server of which `argv` starts the first process. Its output goes to a log file."""

    def __init__(self, name, argv, cores, log, environment=None):
        self.name = name
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                on_cores(cores, argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    def wait_for_port(self, port, seconds=15):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended at once:\n{self.last_words()}")
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            time.sleep(0.05)
        raise Failed(f"{self.name} does not listen:\n{self.last_words()}")

    def last_words(self):
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-8:])

    def family(self):
        return [self.process.pid, *descendants(self.process.pid)]

    def cpu_seconds(self):
        """Of all threads and children, whether they have ended or not."""
        return sum(cpu_ticks(pid) for pid in self.family()) / TICKS

    def forget_peak(self):
        for pid in self.family():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/clear_refs", "w") as file:
                file.write("5")

    def peak_mib(self):
        return sum(peak_kib(pid) for pid in self.family()) / 1024

    def end(self):
        family = self.family()
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            self.process.wait()


def stat(pid):
    """The fields of /proc/PID/stat after the name, or none when the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_ticks(pid):
    # utime, stime, and the same of children that have been waited for.
    return sum(int(ticks) for ticks in stat(pid)[11:15])


def descendants(pid):
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat(entry)):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def peak_kib(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = [line.split() for line in status if line.startswith("VmHWM:")]
            return int(lines[0][1]) if lines else 0
    except OSError:
        return 0


class Load:
    """The load generator, connected to one proxy."""

    def __init__(self, binary, cores, place, scenario, idle):
        options = {
            "target": f"127.0.0.1:{place.port}",
            "path": scenario.path,
            "connections": scenario.connections,
            "idle": idle,
            "expect": scenario.expect,
            **scenario.load,
        }
        if place.certificate:
            options["tls"] = place.certificate.path
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            on_cores(cores, [binary, *words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.answer(seconds=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def run(self, command, seconds):
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        return json.loads(self.answer(seconds + 10))

    def answer(self, seconds):
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.process.kill()
            words = self.process.communicate()[1].decode(errors="replace").strip()
            raise Failed(words or "the load generator had no answer in time")
        return line
