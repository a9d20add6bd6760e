import json
import os
import socket
import tempfile
import time
import unittest

from harness import processes
from harness.processes import Failed, Load, Service
from harness.scenarios import Scenario, same

from .support import place, program

CORE = str(min(os.sched_getaffinity(0)))
PATIENCE = 30

#: Speaks as the load generator does; what it was started with stands in the field `words`.
LOAD = """
import json, sys
print("ready", flush=True)
for line in sys.stdin:
    outcome = dict(answered=5, unexpected=1, resumed=2, lost=0, unanswered=0, seconds=1.5, p50=7)
    print(json.dumps({**outcome, "words": sys.argv[1:], "command": line.strip()}), flush=True)
"""

#: A server with a child, which has spent CPU time and memory.
SERVER = """
import os, signal, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while time.process_time() < 0.2:
    pass
if os.fork() == 0:
    while time.process_time() < 0.2:
        pass
    open(sys.argv[2], "w").close()
signal.pause()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def program(self, text):
        return program(os.path.join(self.folder, "program"), text)


class Cores(unittest.TestCase):
    def test_cores_are_counted_as_taskset_reads_them(self):
        for text, count in (("0", 1), ("0,1", 2), ("0-3", 4), ("0-2,5", 4), ("1,1,0-1", 2)):
            self.assertEqual(processes.count_cores(text), count, text)


class Services(Folder):
    def start(self, text, *words):
        argv = [self.program(text), *words]
        service = Service("it", argv, CORE, os.path.join(self.folder, "log"))
        self.addCleanup(service.end)
        return service

    def test_a_port_that_is_taken_is_refused(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with self.assertRaisesRegex(Failed, f"{port} is taken"):
                processes.refuse_taken("it", port)
        processes.refuse_taken("it", port)

    def test_a_server_that_ends_at_once_is_quoted(self):
        service = self.start("print('no such file')")
        with self.assertRaisesRegex(Failed, "ended at once:\nno such file"):
            service.wait_for_port(free_port(), PATIENCE)

    def test_a_server_that_does_not_listen_is_not_waited_for_without_end(self):
        service = self.start("import signal\nsignal.pause()")
        with self.assertRaisesRegex(Failed, "does not listen"):
            service.wait_for_port(free_port(), 0.2)

    def test_the_time_of_children_is_counted_and_they_end_with_the_server(self):
        port, mark = free_port(), os.path.join(self.folder, "mark")
        service = self.start(SERVER, str(port), mark)
        service.wait_for_port(port, PATIENCE)
        while not os.path.exists(mark):
            self.assertIsNone(service.process.poll())
            time.sleep(0.01)
        family = service.family()
        self.assertEqual(len(family), 2)
        self.assertGreaterEqual(service.cpu_seconds(), 0.35)
        self.assertGreater(service.peak_mib(), 1)
        service.forget_peak()
        self.assertGreater(service.peak_mib(), 0)
        service.end()
        self.assertIsNotNone(service.process.poll())

    @unittest.skipUnless(os.path.exists("/proc/self/schedstat"), "the kernel does not count")
    def test_less_than_a_tick_is_measured(self):
        own = os.getpid()
        before = sum(processes.cpu_nanos(own).values())
        begun = time.process_time_ns()
        while time.process_time_ns() < begun + 2_000_000:
            pass
        spent = sum(processes.cpu_nanos(own).values()) - before
        self.assertGreaterEqual(spent, 2_000_000)

    def test_a_thread_that_has_ended_still_counts(self):
        service = self.start("import signal\nsignal.pause()")
        service.threads = {"ended": 7_000_000_000}
        self.assertGreaterEqual(service.cpu_seconds(), 7)

    def test_a_process_that_is_gone_has_spent_nothing(self):
        self.assertEqual(processes.cpu_ticks(1 << 30), 0)
        self.assertEqual(processes.cpu_nanos(1 << 30), {})
        self.assertEqual(processes.peak_kib(1 << 30), 0)


class Loads(Folder):
    scenario = Scenario("x", "X", same(("weir",)), connections=9, load={"reconnect": "full"})

    def load(self, text, idle=4, count=1):
        return Load(self.program(text), CORE, place(self.folder), self.scenario, idle, count)

    def test_it_is_told_of_the_proxy_and_the_scenario(self):
        with self.load(LOAD) as load:
            outcome = load.run("closed 1.5", 1.5)
        words = outcome["words"]
        options = dict(zip(words[::2], words[1::2]))
        self.assertEqual(outcome["command"], "closed 1.5")
        self.assertEqual(options["--target"], "127.0.0.1:21010")
        self.assertEqual((options["--connections"], options["--idle"]), ("9", "4"))
        self.assertEqual((options["--expect"], options["--reconnect"]), ("200", "full"))
        self.assertNotIn("--tls", options)

    def test_several_share_the_connections_and_their_answers_are_added(self):
        with self.load(LOAD, count=3) as load:
            outcome = load.run("closed 1", 1)
            first = load.processes[0].args
        self.assertEqual((outcome["answered"], outcome["resumed"]), (15, 6))
        self.assertEqual(outcome["seconds"], 1.5)
        self.assertNotIn("p50", outcome)
        self.assertEqual(first[first.index("--connections") + 1], "3")

    def test_the_last_words_of_one_that_cannot_connect_are_the_reason(self):
        with self.assertRaisesRegex(Failed, "connection refused"):
            self.load("import sys\nsys.exit('connection refused')")

    def test_one_that_ends_in_the_middle_is_noticed(self):
        with self.load("import sys\nprint('ready', flush=True)\nsys.exit('gone')") as load:
            with self.assertRaisesRegex(Failed, "gone"):
                load.run("closed 1", 1)

    def test_none_is_left_running_when_one_of_several_fails(self):
        mark = os.path.join(self.folder, "mark")
        text = f"""
import os, signal, sys
own = {mark!r} + str(os.getpid())
os.mkdir(own)
with open(own + "/pid", "w") as file:
    file.write(str(os.getpid()))
try:
    os.rename(own, {mark!r})
except OSError:
    sys.exit("the second fails")
print("ready", flush=True)
signal.pause()
"""
        with self.assertRaisesRegex(Failed, "the second fails"):
            self.load(text, count=2)
        with open(os.path.join(mark, "pid")) as file:
            pid = int(file.read())
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    def test_outcomes_of_one_process_are_left_as_they_are(self):
        outcome = json.loads('{"answered": 1, "p50": 2}')
        self.assertIs(processes.merged([outcome]), outcome)
