import os
import shutil
import ssl
import tempfile
import unittest
from unittest import mock

from harness import certificate, measure, results
from harness.measure import Bench, Entrant
from harness.processes import Failed
from harness.scenarios import Contestant, Job, Scenario, same

from .support import place

OPEN = Scenario("open", "Open", same(("weir", "nginx", "envoy"), limits=1))
CLOSED = Scenario("closed", "Closed", same(("weir", "nginx")), open_loop=False)


def outcome(**more):
    counts = dict.fromkeys(("unexpected", "resumed", "lost", "unanswered"), 0)
    latencies = {"p50": 1.0, "p99": 2.0, "p999": 3.0}
    return {"answered": 1000, "seconds": 1.0, **counts, **latencies, **more}


class FakeService:
    """Spends half a second of CPU time between any two looks."""

    def __init__(self):
        self.seconds = 0.0

    def cpu_seconds(self):
        self.seconds += 0.5
        return self.seconds

    def forget_peak(self):
        pass

    def peak_mib(self):
        return 12.5


class FakeLoad:
    """Answers with what `outcomes` says about a proxy's port, or fails with it."""

    outcomes: dict = {}
    commands: list = []

    def __init__(self, _binary, _cores, place, _scenario, _idle, _count=1):
        self.port = place.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, command, _seconds):
        FakeLoad.commands.append((self.port, command))
        answer = FakeLoad.outcomes.get(self.port, outcome())
        if isinstance(answer, Exception):
            raise answer
        return answer


class Options:
    rounds, seconds, rate, base_port = 3, 2.0, None, 21_000
    load, load_cores, proxy_core, all_cores, cache = "load", "1", "0", "0,1", "cache"
    peers = ("weir", "nginx", "envoy")

    def __init__(self, folder):
        self.results = folder

    def idle(self, scenario):
        return scenario.idle


