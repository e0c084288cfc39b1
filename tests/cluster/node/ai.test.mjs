// Vercel's AI SDK against the server at OCTAVO_URL, whose model is tiny and random.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, streamText, tool } from "ai";
import { z } from "zod";
import { givesUp } from "./given_up.mjs";

const octavo = createOpenAICompatible({
  name: "octavo",
  baseURL: `${process.env.OCTAVO_URL}/v1`,
  apiKey: "any",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const chat = octavo("tiny");
const short = { prompt: "Fold a sheet", temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
const Trip = z.object({
  city: z.enum(["Paris", "雨"]),
  days: z.number().int().min(1).max(9),
});
const forecast = tool({ description: "Weather", inputSchema: Trip });

async function all(stream) {
  const parts = [];
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    parts.push(part);
  }
  return parts;
}

for (const [kind, model] of [["chat", chat], ["completion", octavo.completionModel("tiny")]]) {
  test(`a ${kind}, streamed and not`, async () => {
    const whole = await generateText({ ...short, model });
    assert.ok(whole.text);
    assert.equal(whole.finishReason, "length");
    assert.equal(whole.usage.outputTokens, 12);
    assert.deepEqual(whole.warnings ?? [], []);
    const stream = streamText({ ...short, model });
    const parts = await all(stream.fullStream);
    const deltas = parts.filter((part) => part.type === "text-delta");
    assert.ok(deltas.length > 1);
    assert.equal(deltas.map((part) => part.text).join(""), whole.text);
    assert.equal(await stream.finishReason, "length");
    const usage = await stream.totalUsage;
    assert.equal(usage.inputTokens, whole.usage.inputTokens);
    assert.equal(usage.outputTokens, 12);
  });
}

test("the usage of a chat tells what was cached", async () => {
  const prompt = "Readers cut the folds and turn the pages. ".repeat(4);
  await generateText({ ...short, model: chat, prompt });
  const { usage } = await generateText({ ...short, model: chat, prompt });
  assert.ok(usage.inputTokenDetails.cacheReadTokens >= 16);
});

test("a tool is called, streamed and not", async () => {
  const asked = { model: chat, prompt: "Rain?", seed: 1, maxRetries: 0 };
  Object.assign(asked, { tools: { forecast }, toolChoice: { type: "tool", toolName: "forecast" } });
  const whole = await generateText(asked);
  assert.equal(whole.finishReason, "tool-calls");
  const [call] = whole.toolCalls;
  assert.equal(call.toolName, "forecast");
  Trip.parse(call.input);
  const stream = streamText(asked);
  const parts = await all(stream.fullStream);
  const typed = parts.filter((part) => part.type === "tool-input-delta");
  const [streamed] = await stream.toolCalls;
  assert.deepEqual(JSON.parse(typed.map((part) => part.delta).join("")), streamed.input);
  assert.deepEqual(streamed.input, call.input);
});

test("an answer has the form that was asked for", async () => {
  const asked = { model: chat, prompt: "Where?", seed: 2, maxRetries: 0 };
  const whole = await generateText({ ...asked, output: Output.object({ schema: Trip }) });
  Trip.parse(whole.output);
  const stream = streamText({ ...asked, output: Output.object({ schema: Trip }) });
  await all(stream.fullStream);
  assert.deepEqual(await stream.output, whole.output);
});

test("what is wrong is said in the client's own terms", async () => {
  const hot = { ...short, model: chat, temperature: 3 };
  const seen = [];
  await generateText(hot).catch((error) => seen.push(error));
  await all(streamText({ ...hot, onError: () => {} }).fullStream).catch((e) => seen.push(e));
  assert.equal(seen.length, 2);
  for (const error of seen) {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.equal(error.isRetryable, false);
    assert.match(error.message, /temperature/);
    assert.equal(error.data.error.param, "temperature");
  }
});

test("a stream that is given up ends at the server", async () => {
  const abort = new AbortController();
  const long = { ...short, model: chat, maxOutputTokens: 400, abortSignal: abort.signal };
  long.providerOptions = { octavo: { ignore_eos: true } };
  await givesUp(1, async () => {
    for await (const part of streamText(long).fullStream) {
      if (part.type === "text-delta") abort.abort();
    }
  });
});
