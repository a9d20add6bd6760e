import contextlib
import importlib
import io
import os
import unittest
from unittest import mock

from harness.peers import PEERS

ENVIRONMENT = {"WEIR_COMPARE_CACHE": "/cache", "WEIR_LOAD": "/load"}
command = importlib.import_module("harness.__main__")


class Options(unittest.TestCase):
    def parse(self, *words, cores=(0, 1, 2)):
        with (
            mock.patch("sys.argv", ["run.sh", *words]),
            mock.patch.dict(os.environ, ENVIRONMENT),
            mock.patch("os.sched_getaffinity", return_value=set(cores)),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return command.options()

    def test_proxies_have_the_first_core_and_all_others_the_rest(self):
        parsed = self.parse()
        self.assertEqual((parsed.proxy_core, parsed.load_cores), ("0", "1,2"))
        self.assertEqual(parsed.all_cores, "0,1,2")

    def test_a_single_core_is_shared(self):
        parsed = self.parse(cores=(3,))
        self.assertEqual((parsed.proxy_core, parsed.load_cores, parsed.all_cores), ("3",) * 3)

    def test_all_peers_take_part_unless_some_are_named(self):
        self.assertEqual(self.parse().peers, list(PEERS))
        named = self.parse("--peer", "weir", "--peer=sozu")
        self.assertEqual(named.peers, ["weir", "sozu"])

    def test_what_makes_no_sense_is_refused(self):
        for words in ("--rounds 0", "--seconds 0", "--seconds 61", "--peer apache", "--scenario x"):
            with self.subTest(words), self.assertRaises(SystemExit):
                self.parse(*words.split())
