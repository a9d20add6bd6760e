#!/usr/bin/env node
// Denies each client of this folder by a server on loopback, in several ways, and prints the table of
// docs/CLIENTS.md: `node tests/clients/survey.mjs [NAME...]`. It takes some ten minutes.

import { spawn, execFileSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createHttp2Server } from "node:http2";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const FOLDER = dirname(fileURLToPath(import.meta.url));
const INSTALLED = join(process.env.CARGO_TARGET_DIR ?? join(FOLDER, "../../target"), "clients");
const AT_ONCE = 8;

// For how many seconds some clients are watched, whatever the case.
const WATCH = { npm: 80 };

const KINDS = {
  "Command line": {
    curl: "curl `--fail`",
    "curl-retry": "curl `--fail --retry 3`",
    wget: "wget",
    "wget-retry": "wget `--retry-on-http-error=429,503`",
    git: "git `ls-remote`",
    pip: "pip",
    uv: "uv",
    npm: "npm",
    cargo: "cargo",
  },
  "Libraries of HTTP": {
    "py-requests": "requests (Python)",
    "py-httpx": "httpx (Python)",
    "py-urllib3_default": "urllib3 (Python)",
    "py-urllib3": "urllib3, `status_forcelist=[429]`",
    "js-fetch": "fetch (Node.js)",
    "js-axios": "axios (Node.js)",
    "js-axios-retry": "axios-retry, `exponentialDelay`, 429",
    "js-got": "got (Node.js)",
    "js-ky": "ky (Node.js)",
    "js-undici": "undici `RetryAgent` (Node.js)",
    "js-superagent": "superagent `.retry(3)` (Node.js)",
  },
  SDKs: {
    "py-openai": "openai (Python)",
    "js-openai": "openai (Node.js)",
    "py-anthropic": "anthropic (Python)",
    "js-anthropic": "@anthropic-ai/sdk (Node.js)",
    "py-stripe": "stripe, 2 retries (Python)",
    "js-stripe": "stripe, 2 retries (Node.js)",
    "py-boto3": "boto3, S3 (Python)",
    "js-aws-sdk": "AWS SDK, S3 (Node.js)",
    "py-huggingface_hub": "huggingface_hub (Python)",
    "js-octokit": "octokit with throttling (Node.js)",
  },
  Browsers: {
    "chromium-fetch": "Chromium, `fetch`",
    "chromium-events": "Chromium, `EventSource`",
  },
  "Machines that deliver data": {
    prometheus: "Prometheus remote write",
    "prometheus-429": "Prometheus, `retry_on_http_429: true`",
    "py-otlp": "OTLP over HTTP (Python)",
  },
  Proxies: {
    nginx: "nginx `proxy_pass`",
    caddy: "Caddy `reverse_proxy`",
    haproxy: "HAProxy `retry-on all-retryable-errors`",
    envoy: "Envoy `retry_on: 5xx`",
    "envoy-429": "Envoy, `retriable_status_codes: [429]`",
    "envoy-back-off": "the same with `rate_limited_retry_back_off`",
  },
  gRPC: {
    "js-grpc-js": "grpc-js (Node.js)",
    "js-grpc-js-retry": "grpc-js, policy for `RESOURCE_EXHAUSTED`",
  },
};

// The packages whose names are not those of the clients.
const PACKAGES = {
  "py-urllib3_default": "urllib3",
  "py-otlp": "opentelemetry-exporter-otlp-proto-http",
  "js-anthropic": "@anthropic-ai/sdk",
  "js-aws-sdk": "@aws-sdk/client-s3",
  "js-octokit": "@octokit/plugin-throttling",
  "js-grpc-js": "@grpc/grpc-js",
  "js-grpc-js-retry": "@grpc/grpc-js",
};

const PROBLEM = JSON.stringify({
  type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
  title: "Quota exceeded",
  status: 429,
  detail: "Too many requests; try again after the time in Retry-After.",
});

const inSeconds = (seconds) => new Date(Date.now() + 1000 * seconds).toUTCString();
const epoch = (seconds) => `${Math.floor(Date.now() / 1000) + seconds}`;

// How a server denies: the status, the fields, and for how many seconds a client is watched. Three
// requests are denied, unless it says that all are.
const CASES = {
  seconds: { fields: () => ({ "retry-after": "2" }) },
  date: { fields: () => ({ "retry-after": inSeconds(3) }) },
  hour: { fields: () => ({ "retry-after": "3600" }), watch: 40 },
  absent: { fields: () => ({}) },
  zero: { fields: () => ({ "retry-after": "0" }) },
  post: { method: "POST", fields: () => ({ "retry-after": "2" }) },
  drop: { drops: true, fields: () => ({}) },
  unavailable: { status: 503, fields: () => ({ "retry-after": "2" }) },
  milliseconds: { fields: () => ({ "retry-after": "1", "retry-after-ms": "2500" }) },
  ratelimit: { fields: () => ({ "retry-after": "1", ratelimit: '"requests";r=0;t=4' }) },
  epoch: {
    fields: () => ({
      "retry-after": "1", "x-ratelimit-remaining": "0", "x-ratelimit-reset": epoch(5),
    }),
  },
  always: { fields: () => ({ "retry-after": "1" }), denials: Infinity },
};

