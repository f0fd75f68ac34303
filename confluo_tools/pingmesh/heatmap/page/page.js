(() => {
  const { columns, pooled, pixels, rate, count, pad, element, quoted, shell } = Words;
  const $ = id => document.getElementById(id);
  const head = JSON.parse($("head").textContent);
  const VALUES = ["p50", "p99", "ok", "dropped", "overflow", "failed"];
  const PAIR = ["window", "cell", "src", "dst", "ok", "dropped", "overflow", "failed", "p50", "p99"];
  const CLASS = [0, 1, 1, 1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 4];
  const ABSENT = head.shades - 1;
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const state = {
    map: 0, window: 0, metric: head.metric, palette: head.palette, theme: head.theme,
    focus: -1, hover: -1, kept: false, scale: 0, x: 0, y: 0, playing: 0,
  };
  let colours, lut, picture, small, shades, values, area = { left: 0, top: 0, side: 1 };
  const map = () => head.maps[state.map];
  const size = () => map().names.length;
  const now = () => map().windows[state.window];

  // ---- compressed data

  const unpacked = new Map();  // blob -> promise of its bytes; the oldest are dropped first
  function unpack(blob) {
    if (!unpacked.has(blob)) {
      const text = atob($("b" + blob).textContent), bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
      unpacked.set(blob, new Response(stream).arrayBuffer());
      const most = Math.max(8, Math.floor(4e7 / (size() * size() + 1)));
      for (const old of [...unpacked.keys()].slice(0, Math.max(0, unpacked.size - most))) unpacked.delete(old);
    }
    return unpacked.get(blob);
  }
  // ---- times

  const latency = units => Words.latency(units, head.unit);
  function clock(ms) { const d = new Date(ms); return pad(d.getUTCHours()) + ":" + pad(d.getUTCMinutes())
    + (map().width % 60000 || ms % 60000 ? ":" + pad(d.getUTCSeconds()) : ""); }
  function day(ms) { return new Date(ms).toISOString().slice(0, 10); }
  function span(w) {
    const start = w.start + w.ahead * 1000, zone = " " + w.zone;
    if (!map().width) return "all records from " + day(start) + " " + clock(start) + zone;
    const end = start + map().width, date = day(start);
    return date + " " + clock(start) + " – " + (day(end) === date || clock(end) === "00:00" ? "" : day(end) + " ")
      + clock(end) + zone;
  }
  function shadeOf(p50, p99, ok, dropped, floor) {  // shade of a pair, by the limits alone
    const steps = map().steps, i = state.metric;
    if (i === 2) return !ok ? 0 : !dropped ? 1 : dropped / ok > map().dropRed ? 9 : dropped / ok < map().dropGreen ? 4 : 7;
    const v = (i ? p99 : p50) && Math.max((i ? p99 : p50) - floor, 1);
    let n = 0;
    while (n < steps.length && v >= steps[n]) n++;
    return n;
  }

  // ---- the selected cell

  function facts(cell) {
    const n = size(), m = map();
    const box = element("dl", { className: "values" });
    const line = (name, value, current) => box.append(
      element("dt", { textContent: name, className: current ? "now" : "" }),
      element("dd", { textContent: value, className: current ? "now" : "" }));
    if (shades[cell] === ABSENT) line("no probes expected", "");
    else if (!values) line("…", "");
    else {
      const v = name => values[name][cell], ok = v("ok"), failed = v("failed"), drops = v("dropped");
      if (v("p50")) line("P50", latency(v("p50")), state.metric === 0);
      if (v("p99")) line("P99", latency(v("p99")), state.metric === 1);
      if (m.floor[cell]) line("lowest median of both", latency(m.floor[cell]));
      if (ok) line("drop rate", rate(drops, ok), state.metric === 2);
      line("probes", count(ok + failed));
      if (drops) line("dropped", count(drops));
      if (v("overflow")) line("dropped by its host", count(v("overflow")));
      if (failed || !ok) line("not answered", failed || ok ? count(failed) : "–");
    }
    return { title: m.names[Math.floor(cell / n)] + " → " + m.names[cell % n], box };
  }
  function showTip() {
    const tip = $("tip"), cell = state.hover >= 0 ? state.hover : state.focus;
    if (cell < 0 || !shades) { tip.hidden = true; return; }
    const { title, box } = facts(cell);
    tip.replaceChildren(element("b", { textContent: title }), box);
    tip.hidden = false;
    const n = size(), c = state.scale, stage = $("stage").getBoundingClientRect();
    const x = state.x + (cell % n + 1) * c, y = state.y + (Math.floor(cell / n) + 1) * c;
    const w = tip.offsetWidth, h = tip.offsetHeight;
    tip.style.left = Math.max(0, x + 10 + w < stage.width ? x + 10 : x - c - w - 10) + "px";
    tip.style.top = Math.max(0, Math.min(y + 8 + h < stage.height ? y + 8 : y - c - h - 8, stage.height - h)) + "px";
  }
  async function showCell() {
    const box = $("cell"), cell = state.kept ? state.focus : -1;
    if (cell < 0) {
      box.replaceChildren(element("p", { className: "hint", textContent:
        "Point at a cell for its values; click it, or press Enter, for its pairs of servers." }));
      return;
    }
    const m = map(), n = size(), at = state.window, { title, box: list } = facts(cell);
    const parts = [element("h3", { textContent: title }), list];
    const line = element("canvas", {});
    const many = m.windows.length > 1 && shades[cell] !== ABSENT && m.windows.length * n * n <= 4e6;
    if (many) parts.push(line, element("p", { className: "hint", textContent:
      head.metrics[state.metric] + " in all windows" }));
    const pairs = m.pairs.rows ? columns(await unpack(m.pairs.blob), PAIR, m.pairs.rows) : null;
    if (cell !== state.focus || at !== state.window || !state.kept) return;  // the selection has changed
    const rows = [];
    if (pairs) for (let i = 0; i < m.pairs.rows; i++) if (pairs.cell[i] === cell && pairs.window[i] === at) rows.push(i);
    parts.push(...inside(cell));
    if (rows.length) parts.push(table(pairs, rows));
    else parts.push(...elsewhere(cell));
    box.replaceChildren(...parts);
    if (many) spark(line, cell);
  }
  function table(pairs, rows) {
    const i = state.metric, names = map().pairs.names;
    const worth = r => i === 2 ? (pairs.ok[r] ? pairs.dropped[r] / pairs.ok[r] : 2) : (i ? pairs.p99[r] : pairs.p50[r]) || 2e10;
    rows.sort((a, b) => worth(b) - worth(a) || pairs.failed[b] - pairs.failed[a] || a - b);
    const body = element("tbody", {}), failing = rows.some(r => pairs.failed[r]);
    for (const r of rows.slice(0, 500)) {
      const dot = element("i", {});
      dot.style.background = colours.shades[shadeOf(pairs.p50[r], pairs.p99[r], pairs.ok[r], pairs.dropped[r], map().floor[pairs.cell[r]] || 0)];
      const name = names[pairs.src[r]] + " → " + names[pairs.dst[r]], ok = pairs.ok[r];
      body.append(element("tr", { title: name },
        element("td", {}, dot, name),
        element("td", { textContent: pairs.p50[r] ? latency(pairs.p50[r]) : "–" }),
        element("td", { textContent: pairs.p99[r] ? latency(pairs.p99[r]) : "–" }),
        element("td", { textContent: ok ? pairs.dropped[r] + " / " + count(ok) : "–" }),
        ...failing ? [element("td", { textContent: pairs.failed[r] || "" })] : []));
    }
    const top = element("tr", {});
    for (const word of ["servers", "P50", "P99", "dropped", ...failing ? ["failed"] : []]) top.append(element("th", { textContent: word }));
    return element("div", { className: "scroll" }, element("table", { id: "pairs" }, element("thead", {}, top), body));
  }
  function inside(cell) {  // buttons to the maps of the data centres of a cell
    if (map().by !== "dc") return [];
    const n = size(), ends = [...new Set([Math.floor(cell / n), cell % n])];
    const buttons = ends.map(i => [map().names[i], head.maps.findIndex(m => m.by !== "dc" && m.dc === map().names[i])]);
    return buttons.filter(([, to]) => to >= 0).map(([name, to]) => element("button",
      { className: "inside", textContent: "Pods of " + name + " →", onclick: () => { another(to); $("map").focus(); } }));
  }
  function elsewhere(cell) {
    const m = map(), n = size(), from = Math.floor(cell / n), to = cell % n;
    if (m.by === "dc" && from === to) return [];
    if (m.by === "server" || shades[cell] === ABSENT || (values && !values.ok[cell] && !values.failed[cell])) return [];
    const found = [element("p", { className: "hint", textContent: m.pairs.why || "This page does not contain its servers." })];
    if (head.source && !/\p{C}/u.test(m.names[from] + m.names[to])) {
      const where = "src_" + m.by + " == " + quoted(m.names[from]) + " and dst_" + m.by + " == " + quoted(m.names[to]);
      const text = "confluo-pingmesh " + (m.by === "dc" ? "sla " : "heatmap ") + head.source + " -e " + shell(where)
        + (m.by === "dc" ? " --by server_pair" : " --by server -w pair.html");
      found.push(element("code", { textContent: text }));
    }
    return found;
  }
  async function spark(canvas, cell) {
    const m = map(), n = size(), points = [];
    for (const w of m.windows) {
      const v = columns(await unpack(w.blob + 1), VALUES, n * n);
      points.push(state.metric === 2 ? (v.ok[cell] ? v.dropped[cell] / v.ok[cell] : NaN) : v[VALUES[state.metric]][cell] || NaN);
    }
    const ratio = devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight, g = canvas.getContext("2d");
    canvas.width = wide * ratio; canvas.height = high * ratio;
    g.scale(ratio, ratio);
    const limit = state.metric === 2 ? m.dropRed : m.steps[7] + (m.floor[cell] || 0);
    const most = Math.max(limit * 1.15, ...points.filter(p => p > 0));
    const y = v => high - 3 - (high - 6) * v / most, x = i => 3 + (wide - 6) * i / Math.max(points.length - 1, 1);
    g.strokeStyle = colours.shades[9]; g.globalAlpha = .6; g.setLineDash([3, 3]);
    g.beginPath(); g.moveTo(0, y(limit)); g.lineTo(wide, y(limit)); g.stroke();
    g.globalAlpha = 1; g.setLineDash([]); g.strokeStyle = g.fillStyle = colours.fore; g.lineWidth = 1.5;
    g.beginPath();
    points.forEach((p, i) => { if (p >= 0) points[i - 1] >= 0 ? g.lineTo(x(i), y(p)) : g.moveTo(x(i), y(p)); });
    g.stroke();
    points.forEach((p, i) => { if (p >= 0 && !(points[i - 1] >= 0) && !(points[i + 1] >= 0)) g.fillRect(x(i) - 1.5, y(p) - 1.5, 3, 3); });
    const p = points[state.window];
    if (p >= 0) { g.beginPath(); g.arc(x(state.window), y(p), 3, 0, 7); g.fill(); }
  }

  // ---- the map

  function paint() { picture = pixels(size(), shades, lut); small = null; }  // one pixel per cell
  function reduced(f) {  // f x f cells per pixel
    if (!small || small.f !== f) small = Object.assign(pixels(Math.ceil(size() / f), pooled(shades, size(), f), lut), { f });
    return small;
  }
  function fit() {
    const stage = $("stage").getBoundingClientRect(), n = size();
    const g = $("map").getContext("2d");
    g.font = "600 11.5px system-ui, sans-serif";
    const wide = Math.max(...map().podsets.map(p => g.measureText(p[0]).width), 10);
    g.font = "bold 11px system-ui, sans-serif";
    const longest = map().names.reduce((a, b) => b.length > a.length ? b : a, "");
    const name = g.measureText(longest).width;
    area = { left: wide + name + 22, top: name + 28, name };  // names are drawn only when zoomed in
    area.wide = Math.max(stage.width - area.left - 4, 50);
    area.high = Math.max(stage.height - area.top - 4, 50);
    area.least = Math.min(area.wide, area.high) / n;
  }
  const LARGEST = 180;  // px of a cell
  const bounded = scale => Math.min(Math.max(scale, area.least), LARGEST);
  function home() { state.scale = Math.min(area.least, LARGEST); state.x = area.left; state.y = area.top; }
  function clamp() {
    state.scale = bounded(state.scale);
    const wide = size() * state.scale;
    state.x = Math.min(area.left, Math.max(state.x, area.left + Math.min(0, area.wide - wide)));
    state.y = Math.min(area.top, Math.max(state.y, area.top + Math.min(0, area.high - wide)));
  }
  function draw() {
    const canvas = $("map"), ratio = devicePixelRatio || 1, stage = $("stage").getBoundingClientRect();
    const w = Math.round(stage.width * ratio), h = Math.round(stage.height * ratio);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    const g = canvas.getContext("2d"), n = size(), c = state.scale, m = map();
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, stage.width, stage.height);
    if (!picture) return;
    const right = Math.min(state.x + n * c, stage.width), bottom = Math.min(state.y + n * c, stage.height);
    g.save();
    g.beginPath(); g.rect(area.left, area.top, right - area.left, bottom - area.top); g.clip();
    g.imageSmoothingEnabled = false;
    if (c * ratio < 1) {
      const f = Math.ceil(1 / (c * ratio)), its = reduced(f);
      g.drawImage(its, state.x, state.y, its.width * f * c, its.width * f * c);
    } else g.drawImage(picture, state.x, state.y, n * c, n * c);
    const from = v => Math.max(0, Math.floor(v / c)), to = v => Math.min(n, Math.ceil(v / c));
    const i0 = from(area.top - state.y), i1 = to(stage.height - state.y), j0 = from(area.left - state.x), j1 = to(stage.width - state.x);
    if (c >= 7) {
      g.strokeStyle = colours.back; g.lineWidth = c >= 12 ? 1.5 : 1; g.beginPath();
      for (let j = j0; j <= j1; j++) { g.moveTo(state.x + j * c, area.top); g.lineTo(state.x + j * c, bottom); }
      for (let i = i0; i <= i1; i++) { g.moveTo(area.left, state.y + i * c); g.lineTo(right, state.y + i * c); }
      g.stroke();
    }
    if (c >= 11) marks(g, i0, i1, j0, j1);
    g.strokeStyle = colours.fore; const block = c * n / m.podsets.length; g.globalAlpha = block < 5 ? .1 : block < 30 ? .25 : .55; g.lineWidth = 1; g.beginPath();
    for (const [, first] of m.podsets.slice(1)) {
      const x = Math.round(state.x + first * c) + .5 - (c >= 7 ? .5 : 0), y = Math.round(state.y + first * c) + .5 - (c >= 7 ? .5 : 0);
      g.moveTo(x, area.top); g.lineTo(x, bottom); g.moveTo(area.left, y); g.lineTo(right, y);
    }
    g.stroke();
    g.globalAlpha = 1;
    for (const [cell, kept] of [[state.hover, false], [state.focus, true]]) if (cell >= 0 && (kept || cell !== state.focus)) {
      const x = state.x + cell % n * c, y = state.y + Math.floor(cell / n) * c, s = Math.max(c, 4);
      g.globalAlpha = .1; g.fillStyle = colours.fore;
      g.fillRect(area.left, y, x - area.left, c); g.fillRect(x + c, y, right, c);
      g.fillRect(x, area.top, c, y - area.top); g.fillRect(x, y + c, c, bottom);
      g.globalAlpha = 1; g.lineWidth = kept ? 2.5 : 1.5; g.strokeStyle = colours.fore;
      g.strokeRect(x, y, s, s);
      g.lineWidth = 1; g.strokeStyle = colours.panel; g.strokeRect(x + 1.5, y + 1.5, Math.max(s - 3, 1), Math.max(s - 3, 1));
    }
    g.restore();
    g.strokeStyle = colours.line; g.strokeRect(area.left - .5, area.top - .5, right - area.left + 1, bottom - area.top + 1);
    axes(g, right, bottom);
    Object.assign(canvas.dataset, { x: state.x, y: state.y, scale: c });
  }
  function marks(g, i0, i1, j0, j1) {  // shapes for colours: a bar is yellow, a cross red, a ring has no data
    const n = size(), c = state.scale, r = Math.min(c * .16, 9);
    g.lineWidth = Math.max(1, Math.min(c / 16, 3));
    for (const kind of [0, 2, 3]) {
      g.globalAlpha = kind ? .75 : .5;
      g.strokeStyle = kind === 3 ? colours.shades[0] : kind === 2 ? "#1b1f24" : colours.fore;
      g.beginPath();
      for (let i = i0; i < i1; i++) for (let j = j0; j < j1; j++) if (CLASS[shades[i * n + j]] === kind) {
        const x = state.x + (j + .5) * c, y = state.y + (i + .5) * c;
        if (kind === 0) { g.moveTo(x + r * .7, y); g.arc(x, y, r * .7, 0, 7); }
        else if (kind === 2) { g.moveTo(x - r, y); g.lineTo(x + r, y); }
        else { g.moveTo(x - r, y - r); g.lineTo(x + r, y + r); g.moveTo(x + r, y - r); g.lineTo(x - r, y + r); }
      }
      g.stroke();
    }
    g.globalAlpha = 1;
  }
  function axes(g, right, bottom) {
    const m = map(), n = size(), c = state.scale;
    const cell = state.hover >= 0 ? state.hover : state.focus, row = Math.floor(cell / n), column = cell % n;
    const labels = c >= 10;
    g.textBaseline = "middle";
    if (labels) {
      for (let i = 0; i < n; i++) {
        const y = state.y + (i + .5) * c, x = state.x + (i + .5) * c;
        g.font = "11px system-ui, sans-serif"; g.fillStyle = colours.soft;
        const strong = of => { const on = cell >= 0 && of === i; g.fillStyle = on ? colours.fore : colours.soft; g.font = (on ? "bold " : "") + "11px system-ui, sans-serif"; };
        if (y > area.top && y < bottom) { strong(row); g.textAlign = "right"; g.fillText(m.names[i], area.left - 6, y); }
        if (x > area.left && x < right) {
          strong(column); g.textAlign = "left"; g.save(); g.translate(x, area.top - 6); g.rotate(-Math.PI / 2);
          g.fillText(m.names[i], 0, 0); g.restore();
        }
      }
    }
    g.font = "600 11.5px system-ui, sans-serif"; g.fillStyle = colours.fore;
    const off = labels ? area.name + 12 : 6;
    let free = -1e9, freeX = -1e9;
    for (const [name, first, after] of m.podsets) {
      if (!name || name === m.names[first] && after - first === 1 && labels) continue;
      const a = Math.max(state.y + first * c, area.top), b = Math.min(state.y + after * c, bottom);
      if (b - a > 1 && (a + b) / 2 - 7 > free) {
        g.textAlign = "right"; g.fillText(name, area.left - off, (a + b) / 2); free = (a + b) / 2 + 7;
      }
      const l = Math.max(state.x + first * c, area.left), r = Math.min(state.x + after * c, right), w = g.measureText(name).width;
      if (r - l > 1 && (l + r) / 2 - w / 2 > freeX && (l + r) / 2 + w / 2 <= right + 20) {
        g.textAlign = "center"; g.fillText(name, (l + r) / 2, area.top - (labels ? area.name + 14 : 10)); freeX = (l + r) / 2 + w / 2 + 8;
      }
    }
  }

  // ---- legend, blocks and header

  function legend() {
    const list = element("ul", {}), counts = now().counts[state.metric], shadesOf = [[0], [1, 2, 3, 4, 5, 6], [7], [8, 9, 10, 11, 12]];
    for (const i of [3, 2, 1, 0]) {
      const swatch = element("i", {}), its = shadesOf[i].map(s => colours.shades[s]);
      swatch.style.background = its.length > 1 ? "linear-gradient(90deg," + its.join() + ")" : its[0];
      list.append(element("li", {}, swatch, element("span", { textContent: map().ranges[state.metric][i] }),
        element("span", { className: "n", textContent: count(counts[i]) })));
    }
    $("legend").replaceChildren(element("h2", { textContent: head.metrics[state.metric] + ", cells" }), list);
    if (map().by === "dc" && state.metric < 2) $("legend").append(element("p", { className: "hint", textContent:
      "Between two data centres: above the lowest median of the pair in all windows." }));
  }
  function blocks() {
    const its = now().patterns[state.metric].blocks, n = its.length, box = $("blocks");
    if (n < 2 || map().by === "podset" || map().by === "dc") { box.replaceChildren(); return; }
    const side = Math.min(168, n * 26), canvas = element("canvas", {}), ratio = devicePixelRatio || 1, g = canvas.getContext("2d"), c = side / n;
    canvas.width = canvas.height = side * ratio;
    canvas.style.width = canvas.style.height = side + "px";
    g.scale(ratio, ratio);
    its.forEach((line, i) => [...line].forEach((letter, j) => {
      g.fillStyle = colours.shades[{ W: 0, G: 4, Y: 7, R: 9 }[letter] ?? ABSENT];
      if (c < 8) { g.fillRect(j * c, i * c, c, c); return; }
      g.fillRect(j * c, i * c, c - .8, c - .8);
      g.strokeStyle = colours.line; g.lineWidth = .6; g.strokeRect(j * c, i * c, c - .8, c - .8);
      if (letter === "?" && c > 9) { g.fillStyle = colours.soft; g.font = "11px system-ui"; g.textAlign = "center"; g.textBaseline = "middle"; g.fillText("?", j * c + c / 2, i * c + c / 2); }
    }));
    canvas.onclick = e => {
      const i = Math.min(n - 1, Math.floor(e.offsetY / c)), j = Math.min(n - 1, Math.floor(e.offsetX / c)), p = map().podsets;
      zoomTo(p[i][1], p[i][2], p[j][1], p[j][2]);
    };
    canvas.title = "Click a block to zoom to it";
    box.replaceChildren(element("h2", { textContent: "Blocks of podsets" }), canvas);
  }
  const place = m => m.by === "dc" ? "between data centres" : m.dc;
  const tone = name => colours.shades[name === "normal" ? 5 : name === "unclassified" ? 7 : 9];
  function verdict() {
    const its = now().patterns[state.metric], w = now(), also = [];
    w.patterns.forEach((other, i) => {
      $("metric").children[i].firstChild.style.background = tone(other.name);
      if (other.name === "normal" || other.text === its.text) return;
      const dot = element("i", {});
      dot.style.background = tone(other.name);
      also.push(element("button", { onclick: () => metric(i) }, dot, head.metrics[i] + ": " + other.text));
    });
    $("also").replaceChildren(...also);
    $("pattern").textContent = its.text;
    $("explain").textContent = its.explain + (w.partial ? " The records begin or end within this window." : "");
    head.maps.forEach((m, i) => {  // patterns of the other maps in this window
      const theirs = m.windows.find(other => other.start === w.start) || m.windows[m.at], text = theirs.patterns[state.metric].name;
      const name = m.by === "dc" ? "All data centres" : m.dc || "–";
      $("dc").options[i].textContent = text === "normal" ? name : name + " · " + text;
    });
    document.body.style.setProperty("--tone", tone(its.name));
    $("title").textContent = head.title + (place(map()) ? " · " + place(map()) : "");
    $("about").textContent = head.metrics[state.metric] + " · " + span(w) + " · " + count(size()) + " " + map().unit + (size() > 1 ? "s" : "")
      + (/^(podset|dc)$/.test(map().by) ? "" : " in " + count(map().podsets.length) + " podset" + (map().podsets.length > 1 ? "s" : ""))
      + " · " + count(w.probes) + " probes";
    document.title = its.text + " · " + $("title").textContent;
  }
  function bars() {
    const m = map(), canvas = $("bars"), box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1, g = canvas.getContext("2d");
    canvas.width = box.width * ratio; canvas.height = box.height * ratio;
    g.scale(ratio, ratio);
    const each = (box.width - 16) / m.windows.length, high = box.height - 2;
    $("time").style.margin = "2px " + Math.max(0, each / 2) + "px 0";  // align its thumb with the bar
    $("time").style.width = "calc(100% - " + Math.max(0, each) + "px)";
    m.windows.forEach((w, i) => {
      const counts = w.counts[state.metric], all = counts[0] + counts[1] + counts[2] + counts[3] || 1, x = 8 + i * each;
      let y = 0;
      g.globalAlpha = w.partial ? .45 : 1;
      for (const [k, shade] of [[3, 9], [2, 7], [0, 0], [1, 4]]) {
        const h = counts[k] / all * high;
        g.fillStyle = colours.shades[shade]; g.fillRect(x, y, Math.max(each - (each > 4 ? 1 : 0), .5), h); y += h;
      }
      g.globalAlpha = 1;
      if (i === state.window) { g.strokeStyle = colours.fore; g.lineWidth = 2; g.strokeRect(x - .5, 1, Math.max(each, 3), high); }
    });
  }
  function theme() {
    const dark = state.theme === "auto" ? darkness.matches : state.theme === "dark";
    colours = head.palettes[state.palette + (dark ? "-dark" : "-light")];
    const style = document.documentElement.style;
    for (const name of ["back", "fore", "soft", "line", "panel"]) style.setProperty("--" + name, colours[name]);
    style.colorScheme = dark ? "dark" : "light";
    lut = new Uint32Array(colours.shades.map((c, i) => {
      const bytes = new Uint8Array([parseInt(c.slice(1, 3), 16), parseInt(c.slice(3, 5), 16), parseInt(c.slice(5, 7), 16), i === ABSENT ? 0 : 255]);
      return new Uint32Array(bytes.buffer)[0];
    }));
    $("safe").setAttribute("aria-pressed", state.palette === "safe"); state.dark = dark;
  }
  function remember() {
    const m = map(), words = ["w=" + now().start, "m=" + state.metric];
    if (head.maps.length > 1) words.push("d=" + encodeURIComponent(m.dc));
    if (state.kept) words.push("c=" + state.focus);
    try { history.replaceState(null, "", "#" + words.join("&")); } catch { /* some viewers have no URL */ }
  }
  function recall() {
    const words = new URLSearchParams(location.hash.slice(1));
    const dc = head.maps.findIndex(m => m.dc === words.get("d"));
    const wrong = head.maps.findIndex(m => m.windows[m.at].patterns[state.metric].name !== "normal");
    state.map = dc >= 0 ? dc : head.maps[0].by === "dc" ? 0 : Math.max(wrong, 0);
    const at = map().windows.findIndex(w => String(w.start) === words.get("w"));
    state.window = at >= 0 ? at : map().at;
    if (/^[012]$/.test(words.get("m"))) state.metric = +words.get("m");
    const cell = words.has("c") ? +words.get("c") : -1;
    if (Number.isInteger(cell) && cell >= 0 && cell < size() ** 2) { state.focus = cell; state.kept = true; }
  }

  // ---- updates

  let turn = 0;
  async function show() {  // another window, metric or map
    const mine = ++turn, w = now(), n = size();
    const all = new Uint8Array(await unpack(w.blob));
    if (mine !== turn) return;
    shades = all.subarray(state.metric * n * n, (state.metric + 1) * n * n);
    values = null;
    $("time").value = state.window;
    $("when").textContent = span(w);
    $("time").setAttribute("aria-valuetext", span(w));
    for (const [i, b] of [...$("metric").children].entries()) { b.setAttribute("aria-checked", i === state.metric); b.tabIndex = i === state.metric ? 0 : -1; }
    refresh();
    remember();
    const unpackedValues = columns(await unpack(w.blob + 1), VALUES, n * n);
    if (mine !== turn) return;
    values = unpackedValues;
    showTip();
    await showCell();
    document.body.dataset.ready = turn;
  }
  function refresh() { paint(); clamp(); draw(); legend(); blocks(); verdict(); bars(); showTip(); }
  function choose() {  // another map
    const m = map();
    $("time").max = m.windows.length - 1;
    document.querySelector("footer").className = m.windows.length > 1 ? "" : "one";
    $("dc").value = state.map;
    fit(); home();
  }
  function resize() { const old = state.scale / area.least || 1; fit(); if (old <= 1.001) home(); clamp(); draw(); bars(); showTip(); }
  function step(by) { goto(state.window + by); }
  function goto(i) {
    const at = Math.min(Math.max(i, 0), map().windows.length - 1);
    if (at !== state.window) { state.window = at; return show(); }
  }
  function metric(i) { state.metric = i; return show(); }
  function play(on) {
    clearInterval(state.playing);
    state.playing = 0;
    if (on && map().windows.length > 1) state.playing = setInterval(() => {
      if (state.window + 1 >= map().windows.length) { state.window = -1; }
      step(1);
    }, 700);
    $("play").textContent = state.playing ? "❚❚" : "▶";
    $("play").setAttribute("aria-label", state.playing ? "Pause" : "Play");
  }
  function zoom(by, x, y) {
    const before = state.scale;
    state.scale = bounded(before * by);
    const k = state.scale / before;
    state.x = x - (x - state.x) * k; state.y = y - (y - state.y) * k;
    clamp(); draw(); showTip();
  }
  const middle = by => zoom(by, area.left + area.wide / 2, area.top + area.high / 2);
  function zoomTo(i0, i1, j0, j1) {
    state.scale = Math.min(area.wide / (j1 - j0), area.high / (i1 - i0));
    clamp();
    state.x = area.left - j0 * state.scale; state.y = area.top - i0 * state.scale;
    clamp(); draw(); showTip();
  }
  function cellAt(e) {
    const box = $("map").getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top, n = size();
    if (x < area.left || y < area.top) return -1;
    const j = Math.floor((x - state.x) / state.scale), i = Math.floor((y - state.y) / state.scale);
    return i >= 0 && i < n && j >= 0 && j < n ? i * n + j : -1;
  }
  function keep(cell) { state.focus = cell; state.kept = cell >= 0; draw(); showTip(); remember(); return showCell(); }
  function move(di, dj) {
    const n = size(), cell = state.focus < 0 ? (state.hover < 0 ? 0 : state.hover) : state.focus;
    const i = Math.min(Math.max(Math.floor(cell / n) + (state.focus < 0 ? 0 : di), 0), n - 1);
    const j = Math.min(Math.max(cell % n + (state.focus < 0 ? 0 : dj), 0), n - 1);
    state.focus = i * n + j; state.hover = -1;
    const c = state.scale, x = state.x + j * c, y = state.y + i * c;
    if (x < area.left) state.x += area.left - x;
    if (y < area.top) state.y += area.top - y;
    if (x + c > area.left + area.wide) state.x -= x + c - area.left - area.wide;
    if (y + c > area.top + area.high) state.y -= y + c - area.top - area.high;
    clamp(); draw(); showTip();
    $("map").setAttribute("aria-label", $("tip").innerText.replaceAll("\n", " "));  // for screen readers
    if (state.kept) { remember(); return showCell(); }
  }

  // ---- pointer and keys

  const canvas = $("map"), fingers = new Map();
  let from = null, moved = 0, apart = 0;
  canvas.addEventListener("pointerdown", e => {
    canvas.setPointerCapture(e.pointerId);
    fingers.set(e.pointerId, e);
    from = { x: e.clientX - state.x, y: e.clientY - state.y }; moved = 0; apart = 0;
  });
  canvas.addEventListener("pointermove", e => {
    if (fingers.has(e.pointerId)) {
      const old = fingers.get(e.pointerId);
      moved += Math.abs(e.clientX - old.clientX) + Math.abs(e.clientY - old.clientY);
      fingers.set(e.pointerId, e);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()], d = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY), box = canvas.getBoundingClientRect();
        if (apart) zoom(d / apart, (a.clientX + b.clientX) / 2 - box.left, (a.clientY + b.clientY) / 2 - box.top);
        apart = d;
      } else if (moved > 4 && from) {
        canvas.className = "drag";
        state.x = e.clientX - from.x; state.y = e.clientY - from.y; state.hover = -1;
        clamp(); draw(); $("tip").hidden = true;
      }
      return;
    }
    const cell = cellAt(e);
    if (cell !== state.hover) { state.hover = cell; requestAnimationFrame(() => { draw(); showTip(); }); }
  });
  const up = e => {
    const click = fingers.size === 1 && moved <= 4 && e.type === "pointerup";
    fingers.delete(e.pointerId); canvas.className = ""; apart = 0; from = null;
    if (click) { const cell = cellAt(e); keep(state.kept && cell === state.focus ? -1 : cell); }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => { state.hover = -1; draw(); showTip(); });
  canvas.addEventListener("dblclick", e => {
    const cell = cellAt(e), n = size();
    if (cell < 0) return;
    const its = at => map().podsets.find(p => at >= p[1] && at < p[2]), r = its(Math.floor(cell / n)), c = its(cell % n);
    state.scale > area.least * 1.05 ? (home(), draw()) : zoomTo(r[1], r[2], c[1], c[2]);
  });
  canvas.addEventListener("wheel", e => {
    e.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (e.shiftKey) { state.x -= e.deltaY || e.deltaX; clamp(); draw(); showTip(); return; }
    zoom(Math.exp(-e.deltaY * (e.deltaMode ? .05 : .0015)), e.clientX - box.left, e.clientY - box.top);
  }, { passive: false });
  $("in").onclick = () => middle(1.5);
  $("out").onclick = () => middle(1 / 1.5);
  $("all").onclick = () => { home(); draw(); showTip(); };
  $("play").onclick = () => play(!state.playing);
  $("time").oninput = e => { play(false); goto(+e.target.value); };
  $("bars").onclick = e => { play(false); goto(Math.floor((e.offsetX - 8) / (($("bars").clientWidth - 16) / map().windows.length))); };
  $("bars").onmousemove = e => {
    const w = map().windows[Math.floor((e.offsetX - 8) / (($("bars").clientWidth - 16) / map().windows.length))];
    $("bars").title = w ? span(w) + ": " + w.patterns[state.metric].text : "";
  };
  $("theme").onclick = () => { state.theme = state.dark ? "light" : "dark"; theme(); refresh(); showCell(); };
  $("safe").onclick = () => { state.palette = state.palette === "safe" ? "paper" : "safe"; theme(); refresh(); showCell(); };
  $("keys").onclick = () => $("help").showModal();
  $("dc").onchange = e => another(+e.target.value);
  function another(i) {
    play(false);
    const start = now().start;
    state.map = i;
    const same = map().windows.findIndex(w => w.start === start);
    state.window = same >= 0 ? same : map().at; state.focus = state.hover = -1; state.kept = false;
    unpacked.clear(); choose(); return show();
  }
  const KEYS = {
    ",": () => step(-1), ".": () => step(1), Home: () => goto(0), End: () => goto(1e9), " ": () => play(!state.playing),
    ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
    Enter: () => { const cell = state.focus >= 0 ? state.focus : state.hover; if (cell >= 0) keep(cell); }, Escape: () => keep(-1),
    1: () => metric(0), 2: () => metric(1), 3: () => metric(2), "+": () => middle(1.5), "=": () => middle(1.5),
    "-": () => middle(1 / 1.5), 0: () => $("all").onclick(), t: () => $("theme").onclick(), c: () => $("safe").onclick(),
    d: () => another((state.map + 1) % head.maps.length), "?": () => $("keys").onclick(),
  };
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.altKey || e.metaKey || $("help").open || !KEYS[e.key]) return;
    const its = e.target;
    if (its.matches("select") || its === $("time") && /Arrow|Home|End/.test(e.key) || its.matches("button") && !$("help").contains(its) && /^( |Enter)$/.test(e.key)) return;
    if (its.parentElement === $("metric") && /Arrow/.test(e.key)) {
      const at = (state.metric + (/Right|Down/.test(e.key) ? 1 : 2)) % 3;
      metric(at); $("metric").children[at].focus(); e.preventDefault(); return;
    }
    e.preventDefault();
    KEYS[e.key]();
  });
  darkness.addEventListener("change", () => { theme(); refresh(); });
  new ResizeObserver(resize).observe($("stage"));

  head.metrics.forEach((name, i) => $("metric").append(element("button",
    { role: "radio", title: name + " (" + (i + 1) + ")", onclick: () => metric(i) }, element("i", {}), name)));
  head.maps.forEach((m, i) => $("dc").append(element("option", { value: i })));
  $("dc").hidden = head.maps.length < 2;
  $("command").textContent = head.command;
  if (!window.DecompressionStream) {
    $("pattern").textContent = "This browser is too old";
    $("explain").textContent = "The page needs a browser of 2023 or later.";
    return;
  }
  recall(); theme(); choose();
  show().catch(e => { $("pattern").textContent = "This page is damaged"; $("explain").textContent = e.message; });
})();
