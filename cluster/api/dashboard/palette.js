// The map's colours, out of theme.css as the reader's system resolves them.

const NAMES = ["card", "ink", "accent", "line", "quiet", "free", "cached", "held", "shared", "shared-most", "moving"];
const MOST_TABLES = 126;
const FULL_AT = 16; // tables, from which on a shared block is as strong as can be

// {name: [red, green, blue]}
export function readPalette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const dot = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const palette = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    dot.fillStyle = getComputedStyle(probe).color;
    dot.fillRect(0, 0, 1, 1);
    palette[name] = [...dot.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  }
  probe.remove();
  return palette;
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

export function mix(from, to, share) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * share));
}

export const packed = ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red;

// The colour of each code that a block can have, see picture.js.
export function colours(palette) {
  const plain = [palette.free, palette.cached, palette.held];
  for (let tables = 2; tables <= MOST_TABLES; tables++) {
    const share = Math.min(1, Math.log2(tables / 2) / Math.log2(FULL_AT / 2));
    plain.push(mix(palette.shared, palette["shared-most"], share));
  }
  return [...plain, ...plain.map(() => palette.moving)];
}
