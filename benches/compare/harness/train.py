"""Trains an instrumented binary of Weir for `deploy/build.sh`: `python3 -m harness.train FOLDER`.

Each job of the comparison gets a fixed number of requests, never a time, so that a slow machine
trains as a quick one does. WEIR is the binary, WEIR_LOAD the load generator. Each process writes
its profile into the folder when it ends. `--rehearse` sends a few requests of each kind to a binary
that is not instrumented, and so finds out in seconds whether training would work.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

from .measure import Bench, checked, start
from .processes import Failed, Load
from .scenarios import Contestant, Job, Scenario

#: Requests of each scenario, unless it says otherwise.
REQUESTS = 20_000
#: In a rehearsal. The first request passes the limit that denies all others, and one in a thousand
#: may have another status than expected.
REHEARSED = 2_000
#: For all of a few requests, and for each of an instrumented binary, on a slow and busy machine.
PATIENCE_SECONDS = (30, 0.02)


def scenario(name, job, requests=REQUESTS, **options):
    load = {"warm-up": 0, **options.pop("load", {})}
    own = (Contestant("weir", "weir", job),)
    return Scenario(name, name, own, load=load, **options), requests


#: What operators run: the access log is on unless it is switched off, so it is on here wherever a
#: limit is.
TRAINING = (
    scenario("plain", Job()),
    scenario("bare", Job(limits=1)),
    scenario("one", Job(limits=1, log=True)),
    scenario("three", Job(limits=3, log=True)),
    scenario("few", Job(limits=1, log=True), connections=1),
    scenario("many", Job(limits=1, log=True), idle=400),
    scenario("denied", Job(limits=1, outcome="deny", log=True), expect=429),
    scenario(
        "denied-http2",
        Job(limits=1, outcome="deny", http2=True, log=True),
        expect=429,
        connections=4,
        load={"http2": 16},
    ),
    scenario("denied-tls", Job(limits=1, outcome="deny", tls=True, log=True), expect=429),
    scenario("blocked", Job(outcome="block", log=True), expect=403),
    scenario("fixed", Job(outcome="respond", log=True)),
    scenario("shadow", Job(limits=1, outcome="shadow", log=True)),
    scenario("post", Job(limits=1, log=True), path="/upload", load={"upload": 1_000}),
    scenario("http2", Job(limits=1, http2=True, log=True), connections=4, load={"http2": 16}),
    scenario(
        "http3",
        Job(limits=1, tls=True, http3=True, log=True),
        connections=4,
        load={"http3": 16},
    ),
    scenario(
        "http3-download",
        Job(tls=True, http3=True),
        200,
        path="/large",
        connections=4,
        load={"http3": 4},
    ),
    scenario("tls", Job(limits=1, tls=True, log=True)),
    scenario("handshakes", Job(limits=1, tls=True, log=True), 1_000, load={"reconnect": "full"}),
    scenario("redis", Job(limits=3, redis=True, log=True)),
    scenario("redis-denied", Job(limits=1, outcome="deny", redis=True, log=True), expect=429),
    scenario("download", Job(), 500, path="/large", connections=16),
    scenario("upload", Job(), 500, path="/upload", connections=16, load={"upload": 1 << 20}),
    scenario("redis-tls", Job(limits=3, redis=True, tls=True, log=True)),
)


def main():
    parser = argparse.ArgumentParser(prog="harness.train", description=__doc__)
    parser.add_argument("folder", type=os.path.abspath, help="for the profiles")
    parser.add_argument("--base-port", type=int, default=22_000, help="and the 20 after it")
    parser.add_argument("--rehearse", action="store_true", help="without profiles")
    parsed = parser.parse_args()
    shutil.rmtree(parsed.folder, ignore_errors=True)
    os.makedirs(parsed.folder)
    os.environ["LLVM_PROFILE_FILE"] = os.path.join(parsed.folder, "%p.profraw")
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    bench = Bench(
        SimpleNamespace(
            results=os.path.join(parsed.folder, "training"),
            cache="",
            load=os.environ["WEIR_LOAD"],
            peers=["weir"],
            proxy_core=cores[0],
            load_cores=",".join(cores[1:] or cores),
            base_port=parsed.base_port,
        )
    )
    has_redis = bool(shutil.which("redis-server"))
    if not has_redis:
        print("without Redis: no redis-server is installed", flush=True)
    has_http3 = speaks_http3(os.environ["WEIR"])
    if not has_http3:
        print("without HTTP/3: the binary has not the feature", flush=True)
    with bench:
        for own, requests in TRAINING:
            job = own.contestants[0].job
            if (has_redis or not job.redis) and (has_http3 or not job.http3):
                requests = min(requests, REHEARSED) if parsed.rehearse else requests
                print(f"training: {own.name}, {requests} requests", flush=True)
                train(bench, own, requests, None if parsed.rehearse else parsed.folder)


def speaks_http3(binary):
    said = subprocess.run([binary, "--version"], capture_output=True, check=True, text=True)
    return "http3" in said.stdout


def train(bench, own, requests, folder):
    """The folder gets a profile, if one is named."""
    with contextlib.ExitStack() as services:
        entrant = start(bench, own, own.contestants[0], 0, services)
        with Load(bench.load, bench.options.load_cores, entrant.place, own, own.idle) as load:
            few, each = PATIENCE_SECONDS
            checked(load.run(f"count {requests}", few + requests * each))
    if not folder:
        return
    # One that was killed, or crashed while it drained, has written none.
    written = os.path.join(folder, f"{entrant.service.process.pid}.profraw")
    if not os.path.exists(written):
        raise Failed(f"{own.name}: no profile was written:\n{entrant.service.last_words()}")


if __name__ == "__main__":
    try:
        main()
    except (Failed, OSError) as failure:
        sys.exit(f"training: {failure}")
