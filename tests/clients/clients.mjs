// clients.mjs NAME URL COUNT: sends so many requests by this client of Node.js, one after the other.
// Libraries of HTTP use the method in METHOD, or GET. SDKs try again as often as RETRIES says, or twice.

const method = process.env.METHOD ?? "GET";
const maxRetries = Number(process.env.RETRIES ?? 2);

const clients = {
  async fetch(url) {
    return async () => {
      const response = await fetch(url, { method });
      if (!response.ok) throw new Error(`status ${response.status}`);
    };
  },

  async axios(url) {
    const { default: axios } = await import("axios");
    return () => axios.request({ url, method });
  },

  async "axios-retry"(url) {
    const { default: axios } = await import("axios");
    const { default: axiosRetry } = await import("axios-retry");
    const client = axios.create();
    axiosRetry(client, {
      retries: 3,
      retryDelay: axiosRetry.exponentialDelay,
      retryCondition: (error) => [429, 503].includes(error.response?.status),
    });
    return () => client.request({ url, method });
  },

  async got(url) {
    const { default: got } = await import("got");
    return () => got(url, { method });
  },

  async ky(url) {
    const { default: ky } = await import("ky");
    return () => ky(url, { method }).text();
  },

  async undici(url) {
    const { Agent, RetryAgent, request } = await import("undici");
    const dispatcher = new RetryAgent(new Agent());
    return async () => {
      const { statusCode, body } = await request(url, { method, dispatcher });
      await body.dump();
      if (statusCode !== 200) throw new Error(`status ${statusCode}`);
    };
  },

  async superagent(url) {
    const { default: superagent } = await import("superagent");
    return () => superagent(method, url).retry(3);
  },

  async octokit(url) {
    const { Octokit } = await import("@octokit/core");
    const { throttling } = await import("@octokit/plugin-throttling");
    const silent = () => {};
    const octokit = new (Octokit.plugin(throttling))({
      baseUrl: url,
      log: { debug: silent, info: silent, warn: silent, error: silent },
      throttle: {
        onRateLimit: (_wait, _request, _octokit, retries) => retries < 3,
        onSecondaryRateLimit: (_wait, _request, _octokit, retries) => retries < 3,
      },
    });
    return () => octokit.request("GET /");
  },

  async openai(url) {
    const { default: OpenAI } = await import("openai");
    const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries });
    return () => client.models.list();
  },

  async anthropic(url) {
    const { default: Anthropic } = await import("@anthropic-ai/sdk");
    const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries });
    return () => client.models.list();
  },

  async "aws-sdk"(url) {
    const { HeadBucketCommand, S3Client } = await import("@aws-sdk/client-s3");
    const credentials = { accessKeyId: "none", secretAccessKey: "none" };
    const client = new S3Client({ endpoint: url, region: "eu-west-1", forcePathStyle: true, credentials });
    return () => client.send(new HeadBucketCommand({ Bucket: "a-bucket" }));
  },

  async stripe(url) {
    const { default: Stripe } = await import("stripe");
    const { hostname, port } = new URL(url);
    const stripe = new Stripe("sk_test_none", {
      host: hostname, port, protocol: "http", maxNetworkRetries: 2, telemetry: false,
    });
    return () => stripe.customers.list();
  },

  // Asks whether a server is healthy, with or without a policy of its own for denials.
  "grpc-js": (url) => checks(url, {}),
  "grpc-js-retry": (url) => checks(url, {
    "grpc.service_config": JSON.stringify({
      methodConfig: [{
        name: [{}],
        retryPolicy: {
          maxAttempts: 5,
          initialBackoff: "0.1s",
          maxBackoff: "1s",
          backoffMultiplier: 2,
          retryableStatusCodes: ["RESOURCE_EXHAUSTED"],
        },
      }],
    }),
  }),
};

async function checks(url, options) {
  const { Client, credentials } = await import("@grpc/grpc-js");
  const client = new Client(new URL(url).host, credentials.createInsecure(), options);
  const path = "/grpc.health.v1.Health/Check";
  const same = (bytes) => bytes;
  return () => new Promise((resolve, reject) => {
    const done = (error, answer) => (error ? reject(error) : resolve(answer));
    client.makeUnaryRequest(path, same, same, Buffer.alloc(0), done);
  });
}

const [name, url, count] = process.argv.slice(2);
try {
  const send = await clients[name](url);
  for (let sent = 0; sent < Number(count); sent++) await send();
  process.exit(0);
} catch (error) {
  console.error(`${error.name}: ${error.message}`);
  process.exit(1);
}
