"""From rounds to tables: medians, ratios within each round, and the targets."""

import csv
import os
from dataclasses import dataclass
from statistics import median

from . import plot
from .measure import METRICS

CADDY, PLAIN = "caddy, no limit", "weir, no limit"

#: Figure, scenario, metric, whom Weir is measured against, and the most that the ratio may be;
#: or that the figure itself may be, where there is no other.
TARGETS = (
    ("CPU a request, one limit, against nginx", "memory-1", "cpu_us", "nginx", 0.85),
    ("CPU a request, one limit, against HAProxy", "memory-1", "cpu_us", "haproxy", 0.9),
    ("CPU a request, one limit, against Envoy", "memory-1", "cpu_us", "envoy", 0.22),
    ("CPU a request, one limit, against Caddy without", "memory-1", "cpu_us", CADDY, 0.13),
    ("CPU a request, three limits in Redis against none", "redis-3", "cpu_us", PLAIN, 1.2),
    ("CPU a request, one limit, logged, against nginx", "memory-1-log", "cpu_us", "nginx", 0.85),
    ("CPU a request, all denied, logged, against nginx", "denied-log", "cpu_us", "nginx", 0.75),
    ("CPU a request, all denied, against nginx", "denied", "cpu_us", "nginx", 0.75),
    ("CPU a request, all invented, against nginx", "shadow", "cpu_us", "nginx", 1.0),
    ("CPU a request, HTTP/2, against nginx", "http2", "cpu_us", "nginx", 0.7),
    ("CPU a request, HTTP/2, against HAProxy", "http2", "cpu_us", "haproxy", 1.1),
    ("CPU a request, HTTP/3, against Caddy", "http3", "cpu_us", "caddy", 0.6),
    ("CPU a request, TLS, one limit, against nginx", "tls", "cpu_us", "nginx", 0.95),
    ("p99 at half of the peak, one limit, against nginx", "memory-1", "p99_us", "nginx", 1.1),
    ("Peak memory with 10,000 connections, MiB", "idle-10k", "peak_mib", None, 30.0),
)

COLUMNS = (
    ("CPU µs", "cpu_us", 1),
    ("all CPU µs", "machine_us", 1),
    ("requests/s", "rps", 0),
    ("busy %", "busy", 0),
    ("Redis CPU µs", "redis_us", 1),
    ("CPU µs at the rate", "open_cpu_us", 1),
    ("busy %", "open_busy", 0),
    ("p50 µs", "p50_us", 0),
    ("p99 µs", "p99_us", 0),
    ("p99.9 µs", "p999_us", 0),
    ("peak MiB", "peak_mib", 1),
)

CHARTS = (
    ("cpu", "CPU of the proxy per request", "cpu_us", "µs", 1),
    ("rps", "Requests a second, closed loop", "rps", "requests/s", 0),
    ("p99", "p99 at a fixed rate, open loop", "p99_us", "µs", 0),
    ("memory", "Peak resident memory", "peak_mib", "MiB", 1),
)


@dataclass(frozen=True)
class Spread:
    """The median of the rounds, and the least and the greatest of them."""

    middle: float
    least: float
    most: float

    def text(self, digits):
        return f"{self.middle:,.{digits}f} ({self.least:,.{digits}f}–{self.most:,.{digits}f})"


def spread(values):
    values = [value for value in values if value is not None]
    return Spread(median(values), min(values), max(values)) if values else None


def by_round(rows, scenario, proxy, metric):
    return {
        row["round"]: row[metric]
        for row in rows
        if row["scenario"] == scenario and row["proxy"] == proxy and row[metric] is not None
    }


def values(rows, scenario, proxy, metric):
    return spread(by_round(rows, scenario, proxy, metric).values())


def ratio(rows, scenario, proxy, other, metric):
    """Of two proxies within each round, so that what slows the machine slows both."""
    upper = by_round(rows, scenario, proxy, metric)
    lower = by_round(rows, scenario, other, metric)
    return spread(upper[n] / lower[n] for n in upper.keys() & lower.keys() if lower[n])


