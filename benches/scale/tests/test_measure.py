import os
import tempfile
import unittest

from harness.peers import Place
from harness.processes import Failed
from scale import measure, memory
from scale.measure import Cell, Figures


def counters(**changed):
    whole = {"gateways": 1.0, "shards": 2.0, "commands": 10, "there": 1e3, "back": 1e2}
    whole["reads"] = 5
    return {**whole, **changed}


def outcome(answered, unexpected=0, lost=0, seconds=2.0):
    return {"answered": answered, "unexpected": unexpected, "lost": lost, "seconds": seconds}


class OneRun(unittest.TestCase):
    def test_what_was_spent_is_divided_by_requests_and_by_decisions(self):
        after = counters(gateways=1.3, shards=2.1, commands=30_010, there=3_001e3, back=601e2)
        after["reads"] = 10_005
        found = measure.figures(
            Cell(2, 3, 3), counters(), after, [outcome(4_000), outcome(6_000, seconds=2.5)]
        )
        self.assertAlmostEqual(found.gateway_us, 30.0)
        self.assertAlmostEqual(found.redis_us, 100_000 / 30_000)
        self.assertAlmostEqual(found.commands, 1.0)
        self.assertAlmostEqual(found.bytes_there, 100.0)
        self.assertAlmostEqual(found.bytes_back, 2.0)
        self.assertAlmostEqual(found.a_read, 3.0)
        self.assertEqual((found.requests, found.seconds), (10_000, 2.5))

    def test_without_limits_nothing_is_asked_of_redis(self):
        after = counters(gateways=1.1)
        found = measure.figures(Cell(1, 1, 0), counters(), after, [outcome(10_000)])
        self.assertAlmostEqual(found.gateway_us, 10.0)
        self.assertEqual((found.redis_us, found.commands), (0.0, 0.0))

    def test_requests_that_go_wrong_are_no_measurement(self):
        for outcomes in ([outcome(0)], [outcome(1000, unexpected=2)], [outcome(1000, lost=2)]):
            with self.assertRaises(Failed):
                measure.figures(Cell(1, 1, 0), counters(), counters(), outcomes)

    def test_decisions_that_redis_was_not_asked_for_are_no_measurement(self):
        after = counters(commands=900)
        with self.assertRaisesRegex(Failed, "890 commands for 1000 decisions"):
            measure.figures(Cell(1, 1, 1), counters(), after, [outcome(1000)])

    def test_the_least_cpu_time_counts_and_the_median_of_the_rest(self):
        runs = [Figures(x, 10 - x, 1.0, x, x, 1.0, 100, 1.0) for x in (1.0, 9.0, 2.0)]
        found = measure.typical(runs)
        self.assertEqual((found.gateway_us, found.redis_us), (1.0, 1.0))
        self.assertEqual(found.bytes_there, 2.0)


class Configurations(unittest.TestCase):
    def gateway(self, limits, ports):
        with tempfile.TemporaryDirectory() as folder:
            place = Place(os.path.join(folder, "a"), 1, 2, 3, folder)
            return measure.gateway(place, limits, ports)

    def test_one_shard_is_a_url_and_several_are_a_cluster(self):
        one = self.gateway(1, [7001])
        self.assertIn("redis: {url: 'redis://127.0.0.1:7001',", one)
        several = self.gateway(2, [7001, 7002])
        nodes = "cluster: {nodes: ['redis://127.0.0.1:7001', 'redis://127.0.0.1:7002']}"
        self.assertIn(nodes, several)
        self.assertIn("limits: [L0, L1]", several)

    def test_each_limit_has_a_bucket_of_its_own_for_each_subject(self):
        self.assertEqual(len(set(measure.LIMITS)), len(measure.LIMITS))
        self.assertTrue(all("path:id" in per for per in measure.LIMITS))
        self.assertEqual(measure.limits(3).count("\n"), 3)
        self.assertEqual(measure.limits(0), "{}\n")

    def test_each_kind_of_bucket_has_a_limit_and_a_route(self):
        for number in range(len(memory.KINDS)):
            self.assertIn(f"K{number}: {{per: \"path:id\",", memory.limits())
            self.assertIn(f"match: {{path: '/k{number}/{{id}}'}}", memory.routes())
