// Embeddings through the openai SDK, which asks for base64 unless told otherwise.

import assert from "node:assert/strict";

import { MODEL } from "./targets.mjs";

export const embeddings = () => ({
  embeddings: {
    async "both encodings mean the same vectors"(client) {
      const asked = { model: MODEL, input: ["one text", "another"], dimensions: 16 };
      const decoded = await client.embeddings.create(asked);
      const floats = await client.embeddings.create({ ...asked, encoding_format: "float" });
      assert.equal(decoded.data[0].embedding.length, 16);
      decoded.data.forEach(({ embedding }, index) =>
        embedding.forEach((value, place) => {
          assert.ok(Math.abs(value - floats.data[index].embedding[place]) < 1e-6);
        }),
      );
    },
  },
});