def write(rows, scenarios, results, measured, remarks):
    write_csv(os.path.join(results, "rounds.csv"), rows)
    write_csv(os.path.join(results, "summary.csv"), list(summary(rows, scenarios)))
    text = report(rows, scenarios, measured, remarks)
    with open(os.path.join(results, "table.md"), "w") as file:
        file.write(text)
    for name, title, metric, unit, digits in CHARTS:
        groups = [
            (
                scenario.title,
                [
                    (contestant.label, values(rows, scenario.name, contestant.label, metric))
                    for contestant in scenario.contestants
                ],
            )
            for scenario in scenarios
        ]
        with open(os.path.join(results, f"{name}.svg"), "w") as file:
            file.write(plot.bars(title, unit, groups, digits))
    return text


def write_csv(path, rows):
    if not rows:
        return
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def summary(rows, scenarios):
    for scenario in scenarios:
        for contestant in scenario.contestants:
            for metric in METRICS:
                label = contestant.label
                own = values(rows, scenario.name, label, metric)
                if own:
                    row = {"scenario": scenario.name, "proxy": label, "metric": metric}
                    row |= columns("", own)
                    for other in ("weir", "nginx"):
                        to = ratio(rows, scenario.name, label, other, metric)
                        row |= columns(f"_to_{other}", to)
                    yield row


def columns(suffix, own):
    names = ("median", "min", "max")
    figures = (own.middle, own.least, own.most) if own else ("", "", "")
    return {
        f"{name}{suffix}": f"{figure:.4g}" if own else ""
        for name, figure in zip(names, figures)
    }


def report(rows, scenarios, measured, remarks):
    parts = [f"{measured}\n", target_table(rows)]
    parts += [scenario_table(rows, scenario) for scenario in scenarios]
    if remarks:
        parts.append("\n".join(["Remarks:", "", *(f"- {remark}" for remark in remarks)]) + "\n")
    return "\n".join(part for part in parts if part)


def target_table(rows):
    lines = []
    for title, scenario, metric, peer, most in TARGETS:
        if peer:
            found = ratio(rows, scenario, "weir", peer, metric)
        else:
            found = values(rows, scenario, "weir", metric)
        if found:
            verdict = "met" if found.middle <= most else f"missed by {found.middle / most - 1:.0%}"
            lines.append([title, f"{most:.2f}", found.text(2), verdict])
    if not lines:
        return ""
    return table(["Weir's figure", "at most", "median (min–max)", ""], lines)


def scenario_table(rows, scenario):
    own = [row for row in rows if row["scenario"] == scenario.name]
    if not own:
        return ""
    shown = [column for column in COLUMNS if any(row.get(column[1]) is not None for row in own)]
    last = ("p99", "p99_us") if scenario.open_loop else ("requests/s", "rps")
    ratios = [
        ("CPU: Weir to it", "weir", None, "cpu_us"),
        ("CPU: it to nginx", None, "nginx", "cpu_us"),
    ]
    if any(row.get("open_cpu_us") is not None for row in own):
        ratios.append(("at the rate: Weir to it", "weir", None, "open_cpu_us"))
    ratios.append((f"{last[0]}: Weir to it", "weir", None, last[1]))
    lines = []
    for label in (contestant.label for contestant in scenario.contestants):
        if not any(row["proxy"] == label for row in own):
            continue
        cells = [label]
        for _, proxy, other, metric in ratios:
            cells.append(text(ratio(own, scenario.name, proxy or label, other or label, metric), 2))
        for _, metric, digits in shown:
            cell = values(own, scenario.name, label, metric)
            cells.append(f"{cell.middle:,.{digits}f}" if cell else "-")
        lines.append(cells)
    rate = own[0]["rate"]
    rate = f"open loop at {rate:,.0f} requests/s" if rate else "closed loop alone"
    head = f"### {scenario.title}\n\n`{scenario.name}`; {rate}\n\n"
    titles = [title for title, *_ in (*ratios, *shown)]
    return head + table(["", *titles], lines)


def text(own, digits):
    return own.text(digits) if own else "-"


def table(head, lines):
    widths = [max(len(line[n]) for line in [head, *lines]) for n in range(len(head))]

    def row(cells):
        padded = [
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(cells, widths))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if not n else "-" * (width - 1) + ":" for n, width in enumerate(widths)]
    return "\n".join([row(head), row(rule), *(row(line) for line in lines)]) + "\n"
