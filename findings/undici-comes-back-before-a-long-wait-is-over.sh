#!/usr/bin/env bash
# undici's RetryAgent obeys Retry-After up to 30 s, and comes back after 30 s if it is told to wait for
# longer.
#
# One would expect a client that obeys to wait, or to give up at once. So a limiter that takes whoever
# comes before his wait is over for an abuser takes this client for one, each 30 s of a longer wait.
#
# Seen with undici 7.30.2: Retry-After 2: a wait of 2 s; 40: a wait of 30 s.
exec "$(dirname "$0")/support/node.sh" undici@7.30.2 <<'JS'
import { Agent, RetryAgent, request } from "undici";
import { denying, expect } from "./denying.mjs";

for (const [told, least, most] of [[2, 1.9, 3], [40, 29.9, 32]]) {
  const server = await denying(1, { "retry-after": `${told}` });
  const { body } = await request(server.url, { dispatcher: new RetryAgent(new Agent()) });
  await body.dump();
  const [wait] = server.waits();
  server.close();
  expect(`Retry-After ${told}: a wait of ${wait.toFixed(1)} s`, wait >= least && wait < most);
}
process.exit(0);
JS
