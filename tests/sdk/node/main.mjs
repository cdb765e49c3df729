// Runs the checks: `main.mjs FOLDER TARGETS`, the folder that holds node_modules and a JSON list of
// targets. Exit code 1 if one fails.

import { createRequire } from "node:module";
import path from "node:path";

import { cached } from "./cached.mjs";
import { chat } from "./chat.mjs";
import { embeddings } from "./embeddings.mjs";
import { messages } from "./messages.mjs";
import { responses } from "./responses.mjs";
import { Target, run } from "./targets.mjs";

const [folder, targets] = process.argv.slice(2);
const load = createRequire(path.resolve(folder, "package.json"));
const OpenAI = load("openai").default;
const Anthropic = load("@anthropic-ai/sdk").default;
const zod = load("zod");
const helpers = load("openai/helpers/zod");

let failures = 0;
for (const given of JSON.parse(targets)) {
  const target = new Target(given);
  // The defaults of a user, except that failures are visible and not retried.
  const options = { apiKey: "none", maxRetries: 0, timeout: 60_000 };
  const openai = new OpenAI({ baseURL: `${target.url}/v1`, ...options });
  const anthropic = new Anthropic({ baseURL: target.url, ...options });
  failures += await run(target, cached(), openai);
  failures += await run(target, chat(OpenAI, zod, helpers), openai);
  failures += await run(target, embeddings(), openai);
  failures += await run(target, responses(OpenAI, zod, helpers), openai);
  failures += await run(target, messages(Anthropic), anthropic);
}
process.exit(failures === 0 ? 0 : 1);
