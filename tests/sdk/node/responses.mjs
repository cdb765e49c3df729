// Responses through the openai SDK.

import assert from "node:assert/strict";

import { MODEL, refused } from "./targets.mjs";

const time = {
  type: "function",
  name: "get_time",
  strict: true,
  parameters: {
    type: "object",
    properties: { zone: { type: "string" } },
    required: ["zone"],
    additionalProperties: false,
  },
};

export const responses = (OpenAI, { z }, { zodTextFormat }) => ({
  responses: {
    async "a response streams what it says"(client) {
      const asked = { model: MODEL, input: "Tell me", instructions: "Be brief" };
      const plain = await client.responses.create(asked);
      assert.equal(plain.status, "completed");
      const stream = client.responses.stream(asked);
      const kinds = [];
      let said = "";
      for await (const event of stream) {
        kinds.push(event.type);
        if (event.type === "response.output_text.delta") said += event.delta;
      }
      assert.equal(said, plain.output_text);
      assert.equal((await stream.finalResponse()).output_text, plain.output_text);
      assert.deepEqual(kinds.slice(0, 2), ["response.created", "response.in_progress"]);
      assert.equal(kinds.at(-1), "response.completed");
    },

    async "a function is called and its output answered"(client) {
      const input = [{ role: "user", content: "get_time please" }];
      const reply = await client.responses.create({ model: MODEL, input, tools: [time] });
      const call = reply.output.find((item) => item.type === "function_call");
      assert.ok(JSON.parse(call.arguments).zone);
      input.push(...reply.output, { type: "function_call_output", call_id: call.call_id, output: "noon" });
      const answer = await client.responses.create({ model: MODEL, input, tools: [time] });
      assert.ok(answer.output_text);
    },

    async "a response can be parsed into a schema"(client) {
      const reply = await client.responses.parse({
        model: MODEL,
        input: "Where?",
        text: { format: zodTextFormat(z.object({ x: z.number(), y: z.number() }), "point") },
      });
      assert.equal(typeof reply.output_parsed.x, "number");
    },

    async "wrong requests are errors of their kind"(client) {
      const create = (wrong) => client.responses.create({ model: MODEL, input: "Hello", ...wrong });
      await refused(OpenAI.NotFoundError, create({ model: "nothing" }));
      assert.ok((await refused(OpenAI.BadRequestError, create({ max_output_tokens: 0 }))).error.message);
    },

    async "hanging up ends a response"(client, target) {
      const before = await target.aborted();
      const stream = await client.responses.create({
        model: MODEL,
        input: "Go on",
        max_output_tokens: 20_000,
        ignore_eos: true,
        stream: true,
      });
      for await (const event of stream) {
        if (event.type === "response.output_text.delta") break;
      }
      stream.controller.abort();
      await target.eventuallyAborts(before);
    },
  },

  conversations: {
    async "a response goes on with an earlier one"(client) {
      const first = await client.responses.create({ model: MODEL, input: "One" });
      const second = await client.responses.create({ model: MODEL, input: "Two", previous_response_id: first.id });
      const alone = await client.responses.create({ model: MODEL, input: "Two" });
      assert.ok(second.usage.input_tokens > alone.usage.input_tokens + first.usage.output_tokens);
    },
  },
});