const PAGES = {
  "/page-fetch": "<p></p><script>fetch('/').then(r => document.body.append('status ' + r.status))</script>",
  "/page-events": "<p></p><script>const source = new EventSource('/stream'); " +
    "source.onerror = () => document.body.append('state ' + source.readyState)</script>",
};

const ANSWERS = [
  [/^\/simple\//, "text/html", '<!DOCTYPE html><a href="a_package-1-py3-none-any.whl">a package</a>'],
  [/^\/index\/config/, "application/json", '{"dl":"http://127.0.0.1/dl"}'],
  [/^\/stream/, "text/event-stream", "data: 1\n\n"],
  [/^/, "application/json", '{"object":"list","data":[],"has_more":false}'],
];

// The seconds that a denial asks to wait for; not a number if it asks for none.
function asked(fields) {
  const after = fields?.["retry-after"];
  return after?.includes("GMT") ? (Date.parse(after) - Date.now()) / 1000 : Number(after);
}

// A server that denies; `arrivals` has the time of each request and the seconds that it was told.
async function denying({ status = 429, drops = false, fields, denials = 3 }, isGrpc) {
  const arrivals = [];
  const told = (body) => {
    const denied = arrivals.length < denials ? fields() : undefined;
    arrivals.push({ at: performance.now() / 1000, wait: asked(denied), body });
    return denied;
  };
  const server = isGrpc
    ? createHttp2Server().on("stream", (stream) => answerCall(stream, status, drops, told()))
    : createServer((request, response) => answer(request, response, status, drops, told));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { server, arrivals, url: `http://127.0.0.1:${server.address().port}` };
}

async function answer(request, response, status, drops, told) {
  const body = Buffer.concat(await request.toArray()).toString("base64");
  const page = PAGES[request.url];
  if (page || request.url === "/favicon.ico") {
    response.writeHead(200, { "content-type": "text/html" }).end(page);
    return;
  }
  const denied = told(body);
  if (denied && drops) {
    request.socket.destroy();
    return;
  }
  if (denied) {
    response.writeHead(status, { "content-type": "application/problem+json", ...denied });
    response.end(PROBLEM);
    return;
  }
  const [, media, text] = ANSWERS.find(([path]) => path.test(request.url));
  response.writeHead(200, { "content-type": media, etag: '"1"', "x-repo-commit": "0".repeat(40) });
  response.end(text);
}

// As Weir answers a call: the status is in the fields of the only frame.
function answerCall(stream, status, drops, denied) {
  if (denied && drops) {
    stream.session.destroy();
    return;
  }
  const head = { ":status": 200, "content-type": "application/grpc" };
  if (denied) {
    const wait = asked(denied);
    const pushback = Number.isNaN(wait) ? {} : { "grpc-retry-pushback-ms": `${Math.ceil(1000 * wait)}` };
    const code = status === 429 ? "8" : "14";
    const fields = { ...denied, ...pushback, "grpc-status": code, "grpc-message": "too many requests" };
    stream.respond({ ...head, ...fields }, { endStream: true });
    return;
  }
  stream.respond(head, { waitForTrailers: true });
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
  stream.end(Buffer.alloc(5));
}

// Runs a client until it ends, or as long as it is watched.
async function run(name, how) {
  const { server, arrivals, url } = await denying(how, name.startsWith("js-grpc"));
  const client = spawn("bash", [join(FOLDER, "client.sh"), name, url], {
    detached: true, env: { ...process.env, METHOD: how.method ?? "GET" }, stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [client.stdout, client.stderr]) stream.on("data", (text) => (output += text));
  const watch = WATCH[name] ?? how.watch ?? 25;
  const watched = setTimeout(() => process.kill(-client.pid, "SIGKILL"), 1000 * watch);
  const [code] = await once(client, "close");
  clearTimeout(watched);
  server.closeAllConnections?.();
  server.close();
  // What comes after the request that passes, or with another body, is no repetition.
  const same = arrivals.filter(({ body }) => body === arrivals[0].body);
  const kept = same.slice(0, how.denials === Infinity ? undefined : 4);
  const waits = kept.slice(1).map(({ at }, index) => at - kept[index].at);
  const silent = performance.now() / 1000 - arrivals.at(-1).at;
  return { waits, told: kept.map(({ wait }) => wait), sleeps: code === null && silent > 12, code, output };
}

const tenths = (seconds) => String(Math.round(10 * seconds) / 10);

// What a client did, in a word or by the seconds between its requests.
function did({ waits, told, sleeps }) {
  if (waits.length === 0) return sleeps ? "sleeps" : "no";
  const over = waits.map((wait, index) => wait - told[index]);
  if (told[0] > 0 && over.every((more) => more > -0.1 && more < 1.05)) return "waits";
  const then = sleeps ? ", then sleeps" : "";
  const whole = waits.reduce((sum, wait) => sum + wait, 0);
  if (whole < 0.5 && !sleeps) return `${waits.length + 1}x in ${Math.ceil(1000 * whole)} ms`;
  return waits.map(tenths).join(", ") + then;
}

// Which fields beside Retry-After decided about a wait.
function reads({ milliseconds, ratelimit, epoch }) {
  const within = ({ waits }, least, most) => {
    const long = waits.filter((wait) => wait > 0.5);
    return long.length > 0 && long.every((wait) => wait > least && wait < most);
  };
  const read = [];
  if (within(milliseconds, 2.4, 2.9)) read.push("`retry-after-ms`");
  if (within(ratelimit, 3.9, 5.9)) read.push("`RateLimit`");
  if (within(epoch, 3.9, 6.9)) read.push("`X-RateLimit-Reset`");
  return read.join(", ");
}

// What its user sees of a denial in the end.
function shows(name, { output, code }) {
  const isCommand = name in KINDS["Command line"];
  if (code === 0 && /^(js|py)-/.test(name)) return "takes the document for an answer";
  const seen = /try again after the time/.test(output) ? "the detail"
    : /Quota exceeded/.test(output) ? "the title"
    : /status 429/.test(output) ? "no error: a response with its status"
    : /state 2/.test(output) ? "an event `error`; closed for good"
    : /\b429\b|too many requests/i.test(output) ? "the status" : "nothing of it";
  return isCommand && code !== null ? `${seen}; exit ${code}` : seen;
}

function version(name) {
  const of = PACKAGES[name] ?? name.slice(3);
  if (name.startsWith("js-") && name !== "js-fetch") {
    return JSON.parse(readFileSync(join(INSTALLED, "node_modules", of, "package.json"))).version;
  }
  const bin = join(INSTALLED, "python/bin");
  const python = `${bin}/python -c 'from importlib.metadata import version as v; print(v("${of}"))'`;
  const command = name.startsWith("py-") ? python
    : name === "js-fetch" ? "node --version"
    : /^(pip|uv)$/.test(name) ? `${bin}/${name} --version`
    : `${name.split("-")[0]} ${/nginx|haproxy/.test(name) ? "-v" : "--version"}`;
  const PATH = [process.env.PATH, "/usr/sbin", join(INSTALLED, "../tools/bin")].join(":");
  const options = { encoding: "utf8", env: { ...process.env, PATH } };
  return execFileSync("bash", ["-c", `${command} 2>&1`], options).match(/\d+(\.\d+)+/)[0];
}

function row(name, title, seen) {
  const { seconds, date, hour, absent, zero, unavailable, post, drop, always } = seen;
  const cells = [seconds, date, hour, absent, zero, unavailable, post, drop].map((run) => (run ? did(run) : ""));
  return `| ${[title, version(name), ...cells, reads(seen), shows(name, always)].join(" | ")} |`;
}

const chosen = process.argv.slice(2);
const names = Object.values(KINDS).flatMap(Object.keys)
  .filter((name) => chosen.length === 0 || chosen.includes(name));
const seen = Object.fromEntries(names.map((name) => [name, {}]));
const takesMethods = (name) => name in KINDS["Libraries of HTTP"] || name.startsWith("curl");
const casesOf = (name) => Object.keys(CASES).filter((case_) => case_ !== "post" || takesMethods(name));
const waiting = names.flatMap((name) => casesOf(name).map((case_) => [name, case_]));
const work = async () => {
  for (let item; (item = waiting.shift()); ) {
    const [name, case_] = item;
    seen[name][case_] = await run(name, CASES[case_]);
    console.error(`${name}, ${case_}: ${did(seen[name][case_])}`);
  }
};
await Promise.all(Array.from({ length: AT_ONCE }, work));

for (const [kind, clients] of Object.entries(KINDS)) {
  const found = Object.entries(clients).filter(([name]) => name in seen);
  if (found.length === 0) continue;
  console.log(`\n### ${kind}\n`);
  console.log("| client | version | 2 | date | 3600 | absent | 0 | 503, 2 | POST, 2 | dropped | reads | shows |");
  console.log("|---|---|---|---|---|---|---|---|---|---|---|---|");
  for (const [name, title] of found) console.log(row(name, title, seen[name]));
}
