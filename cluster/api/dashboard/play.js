// The second tab: films of the scheduler, made by the server, played here. Nothing of any policy is
// known on this side.

import { BlockMap } from "./blockmap.js";
import { courses, momentAt } from "./charts.js";
import { $, count, keep, make, percent, plural, setAttribute, setText } from "./dom.js";
import { readPalette } from "./palette.js";
import { decodeFilms } from "./picture.js";
import { Sources, WORDS } from "./sources.js";

export class Play {
  constructor({ needKey }) {
    this.needKey = needKey;
    this.films = null;
    this.now = 0;
    this.playing = false;
    this.last = 0;
    this.maps = ["paged", "beside"].map((name) => new BlockMap($(`film-${name}`), { onPoint: () => {}, onPick: () => {} }));
    this.sources = new Sources(() => this.load());
    $("film-play").addEventListener("click", () => this.turn(!this.playing));
    $("film-step").addEventListener("click", () => this.step(1));
    $("film-back").addEventListener("click", () => this.step(-1));
    $("film-at").addEventListener("input", () => {
      this.turn(false);
      this.seek(Number($("film-at").value));
    });
    for (const name of ["film-chart", "film-queue"]) $(name).addEventListener("click", (event) => {
      if (!this.films) return;
      this.turn(false);
      this.seek(momentAt($(name), event, this.end));
    });
    new ResizeObserver(() => this.films && this.draw()).observe($("film-chart"));
    this.dye();
    requestAnimationFrame((now) => this.frame(now));
  }

  dye() {
    this.palette = readPalette();
    for (const map of this.maps) map.dye(this.palette);
    if (this.films) this.draw();
  }

  open() {
    if (!this.films) this.load();
  }

  // Asks for the films of what was chosen; of several choices in a row, the last one counts.
  async load() {
    if (this.loading) {
      this.again = true;
      return;
    }
    this.loading = true;
    const { kind } = this.sources;
    setText($("film-words"), "The server plays it through …");
    try {
      const bytes = await this.sources.fetch();
      if (kind !== this.sources.kind) return;
      if (bytes) this.begin(decodeFilms(bytes), kind);
      else this.clear(this.sources.wants);
    } catch (error) {
      if (error.status === 401 || error.status === 404) this.needKey(error);
      if (this.shown !== kind) this.clear(error.message);
      else setText($("film-words"), error.message);
    } finally {
      this.loading = false;
      if (this.again) {
        this.again = false;
        this.load();
      }
    }
  }

  // There is nothing to show, and these words say why.
  clear(words) {
    this.films = null;
    this.shown = "";
    this.turn(false);
    $("film").hidden = true;
    setText($("film-words"), words);
  }

  begin(films, kind) {
    if (kind !== this.shown || kind !== "scene") this.now = 0;
    this.films = films;
    this.shown = kind;
    const [first, second] = films;
    const start = first.began ? first.frames[0].at : 0; // a server may have been idle for long
    for (const frame of first.frames) frame.at -= start;
    if (first.began) first.began += start;
    this.end = Math.max(...films.map((film) => film.frames.at(-1).at));
    $("film").hidden = false;
    $("film-at").max = this.end;
    setText($("film-title"), second ? "Paged beside reserved" : "As recorded");
    setText($("film-paged-title"), second ? "Paged" : "The pool");
    for (const each of document.querySelectorAll(".second")) each.hidden = !second;
    $("film-pools").classList.toggle("alone", !second);
    if (second) setText($("film-beside-title"), `Reserved: ${WORDS[second.name]}`);
    this.marks = first.frames.filter((frame, i) => i && frame.preempted > first.frames[i - 1].preempted).map((frame) => frame.at);
    setText($("film-words"), films.map((film, i) => outcome(film, second ? (i ? "Reserved" : "Paged") : "Recorded")).join(" "));
    showSettings(first);
    this.seek(Math.min(this.now, this.end));
  }

  turn(playing) {
    if (playing && this.now >= this.end) this.now = 0;
    this.playing = playing && this.films !== null;
    setText($("film-play"), this.playing ? "Pause" : "Play");
  }

