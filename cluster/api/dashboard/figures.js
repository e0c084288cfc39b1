// The row of figures: each with its course over the last minute or so.

import { line } from "./charts.js";
import { count, make, percent, rate, seconds, setText } from "./dom.js";

const KEPT = 90; // looks, one a second
const LEAST = 30; // of them, from the left to the right
const AVERAGED = 10; // looks, over which rates are taken

const sum = (overview, field) => overview.replicas.reduce((all, each) => all + each[field], 0);

// Each: its name, the value to draw, and the words for it and for what stands below, out of the
// newest overview and what changed since `AVERAGED` looks ago: {seconds, of(field)}.
const FIGURES = [
  ["Running", (now) => sum(now, "running"), (now) => [count(sum(now, "running")), `of ${count(sum(now, "max_num_seqs"))} at once`]],
  ["Waiting", (now) => sum(now, "waiting"), (now) => [count(sum(now, "waiting")), `${count(sum(now, "blocks_queued"))} blocks wanted`]],
  ["Cache in use", (now) => sum(now, "blocks_used"), (now) => [
    percent(sum(now, "blocks_used"), sum(now, "blocks")),
    `${count(sum(now, "blocks_used"))} of ${count(sum(now, "blocks"))} blocks`,
  ]],
  ["Generated", (_, since) => since.rate("generation_tokens"), (now, since) => [
    `${rate(since.rate("generation_tokens"))}/s`,
    `${count(sum(now, "generation_tokens"))} tokens in all`,
  ]],
  ["Prompts", (_, since) => since.rate("prompt_tokens"), (now, since) => [
    `${rate(since.rate("prompt_tokens"))}/s`,
    `${count(sum(now, "prompt_tokens"))} tokens in all`,
  ]],
  ["First token, p90", (now) => worst(now), (now) => [
    worst(now) ? seconds(worst(now)) : "–",
    `mean ${mean(now)}`,
  ]],
  ["Preemptions", (now) => perRequest(now), (now) => [
    perRequest(now).toFixed(2),
    `a request; ${count(sum(now, "preemptions"))} in all`,
  ]],
  ["Prefix hit rate", (_, since) => since.share("prefix_cache_hits", "prefix_cache_queries"), (now, since) => [
    percent(since.of("prefix_cache_hits"), since.of("prefix_cache_queries")),
    `${percent(sum(now, "prefix_cache_hits"), sum(now, "prefix_cache_queries"))} in all`,
  ]],
];

const worst = (now) => Math.max(0, ...now.replicas.map((each) => each.recent_ttft));

function mean(now) {
  const observed = now.replicas.reduce((all, each) => all + each.ttft.reduce((a, b) => a + b, 0), 0);
  return observed ? seconds(sum(now, "ttft_sum") / observed) : "–";
}

function perRequest(now) {
  const requests = sum(now, "finished") + sum(now, "running") + sum(now, "waiting");
  return requests ? sum(now, "preemptions") / requests : 0;
}

export class Figures {
  constructor(element) {
    this.looks = [];
    this.parts = FIGURES.map(([name]) => {
      const value = make("b"), below = make("span", { class: "quiet" });
      const canvas = make("canvas", { "aria-hidden": "true" });
      const key = name.toLowerCase().replaceAll(" ", "-");
      element.append(make("div", { class: "figure", "data-figure": key }, make("span", { class: "quiet" }, name), value, below, canvas));
      return { value, below, canvas, course: [] };
    });
  }

  show(overview, at, palette) {
    this.looks.push({ overview, at });
    if (this.looks.length > AVERAGED + 1) this.looks.shift();
    const before = this.looks[0];
    const of = (field) => Math.max(0, sum(overview, field) - sum(before.overview, field));
    const since = {
      of,
      rate: (field) => (at > before.at ? of(field) / (at - before.at) : 0),
      share: (part, whole) => (of(whole) ? of(part) / of(whole) : 0),
    };
    FIGURES.forEach(([, drawn, said], i) => {
      const part = this.parts[i];
      const [value, below] = said(overview, since);
      setText(part.value, value);
      setText(part.below, below);
      part.course.push(drawn(overview, since));
      if (part.course.length > KEPT) part.course.shift();
      line(part.canvas, part.course, Math.max(LEAST, part.course.length), palette);
    });
  }
}
