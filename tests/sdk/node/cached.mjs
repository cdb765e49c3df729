// Replies that come out of the router's cache, through the openai SDK: what was streamed once is
// all there again.

import assert from "node:assert/strict";

import { MODEL } from "./targets.mjs";

const weather = {
  type: "function",
  function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};
const asked = (text, more = {}) => ({
  model: MODEL,
  messages: [{ role: "user", content: `Cached in node: ${text}` }],
  temperature: 0,
  ...more,
});

/** The completion that the SDK makes of a stream, and what X-Cache says of it. */
async function streamed(client, body) {
  const { data, response } = await client.chat.completions
    .create({ ...body, stream: true, stream_options: { include_usage: true } })
    .withResponse();
  const choices = new Map();
  let usage = null;
  for await (const chunk of data) {
    usage = chunk.usage ?? usage;
    for (const { index, delta, finish_reason, logprobs } of chunk.choices) {
      const one = choices.get(index) ?? { text: "", reasoning: "", calls: [], logprobs: [], end: null };
      choices.set(index, one);
      one.text += delta.content ?? "";
      one.reasoning += delta.reasoning_content ?? "";
      one.end = finish_reason ?? one.end;
      one.logprobs.push(...(logprobs?.content ?? []));
      for (const call of delta.tool_calls ?? []) {
        one.calls[call.index] ??= { id: call.id, name: "", arguments: "" };
        one.calls[call.index].name += call.function?.name ?? "";
        one.calls[call.index].arguments += call.function?.arguments ?? "";
      }
    }
  }
  return { says: response.headers.get("x-cache"), choices: [...choices], usage };
}

/** A stream and its replay, which must be the same; and the whole reply made of it. */
async function twice(client, body) {
  const first = await streamed(client, body);
  const again = await streamed(client, body);
  assert.deepEqual([first.says, again.says], ["MISS", "HIT"]);
  assert.deepEqual(again.choices, first.choices);
  assert.deepEqual(again.usage, first.usage);
  const { data, response } = await client.chat.completions.create(body).withResponse();
  assert.equal(response.headers.get("x-cache"), "HIT");
  return [first.choices[0][1], data];
}

export const cached = () => ({
  cached: {
    async "words and usage come again"(client) {
      const [first, whole] = await twice(client, asked("a story", { max_tokens: 12 }));
      assert.equal(whole.choices[0].message.content, first.text);
      assert.equal(whole.usage.completion_tokens, 12);
    },

    async "calls of tools come again"(client) {
      const body = asked("get_weather", { tools: [weather] });
      const [first, whole] = await twice(client, body);
      const call = whole.choices[0].message.tool_calls[0];
      assert.deepEqual([call.id, call.function.name, call.function.arguments], Object.values(first.calls[0]));
      // Joined by the SDK itself.
      const final = await client.chat.completions.stream(body).finalChatCompletion();
      assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    },

    async "thoughts come again"(client) {
      const [first, whole] = await twice(client, asked("think", { chat_template_kwargs: { enable_thinking: true } }));
      assert.ok(first.reasoning && first.text);
      assert.equal(whole.choices[0].message.reasoning_content, first.reasoning);
    },

    async "log probabilities come again"(client) {
      const [first, whole] = await twice(client, asked("choose", { max_tokens: 9, logprobs: true, top_logprobs: 2 }));
      assert.deepEqual(whole.choices[0].logprobs.content, first.logprobs);
      assert.equal(first.logprobs.length, 9);
    },
  },
});
