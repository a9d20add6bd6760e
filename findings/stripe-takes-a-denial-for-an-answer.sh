#!/usr/bin/env bash
# stripe for Node.js takes a 429 with a JSON document for the answer, if the document has no member
# `error`: the call succeeds, with the document as its value.
#
# One would expect an exception for each status of 400 and above. So a denial by a problem document
# reaches a program as a customer, or as a list, without fields; with a member `error` it is an
# exception, and so is a body that is no JSON. stripe retries neither, whatever Retry-After says.
#
# Seen with stripe 23.1.0: a problem document: a value whose `title` is "Quota exceeded"; with
# `"error":{"message":"too many"}`: StripeRateLimitError, "too many"; text: StripeAPIError.
exec "$(dirname "$0")/support/node.sh" stripe@23.1.0 <<'JS'
import { createServer } from "node:http";
import Stripe from "stripe";
import { expect } from "./denying.mjs";

async function listed(body) {
  let arrivals = 0;
  const server = createServer((_, response) => {
    arrivals += 1;
    response.writeHead(429, { "content-type": "application/problem+json", "retry-after": "1" });
    response.end(body);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const options = { protocol: "http", host: "127.0.0.1", port: server.address().port };
  const stripe = new Stripe("sk_test_none", { ...options, maxNetworkRetries: 2, telemetry: false });
  const answer = await stripe.customers.list().then(
    (value) => `a value with the title "${value.title}"`,
    (error) => `${error.type}: ${error.message}`,
  );
  server.closeAllConnections();
  server.close();
  return `${answer}, ${arrivals} request`;
}

const problem = { title: "Quota exceeded", status: 429 };
const failing = { ...problem, error: { message: "too many" } };
for (const [what, body, seen] of [
  ["a problem document", JSON.stringify(problem), /^a value with the title "Quota exceeded", 1 /],
  ["with an error", JSON.stringify(failing), /^StripeRateLimitError: too many, 1 /],
  ["text", "too many", /^StripeAPIError: .*, 1 /],
]) {
  const answer = await listed(body);
  expect(`${what}: ${answer}`, seen.test(answer));
}
process.exit(0);
JS
