import unittest

from scale import envoy
from scale.envoy import CASES, Case, Spent


class Envoy(unittest.TestCase):
    def test_a_call_has_the_descriptors_of_its_case(self):
        self.assertEqual(
            envoy.message(2, "a"),
            b"\n\x04edge" b"\x12\x0b\n\x09\n\x04key0\x12\x01a" b"\x12\x0b\n\x09\n\x04key1\x12\x01a",
        )

    def test_the_least_cpu_time_of_a_call_counts(self):
        runs = [Spent(2.0, 0.4, 100_000, 100_000, 2.0), Spent(1.0, 0.5, 100_000, 100_000, 1.0)]
        shown = envoy.row(Case("calls", 1), "Weir", runs)
        self.assertEqual(shown, "| calls | Weir | 10.0 | 4.00 | 1.00 | 100,000 |")

    def test_only_what_is_to_be_denied_has_a_limit_that_is_used_up(self):
        quotas = [envoy.quota(case) for case in CASES]
        self.assertEqual(quotas, [envoy.PLENTY, envoy.PLENTY, 1])
