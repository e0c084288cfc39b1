// Lines and bars. Those of a row of figures have no axes: they are shapes beside numbers.

import { css, mix } from "./palette.js";

const LEFT = 44, RIGHT = 8, BELOW = 18, ABOVE = 8; // CSS pixels around a chart with axes
const FONT = "12px system-ui, sans-serif";

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const paint = canvas.getContext("2d");
  paint.setTransform(1, 0, 0, 1, 0, 0);
  paint.clearRect(0, 0, width, height);
  return { paint, width, height, ratio };
}

// A line through the latest values, the newest at the right; `room` is how many fit.
export function line(canvas, values, room, palette) {
  const { paint, width, height, ratio } = prepare(canvas);
  const most = Math.max(...values, 1e-9);
  paint.beginPath();
  values.forEach((value, i) => {
    const x = width - ((values.length - 1 - i) * width) / (room - 1);
    const y = height - ratio - (value / most) * (height - 3 * ratio);
    if (i === 0) paint.moveTo(x, y);
    else paint.lineTo(x, y);
  });
  paint.strokeStyle = css(palette.held);
  paint.lineWidth = 1.5 * ratio;
  paint.lineJoin = "round";
  paint.stroke();
}

// Several courses over one stretch of seconds: each {points: [[at, value]], colour, filled}, a value
// holding until the next one. `levels` are dashed lines across, `marks` moments on the floor, `now`
// is where one goes down. The axis at the left goes up to `most`.
export function courses(canvas, drawn, { last, most, levels = [], marks = [], now }, palette) {
  const { paint, ratio } = prepare(canvas);
  paint.scale(ratio, ratio);
  const width = canvas.clientWidth, floor = canvas.clientHeight - BELOW;
  const x = (at) => LEFT + (at / Math.max(last, 1e-9)) * (width - LEFT - RIGHT);
  const y = (value) => floor - (value / Math.max(most, 1e-9)) * (floor - ABOVE);
  axes(paint, { width, floor, x, y, last, most }, palette);
  for (const { points, colour, filled } of drawn) {
    const path = stairs(points, x, y);
    if (filled) {
      paint.fillStyle = css(mix(colour, palette.card, 0.84));
      const area = new Path2D(path);
      area.lineTo(Math.min(x(last), x(points.at(-1)[0])), floor);
      area.lineTo(x(points[0][0]), floor);
      paint.fill(area);
    }
    paint.lineWidth = 1.5;
    paint.strokeStyle = css(colour);
    paint.stroke(path);
  }
  paint.lineWidth = 1;
  paint.strokeStyle = css(palette.moving);
  paint.setLineDash([4, 4]);
  for (const level of levels) across(paint, LEFT, width - RIGHT, y(level));
  paint.setLineDash([]);
  paint.fillStyle = css(palette.moving);
  for (const at of marks) paint.fillRect(x(at) - 0.75, floor - 7, 1.5, 7);
  paint.fillStyle = css(palette.ink);
  paint.fillRect(x(now) - 0.5, ABOVE - 4, 1, floor - ABOVE + 4);
}

// The moment that a pointer is at.
export function momentAt(canvas, event, last) {
  const box = canvas.getBoundingClientRect();
  const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
  return Math.min(1, Math.max(0, share)) * last;
}

function axes(paint, { width, floor, x, y, last, most }, palette) {
  paint.font = FONT;
  paint.textBaseline = "middle";
  paint.textAlign = "right";
  paint.fillStyle = css(palette.quiet);
  paint.strokeStyle = css(palette.line);
  paint.lineWidth = 1;
  for (const value of [0, most / 2, most]) {
    if (value !== Math.round(value)) continue;
    across(paint, LEFT, width - RIGHT, y(value));
    paint.fillText(value.toLocaleString("en"), LEFT - 6, y(value));
  }
  paint.textBaseline = "alphabetic";
  const step = round(last / Math.max(2, Math.floor((width - LEFT) / 110)));
  for (let at = 0; at <= last * 1.0001; at += step) {
    paint.textAlign = at === 0 ? "left" : "center";
    if (x(at) < width - 24) paint.fillText(`${Number(at.toPrecision(6))} s`, x(at), floor + 14);
  }
}

function across(paint, from, to, y) {
  paint.beginPath();
  paint.moveTo(from, Math.round(y) + 0.5);
  paint.lineTo(to, Math.round(y) + 0.5);
  paint.stroke();
}

function stairs(points, x, y) {
  const path = new Path2D();
  points.forEach(([at, value], i) => {
    if (i === 0) path.moveTo(x(at), y(value));
    else {
      path.lineTo(x(at), y(points[i - 1][1]));
      path.lineTo(x(at), y(value));
    }
  });
  return path;
}

// 1, 2 or 5 times a power of ten, and no less than that.
function round(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 5, 10].find((each) => each * power >= value) * power;
}

// One bar a step, [whole, part of it]: the part is drawn over the whole.
export function bars(canvas, values, room, palette) {
  const { paint, width, height } = prepare(canvas);
  const most = Math.max(...values.map(([whole]) => whole), 1e-9);
  const each = width / room;
  values.forEach(([whole, part], i) => {
    const x = Math.round(width - (values.length - i) * each);
    const wide = Math.max(1, Math.round(each) - 1);
    for (const [value, colour] of [[whole, palette.cached], [Math.min(part, whole), palette.held]]) {
      const tall = Math.max(1, Math.round((value / most) * height));
      paint.fillStyle = css(colour);
      paint.fillRect(x, height - tall, wide, tall);
    }
  });
}