class Measuring(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bench = Bench(Options(folder.name))
        self.folder, self.notes = folder.name, []
        FakeLoad.outcomes, FakeLoad.commands = {}, []
        patch = mock.patch.object(measure, "Load", FakeLoad)
        patch.start()
        self.addCleanup(patch.stop)

    def entrants(self, scenario, workers=1):
        return [
            Entrant(contestant, FakeService(), place(self.folder, workers=workers, port=port))
            for port, contestant in enumerate(scenario.contestants, 1)
        ]

    def measure(self, scenario):
        rows = []
        start_all = mock.Mock(return_value=self.entrants(scenario))
        with mock.patch.object(measure, "start_all", start_all):
            measure.measure(self.bench, scenario, rows, self.notes.append)
        return rows

    def test_every_proxy_has_its_turn_in_every_round(self):
        rows = self.measure(OPEN)
        turns = sorted((row["round"], row["proxy"]) for row in rows)
        names = ["envoy", "nginx", "weir"]
        self.assertEqual(turns, [(number, name) for number in (1, 2, 3) for name in names])
        self.assertEqual(self.notes, [])

    def test_the_cost_is_the_proxys_time_over_its_answers(self):
        row = self.measure(OPEN)[0]
        self.assertAlmostEqual(row["cpu_us"], 500)
        self.assertAlmostEqual(row["rps"], 1000)
        self.assertAlmostEqual(row["busy"], 50)
        self.assertEqual((row["p99_us"], row["peak_mib"], row["redis_us"]), (2.0, 12.5, None))

    def test_a_proxy_on_two_cores_is_as_busy_as_its_share_of_both(self):
        entrant = self.entrants(CLOSED, workers=2)[0]
        figures = measure.cell(self.bench, CLOSED, entrant, 1.0)
        self.assertAlmostEqual(figures["busy"], 25)

    def test_the_rate_is_half_of_the_lesser_peak_of_weir_and_nginx(self):
        FakeLoad.outcomes = {1: outcome(answered=3000), 2: outcome(answered=2000), 3: outcome()}
        self.measure(OPEN)
        rates = {command for _, command in FakeLoad.commands if command.startswith("open")}
        self.assertEqual(rates, {"open 2.0 1000.0"})

    def test_what_cannot_hold_the_rate_has_no_latencies(self):
        FakeLoad.outcomes = {3: outcome(answered=100)}
        rows = self.measure(OPEN)
        slow = [row for row in rows if row["proxy"] == "envoy"]
        self.assertEqual([row["p99_us"] for row in slow], [None, None, None])
        self.assertNotIn(3, [port for port, command in FakeLoad.commands if "open" in command])

    def test_without_an_open_loop_there_is_no_rate_and_no_latency(self):
        rows = self.measure(CLOSED)
        self.assertEqual(len(rows), 6)
        self.assertEqual({row["rate"] for row in rows} | {row["p99_us"] for row in rows}, {None})
        self.assertFalse(any("open" in command for _, command in FakeLoad.commands))
        self.assertIn("closed loop alone", results.scenario_table(rows, CLOSED))

    def test_a_proxy_that_fails_is_left_out_and_the_others_go_on(self):
        FakeLoad.outcomes = {3: Failed("the proxy closes connections all the time")}
        rows = self.measure(OPEN)
        self.assertEqual({row["proxy"] for row in rows}, {"weir", "nginx"})
        self.assertEqual(len(self.notes), 1)
        self.assertIn("envoy is left out: the proxy closes", self.notes[0])

    def test_all_may_fail(self):
        FakeLoad.outcomes = dict.fromkeys((1, 2, 3), Failed("no"))
        self.assertEqual(self.measure(OPEN), [])
        self.assertEqual(len(self.notes), 3)

    def test_what_is_not_installed_is_left_out_with_a_message(self):
        with mock.patch.object(measure, "executable", return_value=None):
            self.assertEqual(measure.start_all(self.bench, OPEN, None, self.notes.append), [])
        self.assertEqual(len(self.notes), 3)
        self.assertIn("weir is left out: it is not installed", self.notes[0])

    def test_peers_that_were_not_asked_for_are_left_out_silently(self):
        self.bench.options.peers = ()
        self.assertEqual(measure.start_all(self.bench, OPEN, None, self.notes.append), [])
        self.assertEqual(self.notes, [])


class Outcomes(unittest.TestCase):
    def entrant(self, tls):
        return Entrant(Contestant("weir", "weir", Job(tls=tls)), None, None)

    def scenario(self, reconnect):
        load = {"reconnect": reconnect} if reconnect else {}
        return Scenario("x", "X", (), load=load)

    def test_nothing_answered_is_a_failure(self):
        with self.assertRaisesRegex(Failed, "nothing"):
            measure.checked(outcome(answered=0))

    def test_more_than_one_in_a_thousand_gone_wrong_is_a_failure(self):
        measure.checked(outcome(unexpected=1))
        for more in ({"unexpected": 2}, {"lost": 2}, {"lost": 1, "unexpected": 1}):
            with self.assertRaisesRegex(Failed, "2 of 1000 requests went wrong"):
                measure.checked(outcome(**more))

    def test_full_handshakes_that_resume_and_resumed_ones_that_do_not_are_failures(self):
        with self.assertRaisesRegex(Failed, "only 900 of 1000"):
            measure.checked(outcome(resumed=900), True)
        with self.assertRaisesRegex(Failed, "900 of 1000"):
            measure.checked(outcome(resumed=900), False)
        measure.checked(outcome(resumed=1000), True)
        measure.checked(outcome(resumed=0), False)
        measure.checked(outcome(resumed=0), None)

    def test_sessions_are_expected_where_there_are_some_to_resume(self):
        self.assertIsNone(self.entrant(True).resumes(self.scenario(None)))
        self.assertIsNone(self.entrant(False).resumes(self.scenario("full")))
        self.assertIs(self.entrant(True).resumes(self.scenario("full")), False)
        self.assertIs(self.entrant(True).resumes(self.scenario("resumed")), True)


@unittest.skipUnless(shutil.which("openssl"), "there is no openssl")
class Certificates(unittest.TestCase):
    def test_a_certificate_is_one_that_pythons_client_trusts_by_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            own = certificate.make(os.path.join(folder, "own"))
            trust = ssl.create_default_context(cafile=own.path)
            self.assertEqual(trust.cert_store_stats()["x509"], 1)
            served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            served.load_cert_chain(own.path, own.key)

    def test_a_folder_that_cannot_be_written_to_is_a_message(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "compare.pem"))
            with self.assertRaisesRegex(Failed, "no certificate"):
                certificate.make(folder)
