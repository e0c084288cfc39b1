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
