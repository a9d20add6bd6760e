"""A server on loopback that denies the first requests with 429 and these header fields."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROBLEM = (
    b'{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",'
    b'"title":"Quota exceeded","status":429,"detail":"Too many requests; see Retry-After."}'
)


class Server:
    def __init__(self, denials, fields, body=PROBLEM, answer=b"{}"):
        arrivals = self.arrivals = []

        class Handler(BaseHTTPRequestHandler):
            def respond(self):
                length = int(self.headers.get("content-length", 0))
                self.rfile.read(length)
                arrivals.append(time.monotonic())
                denied = len(arrivals) <= denials
                text = body if denied else answer
                self.send_response(429 if denied else 200)
                for name, value in fields.items() if denied else ():
                    self.send_header(name, value)
                if "content-type" not in fields or not denied:
                    media = "application/problem+json" if denied else "application/json"
                    self.send_header("content-type", media)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text if self.command != "HEAD" else b"")

            do_GET = do_POST = do_HEAD = do_PUT = respond

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def waits(self):
        """The seconds between one request and the next, rounded to tenths."""
        return [round(b - a, 1) for a, b in zip(self.arrivals, self.arrivals[1:])]


def expect(what, holds):
    """Prints what was seen, and fails if that is not what was seen before."""
    print(what)
    if not holds:
        sys.exit("it was otherwise before")
