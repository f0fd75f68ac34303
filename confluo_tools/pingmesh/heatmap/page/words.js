"use strict";
const Words = (() => {  // formatting of values, and pieces of the page
  function columns(buffer, names, rows) {
    const found = {};
    const whole = new Uint8Array([1, 0, 0, 0]), little = new Uint32Array(whole.buffer)[0] === 1;
    if (!little) {
      const view = new DataView(buffer), swapped = new Uint32Array(buffer);
      for (let i = 0; i < swapped.length; i++) swapped[i] = view.getUint32(4 * i, true);
    }
    names.forEach((name, i) => { found[name] = new Uint32Array(buffer, 4 * rows * i, rows); });
    return found;
  }
  const RANK = [8, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 0];  // of shades: the highest is drawn for several cells
  function pooled(shades, n, f) {  // the worst shade of each f x f cells
    const m = Math.ceil(n / f), worst = new Uint8Array(m * m).fill(13);
    for (let i = 0; i < n; i++) for (let j = 0, row = Math.floor(i / f) * m; j < n; j++) {
      const at = row + Math.floor(j / f), shade = shades[i * n + j];
      if (RANK[shade] > RANK[worst[at]]) worst[at] = shade;
    }
    return worst;
  }
  function pixels(n, its, lut) {
    const data = new ImageData(n, n), words = new Uint32Array(data.data.buffer);
    for (let i = 0; i < n * n; i++) words[i] = lut[its[i]];
    const made = Object.assign(document.createElement("canvas"), { width: n, height: n });
    made.getContext("2d").putImageData(data, 0, 0);
    return made;
  }
  const three = v => v < 9.995 ? v.toFixed(2) : v < 99.95 ? v.toFixed(1) : v.toFixed(0);
  function latency(units, unit) {
    const us = units * unit / 1000;
    return us < 999.5 ? three(us) + " µs" : us < 999500 ? three(us / 1e3) + " ms" : three(us / 1e6) + " s";
  }
  function rate(dropped, ok) {
    const share = dropped / ok;
    if (!dropped) return "0";
    return share < 1e-4 ? share.toExponential(1) : +(share * 100).toPrecision(2) + " %";
  }
  const count = n => n.toLocaleString("en");
  const pad = n => String(n).padStart(2, "0");
  function element(tag, more, ...inside) {
    const made = Object.assign(document.createElement(tag), more);
    made.append(...inside);
    return made;
  }
  const quoted = name => '"' + name.replaceAll("\\", "\\\\").replaceAll('"', '\\"') + '"';  // in an expression
  const shell = text => "'" + text.replaceAll("'", "'\\''") + "'";
  return { columns, pooled, pixels, latency, rate, count, pad, element, quoted, shell };
})();
