// Asks the server, with a key where one is wanted. Keys live as long as the tab.

const ROOT = new URL("..", import.meta.url); // behind a proxy the server may have a prefix
const KEYS = { admin: "octavo.admin", caller: "octavo.caller" };

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function remember(kind, key) {
  sessionStorage.setItem(KEYS[kind], key);
}

function headers(kind, more = {}) {
  const key = sessionStorage.getItem(KEYS[kind]);
  return key ? { Authorization: `Bearer ${key}`, ...more } : more;
}

async function ask(path, options) {
  const answer = await fetch(new URL(path, ROOT), { cache: "no-store", ...options });
  if (answer.ok) return answer;
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // a proxy's own page, perhaps: the status must do
  }
  throw new Refused(answer.status, message);
}

export async function getJson(path) {
  return (await ask(path, { headers: headers("admin") })).json();
}

export async function getBytes(path) {
  return (await ask(path, { headers: headers("admin") })).arrayBuffer();
}

export async function postForBytes(path) {
  return (await ask(path, { method: "POST", headers: headers("admin") })).arrayBuffer();
}

export async function postFile(path, file) {
  return (await ask(path, { method: "POST", headers: headers("admin", { "Content-Type": "application/octet-stream" }), body: file })).arrayBuffer();
}

export async function getModels() {
  const answer = await ask("v1/models", { headers: headers("caller") });
  return (await answer.json()).data.map((each) => each.id);
}

export function postJson(path, body, kind, signal) {
  return ask(path, {
    method: "POST",
    headers: headers(kind, { "Content-Type": "application/json" }),
    body: JSON.stringify(body),
    signal,
  });
}

// The data of each server-sent event of an answer, parsed, until [DONE].
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
