// The first tab: looks at one replica several times a second, at all of them once, and shows it.

import { getBytes, getJson, Refused } from "./api.js";
import { BlockMap } from "./blockmap.js";
import { bars } from "./charts.js";
import { $, count, keep, make, percent, plural, seconds, setAttribute, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { follow, Inspector } from "./inspect.js";
import { readPalette } from "./palette.js";
import { decode, words } from "./picture.js";
import { RankTable } from "./ranks.js";
import { ReplicaTable, RequestTable } from "./tables.js";

const LOOK_MS = 250;
const OVERVIEW_MS = 1000;
const HOLDERS_MS = 1000; // who holds the chosen block is asked this often: it takes a walk
const STEPS = 240;

export class Live {
  // `needKey(error)` is called when the server wants a key; `say(text, state)` shows how it goes.
  constructor({ needKey, say }) {
    this.needKey = needKey;
    this.say = say;
    this.held = false;
    this.chosen = { request: "", index: 0, position: -1, block: null };
    this.replica = "";
    this.heading = this.overview = null;
    this.askedBlock = 0;
    this.looking = false;
    this.figures = new Figures($("figures"));
    this.requests = new RequestTable($("requests"), $("requests-words"), (id) => this.chooseRequest(id === this.chosen.request ? "" : id, 0));
    this.replicas = new ReplicaTable($("replicas"), $("replicas-words"));
    this.ranks = new RankTable($("ranks"));
    this.inspector = new Inspector($("inspect"), {
      block: (tier, block) => this.chooseBlock(tier, block),
      position: (position) => this.choosePosition(position),
      request: (id, index) => this.chooseRequest(id, index),
      again: () => this.redraw(),
    });
    this.maps = {};
    for (const tier of ["device", "host"]) {
      this.maps[tier] = new BlockMap($(tier), {
        onPoint: (block) => this.point(tier, block),
        onPick: (block) => this.chooseBlock(tier, block),
      });
    }
    $("replica").addEventListener("change", () => this.turnTo($("replica").value));
    $("goto").addEventListener("submit", (event) => {
      event.preventDefault();
      const block = Number($("goto-block").value);
      if (this.heading && Number.isInteger(block) && block >= 0 && block < this.heading.device.total) this.chooseBlock("device", block);
    });
    $("zoom-in").addEventListener("click", () => this.zoom(1.6));
    $("zoom-out").addEventListener("click", () => this.zoom(1 / 1.6));
    this.dye();
  }

  start() {
    const frame = (now) => {
      if (!document.hidden && !$("live").hidden) for (const map of Object.values(this.maps)) map.frame(now);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    this.repeat(() => this.look(), LOOK_MS);
    this.repeat(() => this.survey(), OVERVIEW_MS);
  }

  // One call after the other, never two at once, and none that nobody sees.
  repeat(act, pause) {
    const again = async () => {
      const began = performance.now();
      if (!document.hidden && !this.held && !$("live").hidden) await act();
      setTimeout(again, Math.max(30, pause - (performance.now() - began)));
    };
    again();
  }

  dye() {
    this.palette = readPalette();
    for (const map of Object.values(this.maps)) map.dye(this.palette);
  }

  zoom(factor) {
    for (const map of Object.values(this.maps)) if (map.pixels) map.zoom(factor);
  }

  async survey() {
    try {
      this.overview = await getJson("debug/overview");
    } catch (error) {
      return this.failed(error);
    }
    this.figures.show(this.overview, performance.now() / 1000, this.palette);
    this.replicas.show(this.overview);
    setText($("version"), this.overview.version);
    const { replicas } = this.overview;
    $("replica-choice").hidden = replicas.length < 2;
    const several = this.overview.models.length > 1;
    keep($("replica"), replicas, (each) => JSON.stringify([each.model, each.replica]), (each) => make("option", { value: JSON.stringify([each.model, each.replica]) }), (option, each) =>
      setText(option, several ? `${each.model} · ${each.replica}` : each.replica));
    if (!replicas.some((each) => JSON.stringify([each.model, each.replica]) === this.replica)) this.turnTo($("replica").value);
    $("replica").value = this.replica;
    const shown = replicas.find((each) => JSON.stringify([each.model, each.replica]) === this.replica);
    if (shown) this.ranks.show(this.replica, shown.ranks);
  }

  turnTo(replica) {
    if (replica === this.replica) return;
    this.replica = replica;
    this.chosen = { request: "", index: 0, position: -1, block: null };
    this.wake();
  }

  async look() {
    if (!this.replica || this.looking) return;
    this.looking = true;
    const [model, replica] = JSON.parse(this.replica);
    const query = new URLSearchParams({ model, replica });
    const { request, index, block } = this.chosen;
    if (request) query.set("request", request), query.set("index", index);
    const now = performance.now();
    const asks = block && (now - this.askedBlock >= HOLDERS_MS || this.knownBlock?.block !== block.block || this.knownBlock?.tier !== block.tier);
    if (asks) query.set("tier", block.tier), query.set("block", block.block);
    try {
      const heading = decode(await getBytes(`debug/look?${query}`));
      if (asks) this.askedBlock = now, this.knownBlock = heading.block;
      heading.block = this.knownBlock ?? null;
      this.say("live", "good");
      this.show(heading);
    } catch (error) {
      this.failed(error);
    } finally {
      this.looking = false;
    }
  }

  // Asks at once, for what was just chosen.
  async wake() {
    this.redraw();
    await this.look();
  }

  failed(error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 404)) this.needKey(error);
    this.say(error instanceof Refused ? error.message : "the server does not answer", "bad");
  }

  show(heading) {
    this.heading = heading;
    for (const tier of ["device", "host"]) this.maps[tier].show(heading.codes[tier]);
    $("host-tier").hidden = heading.host.total === 0;
    const { device, host } = heading;
    const usable = device.total - 1;
    setText($("device-words"), `${count(device.used)} in use, ${count(device.cached)} free and findable, ${count(usable - device.used - device.cached)} free, of ${plural(usable, "block")} of ${plural(heading.block_size, "token")}`);
    setText($("host-words"), `${count(host.used)} in use, ${count(host.cached)} findable, of ${plural(host.total, "block")}`);
    this.showGauge(heading, usable);
    this.showSteps(heading.steps);
    this.redraw();
  }

  redraw() {
    const { heading, chosen } = this;
    if (!heading) return;
    this.requests.show(heading, chosen.request);
    this.inspector.show(heading, chosen);
    const mine = heading.request;
    this.maps.device.mark(mine ? [...mine.table, ...mine.reserved] : null);
    this.maps.host.mark(mine ? mine.host_table : null);
    const on = this.chosenBlock();
    for (const tier of ["device", "host"]) this.maps[tier].choose(on && on.tier === tier ? on.block : -1);
  }

  // The block that is chosen, or that a chosen position leads to.
  chosenBlock() {
    const { heading, chosen } = this;
    if (chosen.block) return chosen.block;
    if (chosen.position < 0 || !heading?.request) return null;
    const found = follow(heading.request, heading.block_size, chosen.position);
    return found.block === null ? null : found;
  }

  showGauge(heading, usable) {
    const { device, low, high } = heading;
    const parts = [["held", 0, device.used], ["cached", device.used, device.cached]];
    if (low) parts.push(["mark", usable - low, 0], ["mark", usable - high, 0]);
    const gauge = $("gauge");
    keep(gauge, parts.map((part, i) => [i, ...part]), ([i]) => i, ([, kind]) => make("i", { class: kind }), (bar, [, kind, from, long]) => {
      bar.style.left = `${(100 * from) / usable}%`;
      if (kind !== "mark") bar.style.width = `${(100 * long) / usable}%`;
    });
    setAttribute(gauge, "aria-label", `${percent(device.used, usable)} in use; nobody is admitted with fewer than ${low} blocks free, and again from ${high} on`);
    gauge.title = gauge.getAttribute("aria-label");
  }

  showSteps(steps) {
    bars($("steps"), steps.map(([, , whole, computing]) => [whole, computing]), STEPS, this.palette);
    if (!steps.length) return setText($("steps-words"), "none yet");
    const sorted = steps.map((step) => step[2]).sort((a, b) => a - b);
    const at = (share) => seconds(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]);
    const [, tokens, whole, computing] = steps[steps.length - 1];
    setText($("steps-words"), `last ${seconds(whole)} (${seconds(computing)} computing) for ${plural(tokens, "token")}; median of ${steps.length}: ${at(0.5)}, p99 ${at(0.99)}`);
  }

  point(tier, block) {
    const codes = this.heading?.codes[tier];
    const name = tier === "host" ? "Host block" : "Block";
    setText($("pointed"), block < 0 || !codes ? "" : `${name} ${count(block)}: ${tier === "device" && block === 0 ? "the null block" : words(codes[block])}`);
  }

  chooseRequest(id, index) {
    this.chosen = { request: id, index, position: -1, block: null };
    if (this.heading && this.heading.request?.line.id !== this.chosen.request) this.heading.request = null;
    this.wake();
  }

  choosePosition(position) {
    this.chosen.position = position;
    this.chosen.block = null;
    if (this.heading) this.inspector.turnTo(position, this.heading.block_size);
    this.redraw();
  }

  chooseBlock(tier, block) {
    const now = this.chosen.block;
    const same = now && now.tier === tier && now.block === block;
    this.chosen.block = same ? null : { tier, block };
    this.wake();
  }
}
