// The `openai` package against the server at OCTAVO_URL, whose model is tiny and random.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { givesUp } from "./given_up.mjs";

const model = "tiny";
const messages = [{ role: "user", content: "Fold a sheet" }];
const short = { model, temperature: 0, max_tokens: 12 };
const client = new OpenAI({
  baseURL: `${process.env.OCTAVO_URL}/v1`,
  apiKey: "any",
  maxRetries: 0,
  timeout: 60_000,
});
const Trip = z.object({
  city: z.enum(["Paris", "雨"]),
  days: z.number().int().min(1).max(9),
});
const forecast = {
  type: "function",
  function: { name: "forecast", strict: true, parameters: z.toJSONSchema(Trip) },
};

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("models are listed and found", async () => {
  const { data } = await client.models.list();
  assert.deepEqual(data.map((each) => each.id), [model]);
  assert.equal((await client.models.retrieve(model)).object, "model");
});

test("a completion, streamed and not", async () => {
  const asked = { ...short, prompt: "Printers fold", logprobs: 1, n: 2 };
  const whole = await client.completions.create(asked);
  assert.equal(whole.choices.length, 2);
  assert.ok(whole.choices[0].text);
  assert.equal(whole.choices[0].logprobs.tokens.length, 12);
  assert.equal(whole.usage.completion_tokens, 24);
  const options = { stream: true, stream_options: { include_usage: true } };
  const chunks = await all(await client.completions.create({ ...asked, ...options }));
  for (const { index, text } of whole.choices) {
    const own = chunks.flatMap((chunk) => chunk.choices).filter((each) => each.index === index);
    assert.equal(own.map((each) => each.text).join(""), text);
    assert.equal(own.at(-1).finish_reason, "length");
  }
  assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
});

test("a chat, streamed and not, by the client's own helper too", async () => {
  const asked = { ...short, messages, logprobs: true, top_logprobs: 2 };
  const whole = await client.chat.completions.create(asked);
  const [{ message, logprobs }] = whole.choices;
  assert.ok(message.content);
  assert.equal(message.role, "assistant");
  assert.equal(logprobs.content.length, 12);
  const helper = client.chat.completions.stream({
    ...asked,
    stream_options: { include_usage: true },
  });
  let seen = "";
  helper.on("content", (delta) => (seen += delta));
  const final = await helper.finalChatCompletion();
  assert.equal(seen, message.content);
  assert.equal(final.choices[0].message.content, message.content);
  assert.equal(final.choices[0].finish_reason, "length");
  assert.deepEqual(final.choices[0].logprobs.content, logprobs.content);
  assert.equal(final.usage.completion_tokens, 12);
  assert.equal(typeof final.usage.prompt_tokens_details.cached_tokens, "number");
});

test("a tool is called, streamed and not, and its answer told", async () => {
  const asked = { model, messages, tools: [forecast], tool_choice: "required", seed: 1 };
  asked.parallel_tool_calls = false;
  const whole = await client.chat.completions.parse(asked);
  const [{ message, finish_reason }] = whole.choices;
  assert.equal(finish_reason, "tool_calls");
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "forecast");
  assert.match(call.id, /^call_/);
  Trip.parse(JSON.parse(call.function.arguments));
  const final = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(final.choices[0].message.tool_calls[0].function.name, "forecast");
  Trip.parse(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments));
  const told = { role: "tool", tool_call_id: call.id, content: "It rains" };
  const more = { ...short, messages: [...messages, message, told], tools: [forecast] };
  const answer = await client.chat.completions.create({ ...more, tool_choice: "none" });
  assert.ok(answer.choices[0].message.content);
});

test("an answer has the form that was asked for", async () => {
  const format = zodResponseFormat(Trip, "trip");
  const asked = { model, messages, seed: 2, response_format: format };
  const whole = await client.chat.completions.parse(asked);
  Trip.parse(whole.choices[0].message.parsed);
  const final = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(final.choices[0].message.parsed, whole.choices[0].message.parsed);
});

test("responses, streamed and not", async () => {
  const asked = { model, input: "Fold a sheet", text: { format: zodTextFormat(Trip, "trip") } };
  const whole = await client.responses.parse({ ...asked, temperature: 0 });
  assert.match(whole.id, /^resp_/);
  Trip.parse(whole.output_parsed);
  const helper = client.responses.stream({ ...asked, temperature: 0 });
  const events = await all(helper);
  assert.equal(events.at(-1).type, "response.completed");
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
  const final = await helper.finalResponse();
  assert.deepEqual(final.output_parsed, whole.output_parsed);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("what is wrong is said in the client's own terms", async () => {
  for (const stream of [false, true]) {
    const hot = client.chat.completions.create({ model, messages, temperature: 3, stream });
    await assert.rejects(hot, (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "temperature");
      assert.equal(error.type, "invalid_request_error");
      assert.ok(error.requestID);
      return true;
    });
  }
  const other = client.completions.create({ model: "other", prompt: "x" });
  await assert.rejects(other, (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
});

test("a stream that is given up ends at the server", async () => {
  const long = { model, max_tokens: 400, ignore_eos: true, stream: true };
  await givesUp(1, async () => {
    const stream = await client.chat.completions.create({ ...long, messages });
    for await (const _ of stream) break;
  });
  await givesUp(1, async () => {
    const abort = new AbortController();
    const asked = { ...long, prompt: "Printers fold" };
    for await (const _ of await client.completions.create(asked, { signal: abort.signal })) {
      abort.abort();
    }
  });
});
