import unittest

from scale.measure import Cell, Figures
from scale.model import Line, Model, Wish, arithmetic, line, parts


def figures(gateway_us, redis_us=2.0, there=100.0, back=20.0):
    return Figures(gateway_us, redis_us, 1.0, there, back, 3.0, requests=1000, seconds=1.0)


class ALine(unittest.TestCase):
    def test_it_goes_through_points_that_lie_on_one(self):
        found = line([(1, 15.0), (2, 20.0), (3, 25.0)])
        self.assertAlmostEqual(found.fixed, 10.0)
        self.assertAlmostEqual(found.each, 5.0)

    def test_through_one_point_it_is_flat(self):
        self.assertEqual(line([(2, 7.0)]), Line(7.0, 0.0))


class TheModel(unittest.TestCase):
    def test_it_is_made_of_one_gateway_on_one_shard_with_limits(self):
        cells = {
            Cell(1, 1, 0): figures(1.0, redis_us=0.0),
            Cell(1, 1, 1): figures(15.0, redis_us=5.0),
            Cell(1, 1, 3): figures(25.0, redis_us=3.0),
            Cell(2, 3, 1): figures(99.0, redis_us=99.0),
        }
        model = Model.of(cells)
        self.assertAlmostEqual(model.gateway.at(2), 20.0)
        # 5 us with one limit, 9 us with three.
        self.assertAlmostEqual(model.redis_us(2, shards=1), 7.0)
        gateway, redis = model.deviation(Cell(2, 1, 2), figures(22.0, redis_us=3.15))
        self.assertAlmostEqual(gateway, 10.0)
        self.assertAlmostEqual(redis, -10.0)
        # Two thirds of the pairs lie on two of three shards.
        self.assertAlmostEqual(model.redis_us(2, shards=3), 3.0 * 5 / 3 + 4.0)

    def test_without_a_limit_there_is_none(self):
        self.assertIsNone(Model.of({Cell(1, 1, 0): figures(1.0)}))
        self.assertIsNone(Model.of({Cell(2, 1, 1): figures(1.0)}))

    def test_limits_lie_on_as_many_shards_as_chance_has_it(self):
        self.assertAlmostEqual(parts(3, 1), 1.0)
        self.assertAlmostEqual(parts(1, 7), 1.0)
        self.assertAlmostEqual(parts(2, 3), 5 / 3)
        self.assertAlmostEqual(parts(3, 10_000), 3.0, places=3)

    def test_its_arithmetic_is_shown_and_right(self):
        model = Model(Line(20.0, 5.0), Line(0.5, 1.5), bytes_there=125.0, bytes_back=25.0)
        shown = arithmetic(model, Wish(1e6, limits=2, subjects=1e8, bucket=150.0))
        gateways, shards, network, memory = shown
        self.assertIn("1,000,000/s x (20.00 us + 2 x 5.00 us) = 30.0 busy cores", gateways)
        self.assertIn("50 cores", gateways)
        self.assertIn("1,000,000/s x 2 x (0.50 us + 1.50 us) = 4.00 busy cores; at 60% each, 7 shards", shards)
        self.assertIn("2,000,000/s x 125 B = 2.00 Gbit/s to Redis", network)
        self.assertIn("2,000,000/s x 25 B = 0.40 Gbit/s back", network)
        self.assertIn("100,000,000 x 2 x 150 B = 30.0 GB, 4.3 GB a shard", memory)
