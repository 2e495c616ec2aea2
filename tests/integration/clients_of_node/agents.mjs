// Agents of ten turns with tools, through other people's clients: calls are cut, results and answers are sent back.
// Prints, as JSON, how many turns each had, or what stopped it.
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const url = process.argv[2];
const TURNS = 10;
const schema = { type: "object", properties: { path: { type: "string" }, text: { type: "string" } } };
const limit = (turn) => 12 + 20 * turn;

async function openai() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const tools = [{ type: "function", function: { name: "write", parameters: schema } }];
  const messages = [{ role: "user", content: "go" }];
  for (let turn = 0; turn < TURNS; turn++) {
    const asked = { model: "bytes", messages, tools, max_tokens: limit(turn) };
    const answer = turn % 2
      ? await client.chat.completions.stream(asked).finalChatCompletion().catch((error) => {
          if (!/length limit/.test(error.message)) throw error;
          return client.chat.completions.create(asked);
        })
      : await client.chat.completions.create(asked);
    const said = answer.choices[0].message;
    messages.push(said);
    for (const call of said.tool_calls ?? []) messages.push({ role: "tool", tool_call_id: call.id, content: "ok" });
    messages.push({ role: "user", content: "on" });
  }
  return TURNS;
}

async function anthropic() {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const tools = [{ name: "write", input_schema: schema }];
  const messages = [{ role: "user", content: "go" }];
  for (let turn = 0; turn < TURNS; turn++) {
    const asked = { model: "bytes", messages, tools, max_tokens: limit(turn) };
    const answer = turn % 2 ? await client.messages.stream(asked).finalMessage() : await client.messages.create(asked);
    messages.push({ role: "assistant", content: answer.content });
    const calls = answer.content.filter((block) => block.type === "tool_use");
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "ok" }));
    messages.push({ role: "user", content: [...results, { type: "text", text: "on" }] });
  }
  return TURNS;
}

async function vercel(model) {
  const tools = { write: tool({ description: "Write a file.", inputSchema: jsonSchema(schema) }) };
  const messages = [{ role: "user", content: "go" }];
  for (let turn = 0; turn < TURNS; turn++) {
    const asked = { model, messages: [...messages], tools, maxOutputTokens: limit(turn), maxRetries: 0 };
    let failed = null;
    let response;
    if (turn % 2) {
      const stream = streamText({ ...asked, onError: ({ error }) => (failed = error) });
      await stream.consumeStream();
      if (failed) throw failed;
      response = await stream.response;
    } else {
      response = (await generateText(asked)).response;
    }
    const parts = response.messages.flatMap((each) => (Array.isArray(each.content) ? each.content : []));
    const answered = new Set(parts.filter((part) => part.type === "tool-result").map((part) => part.toolCallId));
    const open = parts.filter((part) => part.type === "tool-call" && !answered.has(part.toolCallId));
    messages.push(...response.messages);
    for (const { toolCallId, toolName } of open) {
      const output = { type: "text", value: "ok" };
      messages.push({ role: "tool", content: [{ type: "tool-result", toolCallId, toolName, output }] });
    }
    messages.push({ role: "user", content: "on" });
  }
  return TURNS;
}

const compatible = createOpenAICompatible({ name: "specdec", baseURL: `${url}/v1`, apiKey: "none" });
const own = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const agents = {
  openai,
  anthropic,
  "ai chat": () => vercel(compatible("bytes")),
  "ai openai chat": () => vercel(own.chat("bytes")),
  "ai openai responses": () => vercel(own.responses("bytes")), // which refers to earlier items by their ids
};
const told = {};
for (const [name, agent] of Object.entries(agents)) {
  told[name] = await agent().catch((error) => `${error} ${error.responseBody ?? ""}`);
}
console.log(JSON.stringify(told));
