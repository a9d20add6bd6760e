"""What the trials stand on: servers, a gateway in front of them, and what they use."""

import argparse
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

LISTEN, ADMIN = 18930, 18931

NGINX = """
daemon off; master_process off; pid {folder}/nginx-{port}.pid; error_log {folder}/nginx-{port}.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    keepalive_requests 100000000;
    root {folder};
    location = / {{ default_type text/plain; return 200 "hello\\n"; }}
  }}
}}
"""


class Nginx:
    """A server of one process, which can be killed and stopped. It serves the files of a folder."""

    def __init__(self, folder, port):
        self.config = folder / f"nginx-{port}.conf"
        self.config.write_text(NGINX.format(folder=folder, port=port))
        self.start()

    def start(self):
        command = ["nginx", "-e", "stderr", "-c", str(self.config)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def slow_down(self, seconds):
        """Lets it work for a tenth of the time only."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.signal(signal.SIGSTOP)
            time.sleep(0.18)
            self.signal(signal.SIGCONT)
            time.sleep(0.02)


class Gateway:
    """Weir before the servers on these ports. Requests for `/large` go to the port `large`."""

    def __init__(self, folder, weir, ports, keys="", large=None):
        app = ", ".join(f'"http://127.0.0.1:{port}"' for port in ports)
        (folder / "gateway.yaml").write_text(f"""
listen: [{{address: "127.0.0.1:{LISTEN}"}}]
admin: {{address: "127.0.0.1:{ADMIN}"}}
workers: 2
log: {{access: false}}
upstreams:
  app: {{servers: [{app}]{keys}}}
  large: {{servers: ["http://127.0.0.1:{large or ports[0]}"]}}
routes:
  - {{name: large, match: {{path: /large}}, upstream: large}}
  - {{name: all, match: {{}}, upstream: app}}
limits: {{}}
""")
        log = open(folder / "weir.log", "w")
        self.process = subprocess.Popen([weir], cwd=folder, stdout=log, stderr=log)
        for _ in range(100):
            time.sleep(0.1)
            try:
                self.metrics()
                return
            except OSError:
                pass
        raise SystemExit((folder / "weir.log").read_text())

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/metrics") as page:
            return page.read().decode()

    def counts(self):
        """The requests by status, and the retries."""
        counts = {}
        for line in self.metrics().splitlines():
            if match := re.match(r'weir_requests_total\{.*status="(\w+)".*\} (\d+)', line):
                counts[match[1]] = counts.get(match[1], 0) + int(match[2])
            elif match := re.match(r"weir_upstream_retries_total\{.*\} (\d+)", line):
                counts["retries"] = counts.get("retries", 0) + int(match[1])
        return counts

    def metric(self, name):
        """The sum of a metric over its labels."""
        lines = self.metrics().splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if re.match(name + r"[ {]", line)]
        return sum(map(float, values))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self):
        """Resident memory, in KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def stop(self):
        self.process.terminate()
        self.process.wait()


def options(description, **arguments):
    """The arguments of a trial, with the path of Weir among them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--weir", default="target/release/weir", help="the binary")
    for name, settings in arguments.items():
        parser.add_argument("--" + name, **settings)
    parsed = parser.parse_args()
    parsed.weir = str(Path(parsed.weir).resolve())
    return parsed


@contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="weir-trial-") as path:
        # nginx may run as root, but its files must be readable for others.
        os.chmod(path, 0o755)
        yield Path(path)
