// What a step takes on each rank of the chosen replica: a mean of the last seconds, out of totals
// that grow with every heartbeat.

import { count, keep, make, percent, seconds, setText } from "./dom.js";

const AVERAGED = 10; // looks, one a second

export class RankTable {
  constructor(table) {
    this.body = table.tBodies[0];
    this.looks = [];
    this.of = "";
  }

  // `ranks` are [steps, seconds, of them exchanging] each, as workers/progress.py has them.
  show(replica, ranks) {
    if (replica !== this.of || ranks.some(([steps], i) => steps < (this.looks.at(-1)?.[i]?.[0] ?? 0))) this.looks = [];
    this.of = replica;
    this.looks.push(ranks);
    if (this.looks.length > AVERAGED + 1) this.looks.shift();
    const means = ranks.map((now, i) => mean(now, this.looks[0][i] ?? now));
    const longest = Math.max(...means.map((each) => each?.step ?? 0), 1e-9);
    keep(this.body, means.map((each, rank) => [rank, each]), ([rank]) => rank, () => create(), (row, [rank, each]) => {
      const [name, step, bar, others, steps] = row.children;
      setText(name, String(rank));
      setText(step, each ? seconds(each.step) : "–");
      const [computing, exchanging] = bar.firstChild.children;
      computing.style.width = `${(100 * (each ? each.step - each.exchanging : 0)) / longest}%`;
      exchanging.style.width = `${(100 * (each?.exchanging ?? 0)) / longest}%`;
      setText(others, each?.exchanging ? `${seconds(each.exchanging)}, ${percent(each.exchanging, each.step)}` : "–");
      setText(steps, count(ranks[rank][0]));
    });
  }
}

// Null where there was no step.
function mean([steps, whole, exchanging], [before, wholeBefore, exchangingBefore]) {
  const more = steps - before;
  return more > 0 ? { step: (whole - wholeBefore) / more, exchanging: (exchanging - exchangingBefore) / more } : null;
}

function create() {
  const bar = make("span", { class: "meter" }, make("i", { class: "computing" }), make("i", { class: "exchanging" }));
  return make("tr", {}, make("td"), make("td", { class: "number" }), make("td", { class: "wide" }, bar), make("td", { class: "number" }), make("td", { class: "number wide" }));
}
