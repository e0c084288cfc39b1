// A pool of blocks as a field of cells. One pixel a block is written into a small picture, which the
// canvas enlarges: 100,000 blocks cost about a millisecond a frame, and nothing while nothing moves.

import { colours, css, mix, packed } from "./palette.js";
import { holders } from "./picture.js";

const LARGEST = 20; // CSS pixels of a cell, unless it is enlarged
const TALLEST = 380;
const GAP_FROM = 5; // device pixels of a cell, from which on there is a line between two
const WORDS_FROM = 17; // and from which on shared ones say by how many
const FADE_SECONDS = 0.7;
const MOST_ZOOM = 32;

export class BlockMap {
  // `onPoint(block)` is called with what the pointer or the cursor is on, or -1; `onPick(block)`
  // when it is chosen.
  constructor(canvas, { onPoint, onPick }) {
    this.canvas = canvas;
    this.paint = canvas.getContext("2d", { alpha: true });
    this.onPoint = onPoint;
    this.onPick = onPick;
    this.codes = new Uint8Array(0);
    this.heat = new Uint8Array(0);
    this.hot = false;
    this.marked = null;
    this.chosen = -1;
    this.cursor = -1;
    this.scale = 1;
    this.left = this.above = 0; // in cells, what is out of sight when enlarged
    this.stale = this.moved = true;
    this.last = 0;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.refit()).observe(canvas.parentElement);
    this.listen();
  }

  dye(palette) {
    this.palette = palette;
    const plain = colours(palette);
    this.lut = Int32Array.from(plain, packed);
    this.faint = Int32Array.from(plain, (colour) => packed(mix(colour, palette.card, 0.82)));
    this.flash = palette.card; // what changed fades in
    this.stale = true;
  }

  show(codes) {
    const before = this.codes;
    this.codes = codes;
    if (codes.length !== before.length) {
      this.heat = new Uint8Array(codes.length);
      this.marked = null;
      this.refit();
      return;
    }
    const quiet = this.still.matches;
    for (let i = 0; i < codes.length; i++) {
      if (codes[i] !== before[i]) {
        this.heat[i] = quiet ? 1 : 255;
        this.hot = true;
      }
    }
  }

  // Blocks that stay as they are while all others fade; null for none.
  mark(blocks) {
    if (blocks === null && this.marked === null) return;
    this.marked = blocks && new Uint8Array(this.codes.length);
    if (blocks) for (const block of blocks) this.marked[block] = 1;
    this.stale = true;
  }

  choose(block) {
    if (block !== this.chosen) this.moved = true;
    this.chosen = block;
  }

  // Enlarges by a factor around the chosen block, or the middle.
  zoom(factor) {
    const centre = this.chosen >= 0 ? this.chosen : -1;
    const x = centre < 0 ? this.left + this.columns / this.scale / 2 : (centre % this.columns) + 0.5;
    const y = centre < 0 ? this.above + this.rows / this.scale / 2 : Math.floor(centre / this.columns) + 0.5;
    this.scale = Math.min(MOST_ZOOM, Math.max(1, this.scale * factor));
    this.look(x - this.columns / this.scale / 2, y - this.rows / this.scale / 2);
  }

  look(left, above) {
    this.left = Math.min(Math.max(0, left), this.columns - this.columns / this.scale);
    this.above = Math.min(Math.max(0, above), this.rows - this.rows / this.scale);
    this.canvas.style.cursor = this.scale > 1 ? "grab" : "";
    this.moved = true;
  }

  refit() {
    const total = this.codes.length;
    const ratio = window.devicePixelRatio || 1;
    const width = Math.floor(this.canvas.parentElement.clientWidth * ratio);
    if (!total || !width) return;
    let cell = Math.max(1, Math.round(LARGEST * ratio));
    while (cell > 1 && Math.ceil(total / Math.floor(width / cell)) * cell > TALLEST * ratio) cell--;
    this.cell = cell;
    this.columns = Math.floor(width / cell);
    this.rows = Math.ceil(total / this.columns);
    this.canvas.width = this.columns * cell;
    this.canvas.height = this.rows * cell;
    this.canvas.style.width = `${this.canvas.width / ratio}px`;
    this.canvas.style.height = `${this.canvas.height / ratio}px`;
    this.small = new OffscreenCanvas(this.columns, this.rows);
    this.ink = this.small.getContext("2d");
    this.image = this.ink.createImageData(this.columns, this.rows);
    this.pixels = new Int32Array(this.image.data.buffer);
    this.look(this.left, this.above);
    this.stale = true;
  }

  // Draws if there is anything new. Called once a frame.
  frame(now) {
    const passed = Math.min(0.1, (now - this.last) / 1000);
    this.last = now;
    if (!this.pixels || !this.lut) return;
    if (this.stale) this.colour();
    if (this.hot) this.cool(Math.ceil((255 * passed) / FADE_SECONDS));
    else if (!this.stale && !this.moved) return;
    if (this.stale || this.hot || this.wasHot) this.ink.putImageData(this.image, 0, 0);
    this.wasHot = this.hot;
    this.stale = this.moved = false;
    this.draw();
  }

  colour() {
    const { codes, pixels, lut, faint, marked } = this;
    for (let i = 0; i < codes.length; i++) {
      pixels[i] = marked && !marked[i] ? faint[codes[i]] : lut[codes[i]];
    }
  }

  cool(by) {
    const { codes, heat, pixels, lut, faint, marked, flash } = this;
    const [red, green, blue] = flash;
    let hot = false;
    for (let i = 0; i < codes.length; i++) {
      if (heat[i] === 0) continue;
      const left = heat[i] > by ? heat[i] - by : 0;
      heat[i] = left;
      const away = marked !== null && marked[i] === 0;
      const base = away ? faint[codes[i]] : lut[codes[i]];
      if (left === 0 || away) {
        pixels[i] = base;
        continue;
      }
      hot = true;
      const r = base & 255, g = (base >> 8) & 255, b = (base >> 16) & 255;
      pixels[i] =
        (255 << 24) |
        ((b + (((blue - b) * left) >> 8)) << 16) |
        ((g + (((green - g) * left) >> 8)) << 8) |
        (r + (((red - r) * left) >> 8));
    }
    this.hot = hot;
  }

  draw() {
    const { paint, canvas, scale, columns, rows, left, above } = this;
    const size = this.cell * scale;
    paint.clearRect(0, 0, canvas.width, canvas.height);
    paint.imageSmoothingEnabled = false;
    paint.drawImage(this.small, left, above, columns / scale, rows / scale, 0, 0, canvas.width, canvas.height);
    if (size >= GAP_FROM) this.rule(size);
    if (size >= WORDS_FROM) this.number(size);
    if (this.cursor >= 0) this.ring(this.cursor, size, css(this.palette.ink));
    if (this.chosen >= 0) this.ring(this.chosen, size, css(this.palette.accent));
  }

  rule(size) {
    const { paint, canvas } = this;
    paint.fillStyle = css(this.palette.card);
    const line = size >= 12 ? 2 : 1;
    for (let x = -(this.left % 1) * size; x < canvas.width; x += size) paint.fillRect(Math.round(x + size) - line, 0, line, canvas.height);
    for (let y = -(this.above % 1) * size; y < canvas.height; y += size) paint.fillRect(0, Math.round(y + size) - line, canvas.width, line);
  }

  number(size) {
    const { paint, codes, columns } = this;
    paint.font = `600 ${Math.round(Math.min(size * 0.5, 22))}px system-ui, sans-serif`;
    paint.textAlign = "center";
    paint.textBaseline = "middle";
    paint.fillStyle = css(this.palette.card);
    const lastRow = Math.min(this.rows, Math.ceil(this.above + this.rows / this.scale));
    const lastColumn = Math.min(columns, Math.ceil(this.left + columns / this.scale));
    for (let row = Math.floor(this.above); row < lastRow; row++) {
      for (let column = Math.floor(this.left); column < lastColumn; column++) {
        const tables = holders(codes[row * columns + column]);
        if (tables < 2) continue;
        paint.fillText(tables, (column - this.left + 0.5) * size, (row - this.above + 0.52) * size);
      }
    }
  }

  ring(block, size, colour) {
    const x = ((block % this.columns) - this.left) * size;
    const y = (Math.floor(block / this.columns) - this.above) * size;
    const around = Math.max(2, 7 - size / 2);
    this.paint.strokeStyle = colour;
    this.paint.lineWidth = Math.max(2, (window.devicePixelRatio || 1) * 1.5);
    this.paint.strokeRect(x - around / 2, y - around / 2, size + around - 1, size + around - 1);
  }

  // The block under a pointer, or -1.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(this.left + ((event.clientX - box.left) / box.width) * (this.columns / this.scale));
    const row = Math.floor(this.above + ((event.clientY - box.top) / box.height) * (this.rows / this.scale));
    const block = row * this.columns + column;
    return column >= 0 && column < this.columns && block >= 0 && block < this.codes.length ? block : -1;
  }

  // The middle of a block in CSS pixels from the canvas' corner; for whoever has to click there.
  middle(block) {
    const size = (this.cell * this.scale) / (window.devicePixelRatio || 1);
    return {
      x: ((block % this.columns) - this.left + 0.5) * size,
      y: (Math.floor(block / this.columns) - this.above + 0.5) * size,
    };
  }

  point(block) {
    if (block === this.cursor) return;
    this.cursor = block;
    this.moved = true;
    this.onPoint(block);
  }

  listen() {
    const { canvas } = this;
    let grip = null;
    canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, y: event.clientY, left: this.left, above: this.above, dragged: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!grip || this.scale === 1) return this.point(this.at(event));
      const ratio = (window.devicePixelRatio || 1) / (this.cell * this.scale);
      const across = (event.clientX - grip.x) * ratio, down = (event.clientY - grip.y) * ratio;
      if (Math.hypot(event.clientX - grip.x, event.clientY - grip.y) < 5 && !grip.dragged) return;
      grip.dragged = true;
      this.look(grip.left - across, grip.above - down);
    });
    canvas.addEventListener("pointerleave", () => {
      grip = null;
      this.point(-1);
    });
    canvas.addEventListener("click", (event) => {
      const dragged = grip?.dragged;
      grip = null;
      const block = this.at(event);
      if (!dragged && block >= 0) this.onPick(block);
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.25 : 0.8);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (event.key in steps) {
      const next = (this.cursor < 0 ? Math.max(0, this.chosen) : this.cursor) + steps[event.key];
      if (next >= 0 && next < this.codes.length) this.point(next);
    } else if (event.key === "Enter" || event.key === " ") {
      if (this.cursor >= 0) this.onPick(this.cursor);
    } else if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? 1.5 : 1 / 1.5);
    else return;
    event.preventDefault();
  }
}
