// How a test sees that the server at OCTAVO_URL has noticed that its client is gone.
import { setTimeout } from "node:timers/promises";

async function count() {
  const text = await (await fetch(`${process.env.OCTAVO_URL}/metrics`)).text();
  return Number(text.match(/^vllm:request_success_total\{.*"abort".*\} (.*)$/m)[1]);
}

// Does something, then waits until the server has given up so many more requests.
export async function givesUp(number, something) {
  const before = await count();
  await something();
  const end = Date.now() + 10_000;
  while ((await count()) < before + number) {
    if (Date.now() > end) throw new Error(`the server has not given up ${number} requests`);
    await setTimeout(20);
  }
}
