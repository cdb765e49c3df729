// Messages through the Anthropic SDK.

import assert from "node:assert/strict";

import { MODEL, refused } from "./targets.mjs";

const time = {
  name: "get_time",
  input_schema: { type: "object", properties: { zone: { type: "string" } }, required: ["zone"] },
};
const user = (content) => [{ role: "user", content }];

export const messages = (Anthropic) => ({
  messages: {
    async "a streamed message says what the plain one says"(client) {
      const asked = { model: MODEL, max_tokens: 200, system: "Be brief", messages: user("Tell me") };
      const plain = await client.messages.create(asked);
      assert.equal(plain.content[0].type, "text");
      const pieces = [];
      const stream = client.messages.stream(asked).on("text", (text) => pieces.push(text));
      const final = await stream.finalMessage();
      assert.equal(pieces.join(""), plain.content[0].text);
      assert.equal(final.content[0].text, plain.content[0].text);
      assert.equal(final.usage.output_tokens, plain.usage.output_tokens);
    },

    async "a tool is used and its result answered"(client) {
      const turns = user("get_time please");
      const asked = { model: MODEL, max_tokens: 300, tools: [time] };
      const used = await client.messages.create({ ...asked, messages: turns });
      assert.equal(used.stop_reason, "tool_use");
      const block = used.content.find((block) => block.type === "tool_use");
      const streamed = await client.messages.stream({ ...asked, messages: turns }).finalMessage();
      assert.deepEqual(streamed.content.find((block) => block.type === "tool_use").input, block.input);
      turns.push(
        { role: "assistant", content: used.content },
        { role: "user", content: [{ type: "tool_result", tool_use_id: block.id, content: "noon" }] },
      );
      const answer = await client.messages.create({ ...asked, messages: turns });
      assert.equal(answer.content[0].type, "text");
    },

    async "tokens are counted"(client) {
      const counted = await client.messages.countTokens({ model: MODEL, messages: user("Count me") });
      const { usage } = await client.messages.create({ model: MODEL, max_tokens: 1, messages: user("Count me") });
      assert.equal(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0));
    },

    async "wrong requests are errors of their kind"(client) {
      const create = (wrong) =>
        client.messages.create({ model: MODEL, max_tokens: 5, messages: user("Hello"), ...wrong });
      const unknown = await refused(Anthropic.NotFoundError, create({ model: "nothing" }));
      assert.equal(unknown.error.type, "error");
      assert.ok((await refused(Anthropic.BadRequestError, create({ messages: [] }))).error.error.message);
    },

    async "hanging up ends a message"(client, target) {
      const before = await target.aborted();
      const asked = { model: MODEL, max_tokens: 20_000, ignore_eos: true, messages: user("Go on"), stream: true };
      const stream = await client.messages.create(asked);
      for await (const event of stream) {
        if (event.type === "content_block_delta") break;
      }
      stream.controller.abort();
      await target.eventuallyAborts(before);
    },
  },

  thinking: {
    async "thoughts are blocks of their own"(client) {
      const asked = {
        model: MODEL,
        max_tokens: 2000,
        thinking: { type: "enabled", budget_tokens: 1024 },
        messages: user("Think"),
      };
      const reply = await client.messages.create(asked);
      assert.deepEqual(reply.content.map((block) => block.type), ["thinking", "text"]);
      const final = await client.messages.stream(asked).finalMessage();
      assert.equal(final.content[0].thinking, reply.content[0].thinking);
    },
  },
});
