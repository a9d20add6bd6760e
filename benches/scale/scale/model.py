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


@dataclass(frozen=True)
class Model:
    gateway: Line
    #: Microseconds of Redis for a decision.
    redis: float
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
        mean = lambda name: sum(getattr(figures, name) for figures in asking) / len(asking)
        return cls(line(limited), mean("redis_us"), mean("bytes_there"), mean("bytes_back"))

    def deviation(self, cell, figures):
        """By how many per cent gateways and shards have spent more than was foretold."""
        gateway = self.gateway.at(cell.limits)
        of_redis = 100 * (figures.redis_us / self.redis - 1) if cell.limits else 0.0
        return 100 * (figures.gateway_us / gateway - 1), of_redis


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
    busy = decisions * model.redis / 1e6
    shards = math.ceil(busy / UTILISATION)
    there = decisions * model.bytes_there * 8 / 1e9
    back = decisions * model.bytes_back * 8 / 1e9
    framed = (PACKET + HEADERS) / PACKET
    memory = wish.subjects * wish.limits * wish.bucket / 1e9
    return [
        f"gateways: {wish.requests:,.0f}/s x ({model.gateway.fixed:.2f} us + {wish.limits} x "
        f"{model.gateway.each:.2f} us) = {cores:.1f} busy cores; at {UTILISATION:.0%} each, "
        f"{math.ceil(cores / UTILISATION)} cores",
        f"shards: {wish.requests:,.0f}/s x {wish.limits} x {model.redis:.2f} us = {busy:.2f} busy "
        f"cores; at {UTILISATION:.0%} each, {shards} shards",
        f"network: {decisions:,.0f}/s x {model.bytes_there:.0f} B = {there:.2f} Gbit/s to Redis, "
        f"{decisions:,.0f}/s x {model.bytes_back:.0f} B = {back:.2f} Gbit/s back; with headers of "
        f"full packets {framed * (there + back):.2f} Gbit/s, {framed * (there + back) / shards:.2f} "
        "a shard",
        f"memory: {wish.subjects:,.0f} x {wish.limits} x {wish.bucket:.0f} B = {memory:.1f} GB, "
        f"{memory / shards:.1f} GB a shard, and as much again for replicas",
    ]
