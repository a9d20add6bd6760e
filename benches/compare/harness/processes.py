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


def count_cores(cores):
    """How many a list such as `0-2,5` has, as taskset takes it."""
    ends = [part.partition("-") for part in cores.split(",")]
    return len({core for low, _, high in ends for core in range(int(low), int(high or low) + 1)})


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
        #: Nanoseconds of CPU time of each thread, as they were last seen.
        self.threads = {}
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                on_cores(cores, argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    def wait_for_port(self, port, seconds=15, host="127.0.0.1"):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended at once:\n{self.last_words()}")
            with contextlib.suppress(OSError):
                socket.create_connection((host, port), 1).close()
                return
            time.sleep(0.05)
        raise Failed(f"{self.name} does not listen:\n{self.last_words()}")

    def last_words(self):
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-8:])

    def family(self):
        return [self.process.pid, *descendants(self.process.pid)]

    def cpu_seconds(self):
        """Of all threads and children, whether they have ended or not.

        What the scheduler counts is exact, but ends with a thread; what the process counts is
        rounded down to ticks, which is much of a short run. Neither is ever too much.
        """
        family = self.family()
        for pid in family:
            self.threads |= cpu_nanos(pid)
        ticks = sum(cpu_ticks(pid) for pid in family)
        return max(sum(self.threads.values()) / 1e9, ticks / TICKS)

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


def cpu_nanos(pid):
    """By the id of each thread; without those that have ended."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                found[thread] = int(file.read().split()[0])
    return found


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
    """The load generator: one process, or several that share the connections to one proxy."""

    def __init__(self, binary, cores, place, scenario, idle, count=1):
        options = {
            "target": f"127.0.0.1:{place.port}",
            "path": scenario.path,
            "connections": max(scenario.connections // count, 1),
            "idle": idle // count,
            "expect": scenario.expect,
            **scenario.load,
        }
        if place.certificate:
            options["tls"] = place.certificate.path
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.processes = []
        try:
            for _ in range(count):
                process = subprocess.Popen(
                    on_cores(cores, [binary, *words]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                self.processes.append(process)
            for process in self.processes:
                answer(process, seconds=60)
        except BaseException:
            self.end()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate()

    def run(self, command, seconds):
        self.send(command)
        return self.outcome(seconds)

    def send(self, command):
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{command}\n".encode())
                process.stdin.flush()

    def outcome(self, seconds):
        return merged([json.loads(answer(own, seconds + 10)) for own in self.processes])


def answer(process, seconds):
    """The next line that a process writes, or Failed with the last words of one that ended."""
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if readable else b""
    if not line:
        process.kill()
        words = process.communicate()[1].decode(errors="replace").strip()
        raise Failed(words or "the load generator had no answer in time")
    return line


def merged(outcomes):
    """Of processes that ran at the same time. Their latencies cannot be put together."""
    if len(outcomes) == 1:
        return outcomes[0]
    counts = ("answered", "unexpected", "resumed", "lost", "unanswered")
    total = {name: sum(outcome[name] for outcome in outcomes) for name in counts}
    return {**total, "seconds": max(outcome["seconds"] for outcome in outcomes)}
