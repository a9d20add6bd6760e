import subprocess
import unittest
from unittest import mock

from harness import flood, refused, soak
from harness.processes import Failed


class Namespace(unittest.TestCase):
    def test_without_the_right_to_make_one_nothing_is_measured(self):
        refusal = subprocess.CompletedProcess([], 1, "", "unshare: not permitted\n")
        with mock.patch("subprocess.run", return_value=refusal):
            with self.assertRaisesRegex(Failed, "not permitted"):
                flood.require_namespace()

    def test_the_command_and_its_words_are_run_as_they_are(self):
        words = flood.within_namespace(["python3", "a word", "$HOME"])
        self.assertEqual(words[-3:], ["python3", "a word", "$HOME"])


class Addresses(unittest.TestCase):
    def test_no_client_is_both_banned_and_honest_and_half_are_neighbours(self):
        banned, honest = soak.addresses(5_000, 200)
        self.assertEqual((len(set(banned)), len(set(honest))), (5_000, 200))
        self.assertFalse(set(banned) & set(honest))
        numbers = {int(flood.ipaddress.ip_address(it)) for it in banned}
        beside = [it for it in honest if int(flood.ipaddress.ip_address(it)) - 1 in numbers]
        self.assertGreaterEqual(len(beside), 100)
        self.assertNotIn(flood.SERVER, [*banned, *honest])

    def test_who_is_welcome_is_not_refused(self):
        self.assertNotIn(flood.ipaddress.ip_address(refused.WELCOME), flood.REFUSED)


class Faults(unittest.TestCase):
    def found(self, let_in, **counts):
        phase = {"lost": 0, "denied": 0, "unheard": 0, **counts}
        parsed = mock.Mock(late=3.0)
        bans = {"198.18.0.4": (100.0, 100.5), "198.18.0.6": (101.0, 101.5)}
        return soak.faults(parsed, [phase], bans, let_in)

    def test_bans_that_end_on_time_are_none(self):
        self.assertEqual(self.found({"198.18.0.4": 100.0, "198.18.0.6": 104.5}), [])

    def test_one_that_ends_early_or_late_or_never_is(self):
        self.assertRegex(self.found({"198.18.0.4": 99.9, "198.18.0.6": 102})[0], "although")
        self.assertRegex(self.found({"198.18.0.4": 103.6, "198.18.0.6": 102})[0], "after")
        self.assertRegex(self.found({"198.18.0.6": 102})[0], "1 were refused after")

    def test_an_honest_client_that_is_not_heard_is(self):
        let_in = {"198.18.0.4": 100.0, "198.18.0.6": 102.0}
        self.assertRegex(self.found(let_in, unheard=2)[0], "2 requests .* unheard")
