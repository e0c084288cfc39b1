// The last tab: a conversation with a model, streamed.

import { events, getModels, postJson, Refused } from "./api.js";
import { $, make, seconds, setText } from "./dom.js";

export class Chat {
  constructor({ needKey }) {
    this.needKey = needKey;
    this.messages = [];
    this.stop = null;
    $("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.stop) this.stop.abort();
      else this.send();
    });
    $("chat-text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.stop) this.send();
    });
    $("chat-clear").addEventListener("click", () => {
      this.stop?.abort();
      this.messages = [];
      $("chat-log").replaceChildren();
      $("chat-text").focus();
    });
  }

  // Called whenever the tab is shown.
  async open() {
    $("chat-text").focus();
    if ($("chat-model").length) return;
    try {
      $("chat-model").replaceChildren(...(await getModels()).map((name) => make("option", {}, name)));
    } catch (error) {
      if (error.status === 401) this.needKey(error);
      else this.say("The server", error.message);
    }
  }

  say(who, text) {
    const words = make("p", {}, text), below = make("span", { class: "quiet" });
    const kind = who === "You" ? "said user" : "said";
    const article = make("article", { class: kind }, make("h3", {}, who), words, below);
    $("chat-log").append(article);
    $("chat-log").scrollTop = $("chat-log").scrollHeight;
    return { words, below };
  }

  async send() {
    const text = $("chat-text").value.trim();
    if (!text) return;
    $("chat-text").value = "";
    this.say("You", text);
    this.messages.push({ role: "user", content: text });
    this.stop = new AbortController();
    setText($("chat-send"), "Stop");
    const answer = this.say($("chat-model").value, "");
    try {
      await this.stream(answer);
    } catch (error) {
      if (error.status === 401) this.needKey(error);
      if (error.name === "AbortError") setText(answer.below, "stopped");
      else setText(answer.below, error instanceof Refused ? error.message : "the connection broke off");
    } finally {
      this.stop = null;
      setText($("chat-send"), "Send");
    }
    const said = answer.words.textContent;
    if (said) this.messages.push({ role: "assistant", content: said });
    else $("chat-text").value = this.messages.pop().content; // to be tried again
  }

  async stream({ words, below }) {
    const began = performance.now();
    let first = 0;
    const body = {
      model: $("chat-model").value,
      messages: this.messages,
      temperature: Number($("chat-temperature").value),
      max_tokens: Number($("chat-tokens").value),
      stream: true,
      stream_options: { include_usage: true },
    };
    const answer = await postJson("v1/chat/completions", body, "caller", this.stop.signal);
    const log = $("chat-log");
    for await (const event of events(answer)) {
      if (event.error) throw new Refused(500, event.error.message);
      const piece = event.choices[0]?.delta.content;
      if (piece) {
        first ||= performance.now();
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        words.append(piece);
        if (atEnd) log.scrollTop = log.scrollHeight;
      }
      if (event.usage) setText(below, told(event.usage, (first || performance.now()) - began, performance.now() - began));
    }
  }
}

function told(usage, toFirst, whole) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const pace = usage.completion_tokens > 1 ? `, ${((usage.completion_tokens - 1) / Math.max(0.001, (whole - toFirst) / 1000)).toFixed(1)} tokens/s` : "";
  return `${usage.prompt_tokens} tokens in (${cached} from the cache), ${usage.completion_tokens} out; the first after ${seconds(toFirst / 1000)}${pace}`;
}