  // To the next frame of the first film, or the one before.
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
    $("film-at").value = now;
    this.films.forEach((film, i) => {
      const shown = film.frames[frameAt(film.frames, now)];
      if (this.maps[i].shown !== shown) this.maps[i].show(shown.codes);
      this.maps[i].shown = shown;
      tell(i ? "beside" : "paged", film, shown);
    });
    const { frames, every } = this.films[0];
    const step = frames[frameAt(frames, now)].step;
    const thinned = every > 1 ? `; one step in ${every} is shown` : "";
    setText($("film-time"), `${now.toFixed(2)} s of ${this.end.toFixed(2)} s, step ${count(step)} of ${count(frames.at(-1).step)}${thinned}`);
    this.draw();
  }

  draw() {
    const [first, second] = this.films;
    const usable = first.total - 1;
    const course = (film, field, colour, filled) => ({ points: film.frames.map((each) => [each.at, each[field]]), colour, filled });
    const shared = { last: this.end, now: this.now };
    courses($("film-chart"), [
      ...(second ? [course(second, "used", this.palette.cached)] : []),
      course(first, "used", this.palette.shared, true),
    ], { ...shared, most: usable, levels: [usable - first.low, usable - first.high] }, this.palette);
    const most = Math.max(2, ...first.frames.map((each) => Math.max(each.running, each.waiting)));
    courses($("film-queue"), [
      course(first, "running", this.palette.held, true),
      course(first, "waiting", this.palette.ink),
    ], { ...shared, most: most + (most % 2), marks: this.marks }, this.palette);
  }
}

function outcome(film, name) {
  const end = film.frames.at(-1);
  const refused = film.refused ? `, ${count(film.refused)} refused` : "";
  const room = film.room ? `; ${count(film.room)} blocks would fit beside the weights` : "";
  const note = film.note ? `; ${film.note}` : "";
  const said = film.note ? "shown up to" : film.began ? "up to its end, after" : "all over after";
  return `${name}: ${said} ${end.at.toFixed(1)} s, ${plural(end.finished, "request")} finished, ${plural(end.preempted, "preemption")}${refused}${room}${note}.`;
}

function tell(name, film, frame) {
  const slots = (film.total - 1) * film.block_size;
  const facts = [
    ["Running", count(frame.running)],
    ["Waiting", count(frame.waiting)],
    ["Finished", count(frame.finished)],
    ["Preempted", count(frame.preempted)],
    ["Blocks in use", `${count(frame.used)} of ${count(film.total - 1)}`],
    ["Slots with tokens", percent(frame.tokens, slots)],
    ["Reserved", percent(frame.reserved, slots)],
    ["Wasted", percent(frame.wasted, slots)],
  ];
  fill($(`film-${name}-facts`), facts);
  const bar = $(`film-${name}-slots`);
  [frame.tokens, frame.reserved, frame.wasted].forEach((part, i) => (bar.children[i].style.width = `${(100 * part) / slots}%`));
  setAttribute(bar, "aria-label", `${percent(frame.tokens, slots)} of all slots have tokens, ${percent(frame.reserved, slots)} are reserved, ${percent(frame.wasted, slots)} wasted`);
}

const NAMES = {
  replica: "Replica",
  preemption_mode: "Preemption",
  enable_prefix_caching: "Prefix sharing",
  max_num_seqs: "Sequences at once",
  max_num_batched_tokens: "Tokens a step",
  max_model_len: "Longest request",
  allocation: "Allocation",
  host_blocks: "Blocks on the host",
};

// What was so when it was recorded. Nothing where it is a simulation: the knobs say it.
function showSettings(film) {
  const facts = Object.entries(film.settings).map(([name, value]) => [NAMES[name] ?? name, { True: "on", False: "off" }[value] ?? value]);
  if (film.began) facts.unshift(["Recorded from", new Date(film.began * 1000).toLocaleString()]);
  if (film.began) facts.push(["Block size", plural(film.block_size, "token")]);
  fill($("film-settings"), facts);
  $("film-settings").hidden = facts.length === 0;
}

function fill(list, facts) {
  keep(list, facts, ([fact]) => fact, ([fact]) => make("div", { "data-fact": fact }, make("dt", {}, fact), make("dd")), (pair, [, value]) => setText(pair.lastChild, value));
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
