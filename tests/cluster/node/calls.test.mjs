// Both clients against the server at OCTAVO_URL, whose model thinks, calls a tool of its own accord,
// and answers when it is told what the tool said.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = `${process.env.OCTAVO_URL}/v1`;
const City = z.object({ city: z.string() });
const called = { city: "Paris, 雨" };
const answer = "It does.";

for (const stream of [false, true]) {
  test(`openai runs tools, streamed: ${stream}`, async () => {
    const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
    const told = [];
    const weather = (city) => (told.push(city), "It rains");
    const runner = client.chat.completions.runTools({
      model: "tiny",
      messages: [{ role: "user", content: "Rain?" }],
      stream,
      tools: [
        {
          type: "function",
          function: {
            name: "get_weather",
            description: "It rains?",
            parameters: z.toJSONSchema(City),
            parse: JSON.parse,
            function: weather,
          },
        },
      ],
    });
    assert.equal(await runner.finalContent(), answer);
    assert.deepEqual(told, [called]);
  });
}

const model = createOpenAICompatible({ name: "octavo", baseURL, includeUsage: true })("tiny");

function question(told) {
  const execute = (city) => (told.push(city), "It rains");
  const get_weather = tool({ description: "It rains?", inputSchema: City, execute });
  return { model, prompt: "Rain?", tools: { get_weather }, stopWhen: stepCountIs(3), maxRetries: 0 };
}

test("the AI SDK runs tools in steps", async () => {
  const told = [];
  const { text, steps } = await generateText(question(told));
  assert.equal(text, answer);
  assert.deepEqual(told, [called]);
  assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
  assert.equal(steps[0].reasoningText, "A sheet.");
  assert.equal(steps[0].text, "I look.");
});

test("the AI SDK runs tools in steps that are streamed", async () => {
  const told = [];
  const stream = streamText(question(told));
  const parts = [];
  for await (const part of stream.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
    parts.push(part);
  }
  const text = (kind) => parts.filter((part) => part.type === kind).map((part) => part.text);
  assert.equal(text("reasoning-delta").join(""), "A sheet.");
  assert.equal(text("text-delta").join(""), `I look.${answer}`);
  assert.deepEqual(told, [called]);
});
