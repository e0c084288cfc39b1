// Lines and bars without axes: shapes, beside figures that say the numbers.

import { css } from "./palette.js";

function prepare(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const paint = canvas.getContext("2d");
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

// Several courses over one stretch of time: each {points: [[at, value]], colour}, values up to
// `most`; `levels` are lines across, `now` is where one goes down.
export function courses(canvas, drawn, { last, most, levels, now }, palette) {
  const { paint, width, height, ratio } = prepare(canvas);
  const x = (at) => (at / Math.max(last, 1e-9)) * width;
  const y = (value) => height - ratio - (value / most) * (height - 3 * ratio);
  paint.lineWidth = ratio;
  paint.strokeStyle = css(palette.moving);
  paint.setLineDash([4 * ratio, 4 * ratio]);
  for (const level of levels) stroke(paint, [[0, y(level)], [width, y(level)]]);
  paint.setLineDash([]);
  paint.lineWidth = 1.75 * ratio;
  for (const { points, colour } of drawn) {
    paint.strokeStyle = css(colour);
    stroke(paint, points.map(([at, value]) => [x(at), y(value)]));
  }
  paint.lineWidth = ratio;
  paint.strokeStyle = css(palette.ink);
  stroke(paint, [[x(now), 0], [x(now), height]]);
}

function stroke(paint, points) {
  paint.beginPath();
  points.forEach(([x, y], i) => (i === 0 ? paint.moveTo(x, y) : paint.lineTo(x, y)));
  paint.stroke();
}

// One bar a step, [whole, part of it]: the part is drawn over the whole.
export function bars(canvas, values, room, palette) {
  const { paint, width, height } = prepare(canvas);
  const most = Math.max(...values.map(([whole]) => whole), 1e-9);
  const each = width / room;
  values.forEach(([whole, part], i) => {
    const x = Math.round(width - (values.length - i) * each);
    const wide = Math.max(1, Math.round(each) - 1);
    for (const [value, colour] of [[whole, palette.free], [Math.min(part, whole), palette.held]]) {
      const tall = Math.max(1, Math.round((value / most) * height));
      paint.fillStyle = css(colour);
      paint.fillRect(x, height - tall, wide, tall);
    }
  });
}
