// OpenAI's client for Node: an answer, a stream, choices, a refusal. Prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model: "bytes", prompt: "Say it", max_tokens: 50 };

const whole = await client.completions.create({ ...asked, n: 2 });
const messages = [{ role: "user", content: "hi" }];
const options = { stream: true, stream_options: { include_usage: true } };
const stream = await client.chat.completions.create({ model: "bytes", messages, ...options });
const parts = [];
let usage = null;
for await (const chunk of stream) {
  parts.push(chunk.choices[0]?.delta.content ?? "");
  usage = chunk.usage ?? usage;
}
const refused = await client.completions.create({ ...asked, temperature: 3 }).catch((error) => error);
const models = await client.models.list();

console.log(
  JSON.stringify({
    texts: whole.choices.map((choice) => choice.text),
    streamed: parts.join(""),
    tokens: usage.completion_tokens,
    refused: [refused.status, refused.param],
    models: models.data.map((model) => model.id),
  }),
);
