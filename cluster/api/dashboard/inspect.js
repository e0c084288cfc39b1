// What is pointed at: a request, one of its tokens, or a block; and how a token's position leads to
// the place in memory where its state is.

import { count, keep, make, plural, setAttribute, setText } from "./dom.js";
import { holders, words } from "./picture.js";

const LEAVES = 24; // logical blocks on a page

export class Inspector {
  // `pick` is what a click chooses: {block(tier, number), position(number), request(id, index)}.
  constructor(element, pick) {
    this.pick = pick;
    this.page = 0;
    this.shownFor = "";
    this.hint = make("p", { class: "quiet" }, "Choose a request, then one of its tokens, or a block of the map.");
    this.gone = make("p", { class: "quiet" });
    this.block = new BlockPart(pick);
    this.facts = make("dl", { class: "facts" });
    this.samples = make("select", { "aria-label": "Sequence", onchange: () => this.pick.request(this.detail.line.id, Number(this.samples.value)) });
    this.position = make("input", { inputmode: "numeric", size: 7, "aria-label": "Position", id: "position", autocomplete: "off" });
    const ask = make("form", { class: "row" }, make("label", {}, "Position ", this.position), make("button", { class: "plain" }, "Follow"), this.samples);
    ask.addEventListener("submit", (event) => {
      event.preventDefault();
      const wanted = Number(this.position.value);
      if (Number.isInteger(wanted) && wanted >= 0) this.pick.position(wanted);
    });
    this.path = make("p", { class: "path", id: "path", "aria-live": "polite" });
    this.leaves = make("div", { class: "leaves", id: "leaves" });
    this.leaves.addEventListener("click", (event) => this.clicked(event.target));
    this.turn = make("div", { class: "row" });
    this.back = make("button", { class: "plain", onclick: () => this.leaf(-1) }, "Before");
    this.on = make("button", { class: "plain", onclick: () => this.leaf(1) }, "After");
    this.pages = make("span", { class: "quiet" });
    this.turn.append(this.back, this.on, this.pages);
    const kinds = [["prompt", "prompt"], ["answer", "generated"], ["known", "to be computed"], ["free", "no token yet"]];
    const legend = make("ul", { class: "legend" }, ...kinds.map(([kind, name]) => make("li", {}, make("i", { class: `swatch ${kind}` }), name)));
    this.request = make("div", {}, this.facts, ask, this.path, this.leaves, this.turn, legend);
    element.append(this.hint, this.gone, this.block.element, this.request);
    this.show(null, { request: "", position: -1, block: null });
  }

  // `chosen` is {request, index, position, block: {tier, block} or null}.
  show(heading, chosen) {
    const detail = heading?.request ?? null;
    this.detail = detail;
    this.hint.hidden = Boolean(chosen.request || chosen.block);
    this.gone.hidden = !(chosen.request && heading && !detail);
    setText(this.gone, chosen.request ? `Request ${chosen.request} has ended; its blocks are free again, and some can still be found.` : "");
    this.block.show(heading, chosen.block);
    this.request.hidden = detail === null;
    if (detail === null) return;
    const owner = `${detail.line.id} ${detail.index}`;
    if (owner !== this.shownFor) this.page = 0;
    this.shownFor = owner;
    const size = heading.block_size;
    this.showFacts(detail, size);
    this.showPath(detail, size, chosen.position);
    this.showLeaves(heading, detail, chosen);
  }

  turnTo(position, size) {
    this.page = Math.floor(position / size / LEAVES);
  }

  showFacts(detail, size) {
    const { line } = detail;
    const unused = detail.table.length * size - Math.min(detail.granted, detail.table.length * size);
    const facts = [
      ["Request", line.id],
      ["State", line.state],
      ["Prompt", plural(detail.prompt, "token")],
      ["Found in the cache", plural(line.cached, "token")],
      ["Generated", plural(detail.tokens - detail.prompt, "token")],
      ["Computed", `${count(detail.computed)} of ${count(detail.tokens)}`],
      ["Block table", plural(detail.table.length, "entry", "entries")],
      ["Slots not used yet", count(unused)],
      ["Preempted", plural(line.preemptions, "time")],
    ];
    if (detail.host_table.length) facts.push(["On the host", plural(detail.host_table.length, "block")]);
    if (detail.reserved.length) facts.push(["Reserved", plural(detail.reserved.length, "block")]);
    fillFacts(this.facts, facts);
    this.samples.hidden = detail.sequences.length < 2;
    keep(this.samples, detail.sequences, (each) => each.index, (each) => make("option", { value: each.index }), (option, each) =>
      setText(option, `sequence ${each.index}: ${plural(each.tokens, "token")}`));
    if (document.activeElement !== this.samples) this.samples.value = detail.index;
  }

  showPath(detail, size, position) {
    const found = position >= 0 ? follow(detail, size, position) : null;
    const key = JSON.stringify([position, found]);
    if (key === this.pathKey) return;
    this.pathKey = key;
    this.path.replaceChildren(...(position < 0 ? [make("span", { class: "quiet" }, "Each row is a block: its logical number, the block it is kept in, and its tokens. Choose one.")] : steps(position, found)));
  }

