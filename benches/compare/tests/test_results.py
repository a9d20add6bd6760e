import csv
import os
import tempfile
import unittest
from xml.etree import ElementTree

from harness import plot, results
from harness.scenarios import SCENARIOS, Scenario, same

from .support import row

TWO = Scenario("memory-1", "One limit", same(("weir", "nginx"), limits=1))
CLOSED = Scenario("cores", "All cores", same(("weir", "nginx")), open_loop=False)


def rows(weir, nginx, metric="cpu_us", scenario="memory-1", **more):
    made = []
    for number, (own, other) in enumerate(zip(weir, nginx), 1):
        made.append(row(scenario, number, "weir", **{metric: own}, **more))
        made.append(row(scenario, number, "nginx", **{metric: other}, **more))
    return made


class Ratios(unittest.TestCase):
    def test_a_ratio_is_taken_within_a_round_and_not_of_medians(self):
        # The machine was ten times slower in the second round, and both with it.
        found = results.ratio(rows([2, 30, 4], [1, 10, 1]), "memory-1", "weir", "nginx", "cpu_us")
        self.assertEqual((found.middle, found.least, found.most), (3, 2, 4))

    def test_a_round_that_one_of_both_missed_does_not_count(self):
        made = rows([2, 4], [1, None])
        self.assertEqual(results.ratio(made, "memory-1", "weir", "nginx", "cpu_us").most, 2)
        made = rows([2], [None])
        self.assertIsNone(results.ratio(made, "memory-1", "weir", "nginx", "cpu_us"))

    def test_what_a_request_costs_a_proxy_that_is_not_busy_has_a_ratio_of_its_own(self):
        made = rows([2], [1], rate=10.0)
        self.assertNotIn("at the rate", results.scenario_table(made, TWO))
        for one, cost in zip(made, (9, 3)):
            one["open_cpu_us"] = cost
        head, _, weir, nginx = results.scenario_table(made, TWO).splitlines()[4:8]
        self.assertIn("at the rate: Weir to it", head)
        self.assertIn("2.00 (2.00–2.00)", nginx)
        self.assertIn("3.00 (3.00–3.00)", nginx)
        self.assertIn("9.0", weir)

    def test_figures_of_other_scenarios_are_left_alone(self):
        made = rows([2], [1]) + rows([9], [1], scenario="plain")
        self.assertEqual(results.values(made, "memory-1", "weir", "cpu_us").most, 2)


class Targets(unittest.TestCase):
    def verdict(self, made):
        lines = results.target_table(made).splitlines()[2:]
        return [line.rpartition(" | ")[2].strip(" |") for line in lines]

    def test_a_target_that_is_just_reached_is_met(self):
        most = results.TARGETS[0][4]
        self.assertEqual(self.verdict(rows([most], [1])), ["met"])

    def test_a_target_that_is_missed_says_by_how_much(self):
        most = results.TARGETS[0][4]
        self.assertEqual(self.verdict(rows([most * 1.5], [1])), ["missed by 50%"])

    def test_a_target_without_a_peer_is_held_against_the_figure_itself(self):
        title, scenario, metric, peer, most = results.TARGETS[-1]
        self.assertIsNone(peer)
        made = [row(scenario, 1, "weir", **{metric: most * 2})]
        self.assertEqual(self.verdict(made), ["missed by 100%"])

    def test_targets_that_were_not_measured_are_not_shown(self):
        self.assertEqual(results.target_table([]), "")

    def test_targets_are_of_scenarios_peers_and_metrics_that_there_are(self):
        entrants = {
            scenario.name: {contestant.label for contestant in scenario.contestants}
            for scenario in SCENARIOS
        }
        for title, scenario, metric, peer, _ in results.TARGETS:
            with self.subTest(title):
                self.assertLessEqual({"weir", peer or "weir"}, entrants[scenario])
                self.assertIn(metric, results.METRICS)


class Tables(unittest.TestCase):
    def test_the_columns_of_a_table_are_even_and_it_has_a_line_for_each_proxy(self):
        made = rows([2], [1], p99_us=7.0)
        lines = results.scenario_table(made, TWO).splitlines()
        table = [line for line in lines if line.startswith("|")]
        self.assertEqual(len(table), 4)
        self.assertEqual(len({len(line) for line in table}), 1)
        self.assertIn("open loop at 100 requests/s", lines[2])

    def test_what_nobody_was_measured_for_has_no_column(self):
        table = results.scenario_table(rows([2], [1]), TWO)
        self.assertNotIn("Redis", table)
        self.assertNotIn("peak MiB", table)

    def test_a_closed_loop_alone_is_compared_by_its_throughput(self):
        made = rows([50], [100], metric="rps", scenario="cores", rate=None)
        table = results.scenario_table(made, CLOSED)
        self.assertIn("requests/s: Weir to it", table)
        self.assertNotIn("p99", table)
        self.assertNotIn("open loop", table)
        self.assertIn("0.50 (0.50–0.50)", table)

    def test_a_scenario_without_rows_is_left_out(self):
        self.assertEqual(results.scenario_table([], TWO), "")


class Files(unittest.TestCase):
    def test_a_run_leaves_tables_rounds_and_plots(self):
        made = rows([2, 3], [1, 1], rps=10.0, p99_us=5.0, peak_mib=9.0)
        made += rows([7], [8], scenario="cores", rate=None)
        with tempfile.TemporaryDirectory() as folder:
            text = results.write(made, [TWO, CLOSED], folder, "weir 0.1.0", ["a remark"])
            self.assertIn("- a remark", text)
            with open(os.path.join(folder, "rounds.csv"), newline="") as file:
                read = list(csv.DictReader(file))
            self.assertEqual([line["cpu_us"] for line in read], ["2", "1", "3", "1", "7", "8"])
            self.assertEqual((read[0]["rate"], read[-1]["rate"]), ("100.0", ""))
            with open(os.path.join(folder, "summary.csv"), newline="") as file:
                first = next(csv.DictReader(file))
            self.assertEqual((first["median"], first["median_to_nginx"]), ("2.5", "2.5"))
            for name, *_ in results.CHARTS:
                root = ElementTree.parse(os.path.join(folder, f"{name}.svg")).getroot()
                self.assertTrue(root.tag.endswith("svg"))

    def test_a_run_that_was_interrupted_at_once_is_written_all_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            text = results.write([], [TWO], folder, "weir 0.1.0", ["the run was interrupted"])
            self.assertIn("interrupted", text)


class Plots(unittest.TestCase):
    def test_a_bar_is_as_long_as_its_figure_beside_the_greatest(self):
        entries = [("weir", results.Spread(5, 5, 5)), ("nginx", results.Spread(10, 8, 20))]
        root = ElementTree.fromstring(plot.bars("CPU", "µs", [("a & b", entries)], 1))
        bars = [float(own.get("width")) for own in root.iter() if own.get("rx")]
        full = plot.WIDTH - plot.LEFT - plot.RIGHT
        self.assertEqual(bars, [full / 4, full / 2])

    def test_what_was_not_measured_is_not_drawn(self):
        root = ElementTree.fromstring(plot.bars("CPU", "µs", [("none", [("weir", None)])], 1))
        self.assertEqual([own for own in root.iter() if own.get("rx")], [])

    def test_every_peer_has_a_colour_of_its_own(self):
        peers = {own.peer for scenario in SCENARIOS for own in scenario.contestants}
        self.assertLessEqual(peers, set(plot.COLOURS))
        self.assertEqual(len(set(plot.COLOURS.values())), len(plot.COLOURS))
