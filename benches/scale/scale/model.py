"""What it takes to decide so many requests a second, by the CPU time that a decision was measured
to cost; and how well the model foretells cells that it was not made of."""

import math
from dataclasses import dataclass

#: The part of a core that is used when all is well: the rest is for bursts, and for the load of a
#: gateway or shard that fails.
UTILISATION = 0.6
#: Bytes of Ethernet, IP and TCP headers for each packet, without jumbo frames.
PACKET, HEADERS = 1448, 78


@dataclass(frozen=True)
class Line:
    """`fixed` microseconds of a gateway for a request, and `each` more for a limit."""

    fixed: float
    each: float

    def at(self, limits):
        return self.fixed + self.each * limits


def line(points):
    """The least squares through (limits, microseconds); through one point, without a slope."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    each = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return Line(mean_y - each * mean_x, each)


def parts(limits, shards):
    """On how many shards the limits of a request lie, in the mean."""
    return shards * (1 - (1 - 1 / shards) ** limits)


@dataclass(frozen=True)
class Model:
    gateway: Line
    #: `fixed` for each part of a request that a shard gets, `each` for a limit.
    redis: Line
    bytes_there: float
    bytes_back: float

    @classmethod
    def of(cls, cells):
        """Made of the cells with one gateway and one shard."""
        one = {c: f for c, f in cells.items() if (c.gateways, c.shards) == (1, 1)}
        asking = [figures for cell, figures in one.items() if cell.limits]
        if not asking:
            return None
        # A request without a limit asks no store, which is a step and no part of the line.
        limited = [(cell.limits, figures.gateway_us) for cell, figures in one.items() if cell.limits]
        spent = [(cell.limits, figures.redis_us * cell.limits) for cell, figures in one.items()]
        of_redis = line([point for point in spent if point[0]])
        mean = lambda name: sum(getattr(figures, name) for figures in asking) / len(asking)
        return cls(line(limited), of_redis, mean("bytes_there"), mean("bytes_back"))

    def redis_us(self, limits, shards):
        """Of all shards, for a request."""
        return self.redis.fixed * parts(limits, shards) + self.redis.each * limits

    def deviation(self, cell, figures):
        """By how many per cent gateways and shards have spent more than was foretold."""
        gateway = self.gateway.at(cell.limits)
        redis = self.redis_us(cell.limits, cell.shards)
        of_redis = figures.redis_us * cell.limits / redis
        return 100 * (figures.gateway_us / gateway - 1), 100 * (of_redis - 1)


@dataclass(frozen=True)
class Wish:
    requests: float
    limits: int
    subjects: float
    #: Bytes a bucket.
    bucket: float


def arithmetic(model, wish):
    """Line by line, as it is shown."""
    gateway_us = model.gateway.at(wish.limits)
    cores = wish.requests * gateway_us / 1e6
    decisions = wish.requests * wish.limits
    # With many shards hardly two limits of a request lie on the same.
    redis_us = model.redis.fixed * wish.limits + model.redis.each * wish.limits
    busy = wish.requests * redis_us / 1e6
    shards = math.ceil(busy / UTILISATION)
    there = decisions * model.bytes_there * 8 / 1e9
    back = decisions * model.bytes_back * 8 / 1e9
    framed = (PACKET + HEADERS) / PACKET
    memory = wish.subjects * wish.limits * wish.bucket / 1e9
    return [
        f"gateways: {wish.requests:,.0f}/s x ({model.gateway.fixed:.2f} us + {wish.limits} x "
        f"{model.gateway.each:.2f} us) = {cores:.1f} busy cores; at {UTILISATION:.0%} each, "
        f"{math.ceil(cores / UTILISATION)} cores",
        f"shards: {wish.requests:,.0f}/s x {wish.limits} x ({model.redis.fixed:.2f} us + "
        f"{model.redis.each:.2f} us) = {busy:.2f} busy cores; at {UTILISATION:.0%} each, {shards} shards",
        f"network: {decisions:,.0f}/s x {model.bytes_there:.0f} B = {there:.2f} Gbit/s to Redis, "
        f"{decisions:,.0f}/s x {model.bytes_back:.0f} B = {back:.2f} Gbit/s back; with headers of "
        f"full packets {framed * (there + back):.2f} Gbit/s, {framed * (there + back) / shards:.2f} "
        "a shard",
        f"memory: {wish.subjects:,.0f} x {wish.limits} x {wish.bucket:.0f} B = {memory:.1f} GB, "
        f"{memory / shards:.1f} GB a shard, and as much again for replicas",
    ]
