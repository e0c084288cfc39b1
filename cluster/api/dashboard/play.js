// The second tab: films of the scheduler, made by the server, played here. Nothing of any policy is
// known on this side.

import { postForBytes } from "./api.js";
import { BlockMap } from "./blockmap.js";
import { courses } from "./charts.js";
import { $, count, keep, make, percent, plural, setText } from "./dom.js";
import { readPalette } from "./palette.js";
import { decodeFilms } from "./picture.js";

// Name, words, and either [least, most, step, first] or what to choose from. The server has the
// bounds; these are what is worth a look.
const KNOBS = [
  ["block_size", "Block size", ["4", "8", "16", "32", "64"], "16"],
  ["blocks", "Blocks in the pool", [32, 512, 8, 128]],
  ["host_blocks", "Blocks on the host", [0, 256, 8, 64]],
  ["prefix", "Shared prefix, tokens", [0, 256, 8, 48]],
  ["sharing", "Prefix sharing", ["true", "false"], "true"],
  ["requests", "Requests", [4, 120, 4, 32]],
  ["rate", "Requests a second", [1, 40, 1, 6]],
  ["prompt", "Own prompt, tokens", [8, 256, 8, 64]],
  ["answer", "Answer, tokens", [8, 256, 8, 96]],
  ["longest", "Longest request, tokens", [64, 1024, 64, 512]],
  ["max_num_seqs", "Sequences at once", [1, 64, 1, 24]],
  ["low", "Low watermark", [0, 0.3, 0.01, 0.04]],
  ["high", "High watermark", [0, 0.4, 0.01, 0.08]],
  ["preemption", "Preemption", ["auto", "recompute", "swap"], "auto"],
  ["beside", "Reserved as", ["max", "pow2", "oracle"], "max"],
];
const WORDS = { true: "on", false: "off", max: "the longest", pow2: "the next power of two", oracle: "the true length" };
const SETTLE_MS = 350; // after the last move of a slider

export class Play {
  constructor({ needKey }) {
    this.needKey = needKey;
    this.films = null;
    this.now = 0;
    this.playing = false;
    this.last = 0;
    this.pending = 0;
    this.maps = ["paged", "beside"].map((name) => new BlockMap($(`film-${name}`), { onPoint: () => {}, onPick: () => {} }));
    for (const [name, words, range, first] of KNOBS) $("scene").append(first === undefined ? slider(name, words, range) : choice(name, words, range, first));
    $("scene").addEventListener("input", () => this.changed());
    $("scene").addEventListener("submit", (event) => event.preventDefault());
    $("film-play").addEventListener("click", () => this.turn(!this.playing));
    $("film-step").addEventListener("click", () => this.step(1));
    $("film-back").addEventListener("click", () => this.step(-1));
    $("film-at").addEventListener("input", () => {
      this.turn(false);
      this.seek(Number($("film-at").value));
    });
    this.dye();
    requestAnimationFrame((now) => this.frame(now));
  }

  dye() {
    this.palette = readPalette();
    for (const map of this.maps) map.dye(this.palette);
    if (this.films) this.seek(this.now);
  }

  open() {
    if (!this.films) this.load();
  }

  changed() {
    for (const label of $("scene").children) if (label.knob?.type === "range") setText(label.querySelector("output"), label.knob.value);
    clearTimeout(this.pending);
    this.pending = setTimeout(() => this.load(), SETTLE_MS);
  }

  // Asks for the films of what the sliders say; of several changes in a row, the last one counts.
  async load() {
    if (this.loading) {
      this.again = true;
      return;
    }
    this.loading = true;
    setText($("film-words"), "The server plays it through …");
    const query = new URLSearchParams([...$("scene").children].map((label) => [label.knob.name, label.knob.value]));
    try {
      this.films = decodeFilms(await postForBytes(`debug/simulation?${query}`));
      this.begin();
    } catch (error) {
      if (error.status === 401 || error.status === 404) this.needKey(error);
      setText($("film-words"), error.message);
    } finally {
      this.loading = false;
      if (this.again) {
        this.again = false;
        this.load();
      }
    }
  }

