// What is checked, and the one way of saying what came of it.

import assert from "node:assert/strict";

export const MODEL = "sim";

/** One base URL, the simulated engine behind it, and which APIs of it are checked. */
export class Target {
  constructor({ name, url, engine, apis }) {
    Object.assign(this, { name, url, engine, apis });
  }

  /** How many generations of the engine were cut off by their clients. */
  async aborted() {
    return (await (await fetch(`${this.engine}/sim/stats`)).json()).aborted;
  }

  async eventuallyAborts(before) {
    for (let round = 0; round < 200; round += 1) {
      if ((await this.aborted()) > before) return;
      await new Promise((done) => setTimeout(done, 50));
    }
    assert.fail("the engine never heard that its client left");
  }
}

/** Runs the checks that the target is good for; how many failed. */
export async function run(target, checks, client) {
  let failures = 0;
  for (const [api, functions] of Object.entries(checks)) {
    if (!target.apis.includes(api)) continue;
    for (const [what, check] of Object.entries(functions)) {
      try {
        await check(client, target);
        console.log(`ok ${target.name} ${api} ${what}`);
      } catch (error) {
        failures += 1;
        console.log(`FAILED ${target.name} ${api} ${what}\n${error.stack}`);
      }
    }
  }
  return failures;
}

/** The error that a promise ends with, which must be of this class. */
export async function refused(kind, promise) {
  const error = await promise.then(
    () => assert.fail("a wrong request was answered"),
    (error) => error,
  );
  assert.ok(error instanceof kind, `${error}`);
  return error;
}
