#!/usr/bin/env bash
# octokit's throttling plugin acts on a 429 only if X-RateLimit-Remaining is 0, and then waits until
# X-RateLimit-Reset as a Unix time, whatever Retry-After says.
#
# A server that writes the reset in seconds from now, as Envoy and Kong do, is asked again at once,
# as often as the caller's callback allows; one without these fields is never asked again.
#
# Seen with @octokit/plugin-throttling 11.0.5 and @octokit/core 7.0.8: Retry-After 2 alone: one
# request; with Remaining 0 and Reset 2: three requests within 0.1 s; with Remaining 0 and a Reset
# of 3 s from now as a Unix time, and Retry-After 9: a wait of 3 to 5 s.
exec "$(dirname "$0")/support/node.sh" @octokit/core@7.0.8 @octokit/plugin-throttling@11.0.5 <<'JS'
import { Octokit } from "@octokit/core";
import { throttling } from "@octokit/plugin-throttling";
import { denying, expect } from "./denying.mjs";

const Throttled = Octokit.plugin(throttling);
const silent = () => {};

async function asked(denials, fields) {
  const server = await denying(denials, fields);
  const octokit = new Throttled({
    baseUrl: server.url,
    log: { debug: silent, info: silent, warn: silent, error: silent },
    throttle: { onRateLimit: () => true, onSecondaryRateLimit: () => true },
  });
  await octokit.request("GET /").catch(silent);
  server.close();
  return server;
}

const alone = await asked(2, { "retry-after": "2" });
expect(`Retry-After alone: ${alone.arrivals.length} request`, alone.arrivals.length === 1);

const none = { "retry-after": "9", "x-ratelimit-remaining": "0" };
const seconds = await asked(2, { ...none, "x-ratelimit-reset": "2" });
const short = Math.max(...seconds.waits());
expect(`seconds: three requests, waits of at most ${short.toFixed(3)} s`,
  seconds.arrivals.length === 3 && short < 0.5);

const reset = Math.floor(Date.now() / 1000) + 3;
const [waited] = (await asked(1, { ...none, "x-ratelimit-reset": `${reset}` })).waits();
expect(`epoch: a wait of ${waited.toFixed(1)} s`, waited > 1.9 && waited < 5.5);
JS