  begin() {
    const ends = this.films.map((film) => film.frames[film.frames.length - 1].at);
    this.end = Math.max(...ends);
    $("film-at").max = this.end;
    setText($("film-beside-title"), `Reserved: ${WORDS[this.films[1].name]}`);
    setText($("film-words"), this.films.map((film, i) => {
      const end = film.frames[film.frames.length - 1];
      const name = i ? "Reserved" : "Paged";
      const done = film.whole ? `all over after ${ends[i].toFixed(1)} s` : `the first ${film.frames.length} steps, ${ends[i].toFixed(1)} s`;
      return `${name}: ${done}, ${plural(end.finished, "request")} finished, ${plural(end.preempted, "preemption")}${film.refused ? `, ${count(film.refused)} refused` : ""}.`;
    }).join(" "));
    this.seek(Math.min(this.now, this.end));
  }

  turn(playing) {
    if (playing && this.now >= this.end) this.now = 0;
    this.playing = playing && this.films !== null;
    setText($("film-play"), this.playing ? "Pause" : "Play");
  }

  // To the next frame of the paged film, or the one before.
  step(by) {
    if (!this.films) return;
    this.turn(false);
    const { frames } = this.films[0];
    const at = frameAt(frames, this.now) + by;
    this.seek(frames[Math.min(frames.length - 1, Math.max(0, at))].at);
  }

  frame(now) {
    const passed = Math.min(0.1, (now - this.last) / 1000);
    this.last = now;
    if (!$("play").hidden) {
      if (this.playing) {
        this.seek(Math.min(this.end, this.now + passed * Number($("film-speed").value)));
        if (this.now >= this.end) this.turn(false);
      }
      for (const map of this.maps) map.frame(now);
    }
    requestAnimationFrame((then) => this.frame(then));
  }

  seek(now) {
    this.now = now;
    const [paged, beside] = this.films;
    $("film-at").value = now;
    this.films.forEach((film, i) => {
      const place = frameAt(film.frames, now), shown = film.frames[place];
      if (this.maps[i].shown !== shown) this.maps[i].show(shown.codes);
      this.maps[i].shown = shown;
      this.tell(i ? "beside" : "paged", film, shown);
    });
    setText($("film-time"), `${now.toFixed(2)} s of ${this.end.toFixed(2)} s, step ${frameAt(paged.frames, now)} of ${paged.frames.length - 1}`);
    const usable = paged.total - 1;
    courses($("film-chart"), [
      { points: beside.frames.map((each) => [each.at, each.used]), colour: this.palette.cached },
      { points: paged.frames.map((each) => [each.at, each.used]), colour: this.palette.shared },
    ], { last: this.end, most: usable, levels: [usable - paged.low, usable - paged.high], now }, this.palette);
  }

  tell(name, film, frame) {
    const slots = (film.total - 1) * film.block_size;
    const facts = [
      ["Running", count(frame.running)],
      ["Waiting", count(frame.waiting)],
      ["Finished", count(frame.finished)],
      ["Preempted", count(frame.preempted)],
      ["Blocks in use", count(frame.used)],
      ["Slots with tokens", percent(frame.tokens, slots)],
      ["Reserved", percent(frame.reserved, slots)],
      ["Wasted", percent(frame.wasted, slots)],
    ];
    keep($(`film-${name}-facts`), facts, ([fact]) => fact, ([fact]) => make("div", { "data-fact": fact }, make("dt", {}, fact), make("dd")), (pair, [, value]) =>
      setText(pair.lastChild, value));
  }
}

// The last frame that is not after `now`.
function frameAt(frames, now) {
  let low = 0, high = frames.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (frames[middle].at <= now + 1e-9) low = middle;
    else high = middle - 1;
  }
  return low;
}

function slider(name, words, [least, most, step, first]) {
  const knob = make("input", { type: "range", name, min: least, max: most, step, value: first });
  return labelled(words, knob, make("output", {}, String(first)));
}

function choice(name, words, values, first) {
  const knob = make("select", { name }, ...values.map((value) => make("option", { value }, WORDS[value] ?? value)));
  knob.value = first;
  return labelled(words, knob);
}

function labelled(words, knob, ...shown) {
  knob.id = `knob-${knob.name}`;
  const label = make("label", { for: knob.id }, make("span", {}, words), ...shown, knob);
  label.knob = knob;
  return label;
}
