#!/usr/bin/env bash
# superagent's retry repeats a request at once that got 413, and got and ky repeat it if there is a
# Retry-After; none of them repeats one that got 403.
#
# 413 seems to be the status that says "this is too large, send it no more". But RFC 9110, section
# 15.5.14, lets it have a Retry-After, so libraries count it among the statuses to retry.
#
# Seen with axios-retry 4.5.0 on axios 1.21.1, got 14.6.6, ky 1.14.3, openai 6.49.0 and superagent
# 10.4.2.
exec "$(dirname "$0")/support/node.sh" axios@1.21.1 axios-retry@4.5.0 got@14.6.6 ky@1.14.3 \
  openai@6.49.0 superagent@10.4.2 <<'JS'
import { createServer } from "node:http";
import axios from "axios";
import axiosRetry from "axios-retry";
import got from "got";
import ky from "ky";
import OpenAI from "openai";
import superagent from "superagent";
import { expect } from "./denying.mjs";

const clients = {
  "axios-retry": (url) => {
    const client = axios.create();
    axiosRetry(client, { retries: 3 });
    return client.get(url);
  },
  got: (url) => got(url),
  ky: (url) => ky.get(url).text(),
  openai: (url) => new OpenAI({ apiKey: "k", baseURL: url }).models.list(),
  superagent: (url) => superagent.get(url).retry(3),
};

// How many requests a client sends to a server that refuses all of them.
async function requests(client, status, fields) {
  let count = 0;
  const server = createServer((request, response) => {
    count += 1;
    response.writeHead(status, { "content-type": "application/json", ...fields }).end("{}");
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  await clients[client](`http://127.0.0.1:${server.address().port}`).catch(() => {});
  server.closeAllConnections();
  server.close();
  return count;
}

const seen = {
  "axios-retry": { 413: [1, 1] },
  got: { 413: [1, 3] },
  ky: { 413: [1, 3] },
  openai: { 413: [1, 1] },
  superagent: { 413: [4, 4] },
};
for (const client of Object.keys(clients)) {
  for (const status of [403, 413]) {
    const counts = [await requests(client, status, {})];
    counts.push(await requests(client, status, { "retry-after": "1" }));
    const expected = status === 403 ? [1, 1] : seen[client][413];
    const text = `${client}, ${status}: ${counts[0]} requests without Retry-After, ${counts[1]} with`;
    expect(text, String(counts) === String(expected));
  }
}
JS
