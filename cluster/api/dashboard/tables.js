// The tables of requests and of replicas.

import { count, keep, make, percent, plural, seconds, setAttribute, setText } from "./dom.js";

const shorten = (id) => (id.length > 22 ? `${id.slice(0, 12)}…${id.slice(-8)}` : id);

function cells(row, texts) {
  texts.forEach((text, i) => setText(row.children[i + 1], text));
}

export class RequestTable {
  constructor(table, words, onPick) {
    this.body = table.tBodies[0];
    this.words = words;
    this.onPick = onPick;
  }

  show(heading, chosen) {
    const lines = [...heading.running, ...heading.waiting];
    keep(this.body, lines, (line) => line.id, (line) => this.create(line), (row, line) => {
      setAttribute(row, "aria-selected", line.id === chosen);
      const blocks = line.host_blocks ? `${count(line.blocks)} + ${count(line.host_blocks)}` : count(line.blocks);
      const tokens = line.prompt * line.sequences + line.generated;
      const several = line.sequences > 1 ? `${line.state} ×${line.sequences}` : line.state;
      cells(row, [several, `${count(line.computed)}/${count(tokens)}`, count(line.cached), blocks, count(line.preemptions), seconds(line.age)]);
    });
    const hidden = heading.num_running + heading.num_waiting - lines.length;
    const more = hidden > 0 ? `; ${count(hidden)} of them not listed` : "";
    setText(this.words, lines.length ? `${count(heading.num_running)} running, ${count(heading.num_waiting)} waiting${more}` : "none under way");
  }

  create(line) {
    const name = make("button", { class: "text", title: line.id, onclick: () => this.onPick(line.id) }, shorten(line.id));
    const row = make("tr", {}, make("td", {}, name), make("td"));
    for (const wide of [false, true, false, true, true]) row.append(make("td", { class: wide ? "number wide" : "number" }));
    return row;
  }
}

const REASONS = {
  prefix: "holds most of its prefix",
  queue: "others had too much to do",
  new: "prefix new to all",
  load: "least to do",
  none: "nothing known",
  elsewhere: "another could not be had",
};

export class ReplicaTable {
  constructor(table, words) {
    this.body = table.tBodies[0];
    this.words = words;
  }

  show(overview) {
    const several = overview.models.length > 1;
    keep(this.body, overview.replicas, (each) => `${each.model} ${each.replica}`, () => this.create(), (row, each) => {
      setText(row.children[0], several ? `${each.model} · ${each.replica}` : each.replica);
      const routed = Object.entries(each.routed).filter(([, times]) => times > 0);
      cells(row, [
        each.fault ?? "serves",
        count(each.running),
        count(each.waiting),
        percent(each.blocks_used, each.blocks),
        each.recent_ttft ? seconds(each.recent_ttft) : "–",
        percent(each.prefix_cache_hits, each.prefix_cache_queries),
        routed.map(([reason, times]) => `${REASONS[reason] ?? reason.replaceAll("_", " ")} ${count(times)}`).join(", ") || (overview.num_replicas > 1 ? "nothing yet" : "the only one"),
      ]);
    });
    setText(this.words, plural(overview.num_replicas, "replica"));
  }

  create() {
    const row = make("tr", {}, make("td"), make("td"));
    for (let i = 0; i < 5; i++) row.append(make("td", { class: "number" }));
    row.append(make("td"));
    return row;
  }
}