  showLeaves(heading, detail, chosen) {
    const size = heading.block_size;
    const onHost = detail.table.length === 0 && detail.host_table.length > 0;
    const table = onHost ? detail.host_table : detail.table;
    const tier = onHost ? "host" : "device";
    const all = Math.max(table.length, Math.ceil(detail.tokens / size));
    const last = Math.max(0, Math.ceil(all / LEAVES) - 1);
    this.page = Math.min(this.page, last);
    const first = this.page * LEAVES;
    const rows = Array.from({ length: Math.min(LEAVES, all - first) }, (_, i) => first + i);
    const codes = heading.codes[tier];
    keep(this.leaves, rows, (place) => `${place}/${size}`, (place) => leaf(place, size), (row, place) => {
      const block = place < table.length ? table[place] : null;
      const [, name, cells] = row.children;
      setText(name, block === null ? "no block" : tables(block, tier, codes));
      name.disabled = block === null;
      name.dataset.block = block === null ? "" : `${tier} ${block}`;
      setAttribute(row, "data-chosen", chosen.block !== null && chosen.block.tier === tier && chosen.block.block === block);
      for (const cell of cells.children) {
        const position = Number(cell.dataset.position);
        cell.dataset.kind = kindOf(detail, position);
        cell.disabled = position >= detail.tokens;
        setAttribute(cell, "aria-pressed", position === chosen.position);
      }
    });
    this.turn.hidden = last === 0;
    this.back.disabled = this.page === 0;
    this.on.disabled = this.page === last;
    setText(this.pages, `logical blocks ${first}–${first + rows.length - 1} of ${count(all)}`);
  }

  leaf(by) {
    this.page = Math.max(0, this.page + by);
    this.pick.again();
  }

  clicked(target) {
    if (target.dataset.position && !target.disabled) this.pick.position(Number(target.dataset.position));
    else if (target.dataset.block) {
      const [tier, block] = target.dataset.block.split(" ");
      this.pick.block(tier, Number(block));
    }
  }
}

// Where the state of a position is: {place, offset, tier, block, slot}, with block null where there
// is none.
export function follow(detail, size, position) {
  const place = Math.floor(position / size), offset = position % size;
  const onHost = detail.table.length === 0 && detail.host_table.length > 0;
  const table = onHost ? detail.host_table : detail.table;
  const block = place < table.length && position < detail.tokens ? table[place] : null;
  return { place, offset, tier: onHost ? "host" : "device", block, slot: block === null ? null : block * size + offset };
}

function steps(position, found) {
  const part = (words, value) => make("span", {}, `${words} `, make("b", {}, String(value)));
  const arrow = () => make("span", { class: "arrow", "aria-label": "leads to" }, "→");
  const start = [part("position", position), arrow(), part("logical block", found.place), part("offset", found.offset), arrow()];
  if (found.block === null) return [...start, make("span", { class: "quiet" }, "no block yet")];
  return [...start, part(`${found.tier === "host" ? "host" : "physical"} block`, found.block), arrow(), part("slot", found.slot)];
}

function kindOf(detail, position) {
  if (position >= detail.tokens) return "empty";
  if (position >= detail.computed && !(position < detail.host_table.length)) return "known";
  return position < detail.prompt ? "prompt" : "answer";
}

function tables(block, tier, codes) {
  const held = codes ? holders(codes[block]) : 0;
  const name = tier === "host" ? `host ${block}` : `${block}`;
  return held > 1 ? `${name} ×${held}` : name;
}

function leaf(place, size) {
  const cells = make("span", { class: "cells" });
  for (let offset = 0; offset < size; offset++) {
    const position = place * size + offset;
    cells.append(make("button", { class: "cell", type: "button", tabindex: -1, "data-position": position, "aria-label": `position ${position}` }));
  }
  return make("div", { class: "leaf" }, make("span", {}, String(place)), make("button", { class: "text", type: "button" }), cells);
}

function fillFacts(list, facts) {
  keep(list, facts, ([name]) => name, ([name]) => make("div", { "data-fact": name }, make("dt", {}, name), make("dd")), (pair, [, value]) =>
    setText(pair.lastChild, value));
}

class BlockPart {
  constructor(pick) {
    this.pick = pick;
    this.facts = make("dl", { class: "facts", id: "block-facts" });
    this.list = make("ul", { class: "holders", id: "holders" });
    this.element = make("div", {}, this.facts, this.list);
  }

  show(heading, chosen) {
    const detail = heading?.block ?? null;
    const known = chosen && detail && detail.tier === chosen.tier && detail.block === chosen.block;
    this.element.hidden = !known;
    if (!known) return;
    const first = detail.block * heading.block_size;
    const code = heading.codes[detail.tier][detail.block];
    const facts = [
      [detail.tier === "host" ? "Host block" : "Block", String(detail.block)],
      ["It is", detail.tier === "device" && detail.block === 0 ? "the null block, never used" : words(code)],
      ["Tables that hold it", count(detail.held)],
      ["Slots", `${first}–${first + heading.block_size - 1}`],
      ["Content's name", detail.name ? `${detail.name.slice(0, 16)}…` : "none: not full, or not there"],
    ];
    if (detail.move) facts.push(["Moves", detail.move.replace("_", " ")]);
    fillFacts(this.facts, facts);
    keep(this.list, detail.holders, (each) => `${each.request} ${each.index}`, (each) => make("li", {}, make("button", { class: "text", type: "button", onclick: () => this.pick.request(each.request, each.index) })), (item, each) => {
      const where = each.place < 0 ? "reserved" : `logical block ${each.place}`;
      const name = each.request.length > 22 ? `${each.request.slice(0, 12)}…${each.request.slice(-8)}` : each.request;
      setText(item.firstChild, `${name}${each.index ? ` sequence ${each.index}` : ""}: ${where}`);
    });
  }
}
