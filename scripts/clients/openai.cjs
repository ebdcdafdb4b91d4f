// Node's official client. argv[2]: the router's URL.
const OpenAI = require("openai").OpenAI;

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "node", maxRetries: 0, timeout: 20000 });
const messages = [{ role: "user", content: "hello" }];
const ask = (more = {}, options = {}) =>
  client.chat.completions.create({ model: "fake-llm", messages, max_tokens: 6, ...more }, options);
const expect = (condition, what) => { if (!condition) throw new Error(what); };
const rejects = async (call, name) => {
  try { await call(); } catch (error) { expect(error.constructor.name === name, `${error.constructor.name} and not ${name}`); return; }
  throw new Error(`no ${name}`);
};

const cases = {
  "chat": async () => expect((await ask()).choices[0].message.content, "no content"),
  "stream": async () => {
    let chunks = 0;
    for await (const _ of await ask({ stream: true })) chunks++;
    expect(chunks >= 6, `${chunks} chunks`);
  },
  "a cancelled stream": async () => {
    const stream = await ask({ stream: true, max_tokens: 1000 });
    for await (const _ of stream) break;
    stream.controller.abort();
    await ask();
  },
  "models": async () => expect((await client.models.list()).data[0].id === "fake-llm", "no model"),
  "404 is NotFoundError": () => rejects(() => ask({ model: "nobody" }), "NotFoundError"),
  "429 is RateLimitError": () => rejects(() => ask({}, { headers: { "X-Fault": "status=429" } }), "RateLimitError"),
  "a time-out": () => rejects(() => ask({}, { timeout: 300, headers: { "X-Fault": "hang" } }), "APIConnectionTimeoutError"),
};

(async () => {
  let failed = false;
  for (const [name, run] of Object.entries(cases)) {
    try { await run(); console.log(`ok    node openai: ${name}`); }
    catch (error) { failed = true; console.log(`FAIL  node openai: ${name}: ${error.message}`); }
  }
  process.exit(failed ? 1 : 0);
})();
