// Chats and completions through the openai SDK.

import assert from "node:assert/strict";

import { MODEL, refused } from "./targets.mjs";

const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, unit: { type: "string", enum: ["C", "F"] } },
      required: ["city", "unit"],
    },
  },
};
const user = (content) => [{ role: "user", content }];

export const chat = (OpenAI, { z }, { zodResponseFormat }) => ({
  chat: {
    async "a reply comes with its usage"(client) {
      const reply = await client.chat.completions.create({ model: MODEL, messages: user("Hello"), max_tokens: 7 });
      assert.equal(reply.choices[0].finish_reason, "length");
      assert.equal(reply.usage.completion_tokens, 7);
    },

    async "a stream says what the plain reply says"(client) {
      const asked = { model: MODEL, messages: user("Tell me a story"), max_tokens: 20 };
      const plain = await client.chat.completions.create(asked);
      let text = "";
      let tokens = null;
      const stream = await client.chat.completions.create({
        ...asked,
        stream: true,
        stream_options: { include_usage: true },
      });
      for await (const chunk of stream) {
        text += chunk.choices[0]?.delta.content ?? "";
        tokens = chunk.usage?.completion_tokens ?? tokens;
      }
      assert.equal(text, plain.choices[0].message.content);
      assert.equal(tokens, 20);
    },

    async "a tool is called and its result answered"(client) {
      const messages = user("What does get_weather say?");
      const asked = { model: MODEL, tools: [weather] };
      const call = (await client.chat.completions.create({ ...asked, messages })).choices[0];
      assert.equal(call.finish_reason, "tool_calls");
      const [tool] = call.message.tool_calls;
      assert.equal(JSON.parse(tool.function.arguments).unit, "C");
      const streamed = await client.chat.completions.stream({ ...asked, messages }).finalChatCompletion();
      assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, tool.function.arguments);
      messages.push(call.message, { role: "tool", tool_call_id: tool.id, content: "12 degrees" });
      const answer = (await client.chat.completions.create({ ...asked, messages })).choices[0];
      assert.equal(answer.finish_reason, "stop");
      assert.ok(answer.message.content);
    },

    async "the SDK runs the tool by itself"(client) {
      const cities = [];
      const tool = {
        ...weather,
        function: {
          ...weather.function,
          parse: JSON.parse,
          function: ({ city }) => {
            cities.push(city);
            return "12 degrees";
          },
        },
      };
      const runner = client.chat.completions.runTools({ model: MODEL, messages: user("get_weather!"), tools: [tool] });
      assert.ok(await runner.finalContent());
      assert.equal(cities.length, 1);
    },

    async "a reply can be parsed into a schema"(client) {
      const schema = z.object({ title: z.string(), parts: z.array(z.object({ size: z.number() })) });
      const reply = await client.chat.completions.parse({
        model: MODEL,
        messages: user("Describe it"),
        response_format: zodResponseFormat(schema, "machine"),
      });
      assert.equal(typeof reply.choices[0].message.parsed.parts[0].size, "number");
    },

    async "an unknown model and a wrong request are errors of their kind"(client) {
      const create = (wrong) => client.chat.completions.create({ model: MODEL, messages: user("Hello"), ...wrong });
      assert.match((await refused(OpenAI.NotFoundError, create({ model: "nothing" }))).error.message, /nothing/);
      assert.ok((await refused(OpenAI.BadRequestError, create({ messages: [] }))).error.message);
    },

    async "hanging up ends the generation"(client, target) {
      const before = await target.aborted();
      const stream = await client.chat.completions.create({
        model: MODEL,
        messages: user("Go on for ever"),
        max_tokens: 20_000,
        stream: true,
      });
      for await (const chunk of stream) {
        if (chunk.choices[0]?.delta.content) break;
      }
      stream.controller.abort();
      await target.eventuallyAborts(before);
    },

    async "the model is listed"(client) {
      const models = [];
      for await (const model of client.models.list()) models.push(model.id);
      assert.ok(models.includes(MODEL));
    },
  },

  completions: {
    async "a completion streams what it says"(client) {
      const asked = { model: MODEL, prompt: "Once upon a time", max_tokens: 8 };
      const plain = await client.completions.create(asked);
      let text = "";
      for await (const chunk of await client.completions.create({ ...asked, stream: true })) {
        text += chunk.choices[0].text;
      }
      assert.equal(text, plain.choices[0].text);
    },
  },
});
