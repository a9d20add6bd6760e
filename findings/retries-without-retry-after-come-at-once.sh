#!/usr/bin/env bash
# axios-retry asks again three times within milliseconds where a 429 has no Retry-After, and
# superagent's retry does so whatever the field says.
#
# axios-retry is known for its back-off, but without `retryDelay` there is none; it heeds Retry-After.
# So a denial without the field, for want of a wait that would help, brings four requests for one.
#
# Seen with axios-retry 4.5.0 on axios 1.21.1, and superagent 10.4.2.
exec "$(dirname "$0")/support/node.sh" axios@1.21.1 axios-retry@4.5.0 superagent@10.4.2 <<'JS'
import axios from "axios";
import axiosRetry from "axios-retry";
import superagent from "superagent";
import { denying, expect } from "./denying.mjs";

const clients = {
  async axios(url) {
    const client = axios.create();
    axiosRetry(client, { retries: 3 });
    return client.get(url);
  },
  superagent: (url) => superagent.get(url).retry(3),
};

async function waits(client, fields) {
  const server = await denying(9, fields);
  await clients[client](server.url).catch(() => {});
  server.close();
  return server.waits();
}

for (const [client, fields, least, most] of [
  ["axios", {}, 0, 0.5],
  ["axios", { "retry-after": "1" }, 1, 1.5],
  ["superagent", {}, 0, 0.5],
  ["superagent", { "retry-after": "1" }, 0, 0.5],
]) {
  const seen = await waits(client, fields);
  const text = seen.map((wait) => wait.toFixed(3)).join(", ");
  const holds = seen.length === 3 && seen.every((wait) => wait >= least && wait < most);
  expect(`${client}, ${JSON.stringify(fields)}: waits of ${text} s`, holds);
}
JS
