// What the second tab can play, and the forms that ask for it: a simulation, the journal of this
// server, or one in a file of the reader's.

import { getJson, postForBytes, postFile } from "./api.js";
import { $, keep, make, setText } from "./dom.js";

// Groups of knobs: name, words, and either [least, most, step, first] or what to choose from. The
// server has the bounds; these are what is worth a look.
const GROUPS = [
  ["Device", [
    ["model", "Model", ["opt-13b", "opt-66b", "opt-175b", "llama-13b", "llama-3.1-8b", "llama-3.1-70b", "mistral-7b", "qwen3-8b", "qwen3-32b", "smollm2-135m"], "opt-13b"],
    ["hardware", "GPU", ["a100-40", "a100-80", "h100", "h200", "b200", "gb10"], "a100-40"],
    ["ranks", "GPUs", ["1", "2", "4", "8"], "1"],
    ["max_num_seqs", "Sequences at once", [1, 64, 1, 32]],
  ]],
  ["Memory", [
    ["block_size", "Block size", ["4", "8", "16", "32", "64"], "16"],
    ["blocks", "Blocks in the pool", [32, 1024, 8, 128]],
    ["host_blocks", "Blocks on the host", [0, 512, 8, 64]],
    ["sharing", "Prefix sharing", ["true", "false"], "true"],
  ]],
  ["Policy", [
    ["low", "Low watermark", [0, 0.3, 0.01, 0.04]],
    ["high", "High watermark", [0, 0.4, 0.01, 0.08]],
    ["preemption", "Preemption", ["auto", "recompute", "swap"], "auto"],
    ["beside", "Reserved as", ["max", "pow2", "oracle"], "max"],
    ["longest", "Longest request", [64, 1024, 64, 512]],
  ]],
  ["Load", [
    ["requests", "Requests", [4, 120, 4, 40]],
    ["rate", "Requests a second", [1, 40, 1, 8]],
    ["prefix", "Shared prefix", [0, 256, 8, 48]],
    ["prompt", "Own prompt", [8, 256, 8, 64]],
    ["answer", "Answer", [8, 256, 8, 128]],
  ]],
];
export const WORDS = { true: "on", false: "off", max: "the longest", pow2: "the next power of two", oracle: "the true length" };
const SETTLE_MS = 350; // after the last move of a slider

export class Sources {
  // `ask()` is called when there is something new to ask for.
  constructor(ask) {
    this.ask = ask;
    this.kind = "scene";
    for (const [title, knobs] of GROUPS) $("scene").append(make("fieldset", {}, make("legend", {}, title), ...knobs.map((knob) => made(...knob))));
    this.knobs = [...$("scene").elements].filter((each) => each.name);
    $("scene").addEventListener("input", () => this.changed());
    for (const form of ["scene", "own", "sent"]) $(form).addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    for (const radio of document.querySelectorAll("[name=source]")) radio.addEventListener("change", () => this.turnTo(radio.value));
    $("own-replica").addEventListener("change", () => this.ask());
    $("own-before").addEventListener("change", () => this.ask());
    $("sent-file").addEventListener("change", () => this.ask());
  }

  changed() {
    for (const knob of this.knobs) if (knob.type === "range") setText(knob.nextElementSibling, knob.value);
    clearTimeout(this.pending);
    this.pending = setTimeout(() => this.ask(), SETTLE_MS);
  }

  turnTo(kind) {
    this.kind = kind;
    for (const form of ["scene", "own", "sent"]) $(form).hidden = form !== kind;
    setText($("source-words"), $(kind).dataset.words);
    if (kind === "own") this.listReplicas().catch(() => {}); // whoever asks for the film will say it
    this.ask();
  }

  // The bytes of the films, or null where something is to be chosen first; `wants` then says what.
  async fetch() {
    this.wants = "";
    if (this.kind === "scene") return postForBytes(`debug/simulation?${new URLSearchParams(this.knobs.map((knob) => [knob.name, knob.value]))}`);
    const part = new URLSearchParams();
    for (const end of ["first", "last"]) {
      const value = $(`${this.kind}-${end}`).value.trim();
      if (value) part.set(end, value);
    }
    if (this.kind === "sent") {
      const [file] = $("sent-file").files;
      if (file) return postFile(`debug/journal/sent?${part}`, file);
      this.wants = "Choose a file that octavo serve --journal FILE wrote.";
      return null;
    }
    await this.listReplicas();
    if (!$("own-replica").value) {
      this.wants = "This server keeps no journal. Start it with octavo serve --journal FILE, and its steps can be played here.";
      return null;
    }
    const [model, replica] = JSON.parse($("own-replica").value);
    part.set("model", model), part.set("replica", replica), part.set("before", $("own-before").value);
    return postForBytes(`debug/journal?${part}`);
  }

  async listReplicas() {
    const { replicas, models } = await getJson("debug/overview");
    const recorded = replicas.filter((each) => each.journal);
    keep($("own-replica"), recorded, (each) => JSON.stringify([each.model, each.replica]), (each) => make("option", { value: JSON.stringify([each.model, each.replica]) }), (option, each) =>
      setText(option, models.length > 1 ? `${each.model} · ${each.replica}` : each.replica));
    const [, name] = JSON.parse($("own-replica").value || "[]");
    setText($("own-path"), recorded.find((each) => each.replica === name)?.journal ?? "");
  }
}

function made(name, words, range, first) {
  const id = `knob-${name}`;
  if (first !== undefined) {
    const knob = make("select", { name, id }, ...range.map((value) => make("option", { value }, WORDS[value] ?? value)));
    knob.value = first;
    return make("label", { for: id }, make("span", {}, words), knob);
  }
  const [least, most, step, value] = range;
  const knob = make("input", { type: "range", name, id, min: least, max: most, step, value });
  return make("label", { for: id }, make("span", {}, words), knob, make("output", { for: id }, String(value)));
}
