"""What several tests need: rows of figures, places, and programs that stand in for real ones."""

import os
import stat
import sys

from harness.measure import METRICS
from harness.peers import Place


def row(scenario, number, proxy, rate=100.0, **figures):
    return {
        "scenario": scenario,
        "round": number,
        "proxy": proxy,
        "rate": rate,
        **dict.fromkeys(METRICS),
        **figures,
    }


def place(folder, certificate=None, workers=1, port=21_010):
    return Place(str(folder), port, 21_000, 21_001, str(folder), certificate, workers)


def program(path, text):
    """A Python program that can be run by its path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(f"#!{sys.executable}\n{text}")
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path
