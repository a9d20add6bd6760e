"""What a build is trained with."""

import os
import tempfile
import unittest
from unittest import mock

from harness import train
from harness.measure import Bench
from harness.processes import Failed
from harness.scenarios import SCENARIOS


def kind(scenario, job):
    """What decides on the path of a scenario's requests through Weir."""
    uploads, large = "upload" in scenario.load, scenario.path == "/large"
    ends = "full" if scenario.reconnect and job.tls else None
    versions = job.http2, job.http3
    return job.outcome, job.redis, versions, job.tls, ends, uploads, large


class Training(unittest.TestCase):
    def test_every_kind_of_request_that_is_measured_is_trained(self):
        trained = {kind(own, own.contestants[0].job) for own, _ in train.TRAINING}
        for scenario in SCENARIOS:
            for contestant in scenario.contestants:
                if contestant.peer == "weir":
                    self.assertIn(kind(scenario, contestant.job), trained, scenario.name)

    def test_no_scenario_goes_by_time(self):
        for own, requests in train.TRAINING:
            self.assertEqual(own.load["warm-up"], 0, own.name)
            self.assertGreater(requests, 0, own.name)

    def test_a_process_that_wrote_no_profile_is_an_error(self):
        own, requests = train.TRAINING[0]
        service = mock.Mock(process=mock.Mock(pid=1), last_words=lambda: "killed")
        entrant = mock.Mock(service=service)
        load = mock.MagicMock()
        answer = {"answered": requests, "unexpected": 0, "lost": 0, "unanswered": 0, "resumed": 0}
        load.return_value.__enter__.return_value.run.return_value = answer
        options = mock.Mock(load="", load_cores="0")
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(train, "start", return_value=entrant),
            mock.patch.object(train, "Load", load),
        ):
            # A rehearsal writes none.
            train.train(Bench(options), own, requests, None)
            with self.assertRaisesRegex(Failed, "no profile was written"):
                train.train(Bench(options), own, requests, folder)
            open(os.path.join(folder, "1.profraw"), "w").close()
            train.train(Bench(options), own, requests, folder)
