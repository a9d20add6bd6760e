// A server on loopback that denies the first requests with 429 and these header fields.
import { createServer } from "node:http";

export async function denying(denials, fields, answer = "{}") {
  const arrivals = [];
  const server = createServer((request, response) => {
    request.resume();
    arrivals.push(performance.now() / 1000);
    const denied = arrivals.length <= denials;
    const problem = '{"title":"Quota exceeded","status":429,"detail":"Too many requests."}';
    const media = denied ? "application/problem+json" : "application/json";
    response.writeHead(denied ? 429 : 200, { "content-type": media, ...(denied ? fields : {}) });
    response.end(denied ? problem : answer);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const waits = () => arrivals.slice(1).map((at, index) => at - arrivals[index]);
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, arrivals, waits, close };
}

// Prints what was seen, and fails if that is not what was seen before.
export function expect(what, holds) {
  console.log(what);
  if (!holds) {
    console.error("it was otherwise before");
    process.exit(1);
  }
}
