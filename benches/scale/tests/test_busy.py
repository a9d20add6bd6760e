import unittest

from scale import busy
from scale.busy import Spent


class Connection:
    """Says that keys are in slots 0, 1000, 2000 and so on."""

    def __init__(self):
        self.asked = []

    def ask(self, *words):
        self.asked.append(words)
        return 1000 * (len(self.asked) - 1)


class Shard:
    def __init__(self):
        self.connection = Connection()


class Busy(unittest.TestCase):
    def test_the_least_cpu_time_of_a_decision_counts(self):
        runs = [Spent(2.0, 100_000, 10_000), Spent(1.0, 100_000, 25_000), Spent(3.0, 200_000, 1)]
        self.assertEqual(busy.least(runs), (10.0, 4.0))

    def test_a_shard_is_asked_about_a_key_of_its_own(self):
        shard = Shard()
        key = busy.key_of(shard, 1, 3)
        self.assertEqual(key, "weir:RequestsPerAddress:203.0.113.6")
        self.assertEqual(shard.connection.asked[-1], ("CLUSTER", "KEYSLOT", key))

    def test_a_server_by_itself_is_asked_for_no_slots(self):
        shard = Shard()
        self.assertEqual(busy.key_of(shard, 0, 1), "weir:RequestsPerAddress:203.0.113.0")
        self.assertEqual(shard.connection.asked, [])

    def test_a_decision_takes_what_it_checks(self):
        changes = [int(word) for word in busy.DECISION if word.lstrip("-").isdigit()]
        steps = [change for change in changes if abs(change) > 500]
        self.assertEqual(sum(steps), 1000)
