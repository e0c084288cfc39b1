// Reads the pictures that /debug/look sends; cluster/picture.py says how they are written.

export const COPIED = 128;
const text = new TextDecoder();

export const NAMES = { free: "free", cached: "free, findable", held: "held by one table" };

// What a code says, in words.
export function words(code) {
  const moving = code & COPIED ? ", being copied" : "";
  const kind = code & 127;
  if (kind === 0) return NAMES.free + moving;
  if (kind === 1) return NAMES.cached + moving;
  if (kind === 2) return NAMES.held + moving;
  return `shared by ${kind === 127 ? "126 or more" : kind - 1} tables${moving}`;
}

// How many tables hold a block.
export const holders = (code) => Math.max(0, (code & 127) - 1);

export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const heading = JSON.parse(text.decode(new Uint8Array(buffer, 4, length)));
  const at = 4 + length;
  heading.codes = {
    device: codes(buffer, at, heading.device),
    host: codes(buffer, at + heading.device.size, heading.host),
  };
  return heading;
}

// Films, see cluster/playback/film.py: {films: [{frames: [{..., codes}]}]}.
export function decodeFilms(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { films } = JSON.parse(text.decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  for (const film of films) {
    film.frames = film.frames.map((values) => {
      const frame = Object.fromEntries(FRAME.map((name, i) => [name, values[i]]));
      const tier = { total: film.total, runs: frame.runs };
      const begin = at;
      at += frame.size;
      Object.defineProperty(frame, "codes", { get: () => codes(buffer, begin, tier) });
      return frame;
    });
  }
  return films;
}

const FRAME = ["at", "step", "running", "waiting", "finished", "preempted", "used", "cached", "tokens", "reserved", "wasted", "size", "runs"];

function codes(buffer, at, tier) {
  if (tier.runs < 0) return new Uint8Array(buffer, at, tier.total);
  const all = new Uint8Array(tier.total);
  const lengths = new DataView(buffer, at, 4 * tier.runs);
  const kinds = new Uint8Array(buffer, at + 4 * tier.runs, tier.runs);
  let start = 0;
  for (let run = 0; run < tier.runs; run++) {
    const end = start + lengths.getUint32(4 * run, true);
    all.fill(kinds[run], start, end);
    start = end;
  }
  return all;
}
