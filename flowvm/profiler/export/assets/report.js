"use strict";
// The report's program. It gets the run as columns and draws what is visible, nothing else: with a
// hundred thousand instructions a frame touches a few per pixel. No library, no network.

const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// --- columns: base64 of little-endian arrays -------------------------------------------------
function column(name, kind) {
  const text = atob(D.columns[name]);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new kind(bytes.buffer);
}
const C = {};
for (const [name, kind] of Object.entries(D.kinds)) C[name] = column(name, { f: Float64Array, i: Int32Array, b: Uint8Array }[kind]);
const N = C.seq.length;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const ms = (ns) => { const v = ns / 1e6; return Math.abs(v) >= 100 ? v.toFixed(1) : Math.abs(v) >= 1 ? v.toFixed(2) : v.toFixed(3); };
const bytes = (n) => { for (const [u, s] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) if (Math.abs(n) >= s) return (n / s).toFixed(1) + " " + u; return n + " B"; };
const op = (i) => D.names[C.op[i]];
const label = (i) => "#" + C.seq[i] + " " + op(i);
// text only ever enters the page as text, so no name of an op or file can be markup
function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") made.style.cssText = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
// columns of numbers, with or without a unit, stand at the right
const counts = (cell) => typeof cell === "number" || (typeof cell === "string" && /^-?[\d.,]+( %| B| [KMG]iB)?$/.test(cell));
function table(heads, rows) {
  const right = heads.map((_, k) => rows.length && rows.every((row) => counts(row[k])) ? { class: "n" } : {});
  return el("table", {}, el("tr", {}, ...heads.map((h, k) => el("th", right[k], h))),
    ...rows.map((row) => el("tr", {}, ...row.map((cell, k) => el("td", right[k], cell instanceof Node ? cell : String(cell))))));
}

// --- edges, by instruction: E.source[e] -> E.target[e], sorted by target ----------------------
const ACCESS = ["const", "mut", "mut2"], HAZARD = ["RAW", "WAR", "WAW"];
const into = new Int32Array(N + 1);
for (let e = 0; e < C.target.length; e++) into[C.target[e] + 1]++;
for (let i = 0; i < N; i++) into[i + 1] += into[i];
const outStart = new Int32Array(N + 1), outEdges = new Int32Array(C.source.length);
for (let e = 0; e < C.source.length; e++) outStart[C.source[e] + 1]++;
for (let i = 0; i < N; i++) outStart[i + 1] += outStart[i];
{ const at = outStart.slice(); for (let e = 0; e < C.source.length; e++) outEdges[at[C.source[e]]++] = e; }

// --- state -----------------------------------------------------------------------------------
const state = { tab: "verdict", from: 0, to: D.wall, selected: -1, found: [], at: 0 };

// --- tabs ------------------------------------------------------------------------------------
const TABS = ["verdict", "timeline", "dag", "memory", "plan", "source"];
function show(tab) {
  state.tab = tab;
  for (const name of TABS) $(name).hidden = name !== tab;
  for (const button of $("tabs").children) button.setAttribute("aria-selected", button.textContent === tab);
  draw();
}
for (const name of TABS) $("tabs").append(el("button", { role: "tab", onclick: () => show(name) }, name));
$("title").textContent = D.title;

// --- verdict ---------------------------------------------------------------------------------
{
  const shares = el("div", { class: "share" });
  for (const [cause, share] of D.bound) {
    if (share > 0.001) shares.append(el("div", { title: cause + " " + (100 * share).toFixed(1) + " %", style: `width:${100 * share}%;background:var(--${cause})` }));
  }
  const words = D.bound.filter(([, s]) => s >= 0.005).map(([c, s]) => c + " " + (100 * s).toFixed(0) + " %").join(" · ");
  $("verdict").append(el("div", { class: "verdict" }, "bound by " + words), shares,
    ...D.wrong.map((text) => el("p", { class: "critical" }, text)),
    el("p", {}, `wall ${ms(D.wall)} ms · floor ${ms(D.floor)} ms if streams were unlimited and Python took no time`),
    ...(D.devices ? [el("p", {}, `times of devices: ${D.devices}`)] : []),
    ...D.advice.map((text, k) => el("p", {}, (k + 1) + ". " + text)));
  for (const [by, rows] of Object.entries(D.tables)) {
    $("verdict").append(el("h3", {}, "by " + by), table([by, "n", "run ms", "on path", "", "dep ms", "queue", "sched", by === "line" ? "code" : "hottest line"],
      rows.slice(0, 20).map((r) => [el("a", { onclick: () => search(r.name) }, r.name || "(none)"), r.count, ms(r.run),
        (100 * r.path / D.wall).toFixed(1) + " %", el("span", { class: "meter", style: `width:${Math.round(80 * r.path / D.wall)}px` }),
        ms(r.dep), ms(r.queue), ms(r.sched), by === "line" ? D.sources[r.name] || "" : r.hottest])));
  }
}

// --- timeline --------------------------------------------------------------------------------
for (const cause of [...D.states.filter((c) => D.meaning[c]), "critical"]) {
  $("timeline").querySelector(".hint").append(" ", el("span", { class: "key", title: D.meaning[cause] || "on the observed path" },
    el("span", { style: `background:var(--${cause})` }), " " + cause));
}
const canvas = $("timeline").querySelector("canvas");
const LEFT = 150, ROW = 26, TOP = 30;
// lanes: {name, begin, end, state or op index, instruction}; rows sorted by begin
const lanes = D.lanes.map((lane) => ({ name: lane.name, kind: lane.kind,
  begin: C[lane.key + ".begin"], end: C[lane.key + ".end"], what: C[lane.key + ".what"], ins: C[lane.key + ".ins"] }));
function fit(c) {
  const ratio = window.devicePixelRatio || 1, box = c.getBoundingClientRect();
  if (c.width !== Math.round(box.width * ratio) || c.height !== Math.round(box.height * ratio)) {
    c.width = Math.round(box.width * ratio); c.height = Math.round(box.height * ratio);
  }
  const g = c.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, box.width, box.height);
  g.font = "12px " + getComputedStyle(document.body).fontFamily;
  g.textBaseline = "middle";
  return [g, box.width, box.height];
}
const xOf = (t, width) => LEFT + (t - state.from) / (state.to - state.from) * (width - LEFT - 10);
const tOf = (x, width) => state.from + (x - LEFT) / (width - LEFT - 10) * (state.to - state.from);
function firstVisible(ends, from) { // ends never decrease within a lane
  let lo = 0, hi = ends.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (ends[mid] < from) lo = mid + 1; else hi = mid; }
  return lo;
}
function drawTimeline() {
  const [g, width, height] = fit(canvas);
  const text = color("text"), dim = color("dim"), edge = color("edge");
  g.fillStyle = dim;
  const step = niceStep((state.to - state.from) / Math.max(1, (width - LEFT) / 110));
  for (let t = Math.ceil(state.from / step) * step; t <= state.to; t += step) {
    const x = xOf(t, width), said = ms(t) + " ms";
    if (x + 3 + g.measureText(said).width < width) g.fillText(said, x + 3, 10);
    g.fillStyle = edge; g.fillRect(x, 18, 1, height); g.fillStyle = dim;
  }
  lanes.forEach((lane, row) => drawLane(g, lane, TOP + row * ROW, width, text));
  if (state.selected >= 0) drawEdges(g, width);
}
function niceStep(raw) { const power = 10 ** Math.floor(Math.log10(raw)); for (const k of [1, 2, 5, 10]) if (k * power >= raw) return k * power; return 10 * power; }
function drawLane(g, lane, y, width, text) {
  g.fillStyle = text;
  g.fillText(lane.name.slice(0, 20), 8, y + ROW / 2);
  const first = firstVisible(lane.end, state.from);
  let drawn = -1;
  for (let k = first; k < lane.begin.length && lane.begin[k] <= state.to; k++) {
    const x0 = Math.max(LEFT, xOf(lane.begin[k], width)), x1 = Math.min(width, xOf(lane.end[k], width));
    if (x1 < LEFT || x1 - drawn < 0.4) continue; // several in one pixel: one is drawn
    drawn = Math.max(x1, x0 + 0.5);
    const i = lane.ins[k], cause = D.states[lane.what[k]];
    const running = cause === "run";
    g.fillStyle = running && i >= 0 && C.critical[i] ? color("critical") : color(cause);
    const inset = running || lane.kind === "path" ? 3 : 9;
    g.fillRect(x0, y + inset, Math.max(0.7, x1 - x0), ROW - 2 * inset);
    if (i === state.selected && i >= 0) { g.strokeStyle = color("mark"); g.lineWidth = 2; g.strokeRect(x0, y + 2, Math.max(2, x1 - x0), ROW - 4); }
    else if (state.found.length && running && i >= 0 && state.marks.has(i)) { g.fillStyle = color("mark"); g.fillRect(x0, y + ROW - 4, Math.max(1.5, x1 - x0), 3); }
    if (running && x1 - x0 > 34) {
      const name = lane.kind === "tasks" ? D.names[lane.op[k]] : i >= 0 ? op(i) : "";
      g.save(); g.beginPath(); g.rect(x0, y, x1 - x0 - 3, ROW); g.clip();
      g.fillStyle = color("back"); g.fillText(name, x0 + 4, y + ROW / 2); g.restore();
    }
  }
}
function laneOf(i) { return lanes.findIndex((lane) => lane.kind === "stream" && lane.name === D.streams[C.stream[i]]); }
function drawEdges(g, width) {
  const i = state.selected, row = laneOf(i);
  for (let e = into[i]; e < into[i + 1]; e++) {
    const j = C.source[e], from = laneOf(j);
    if (from < 0 || row < 0) continue;
    const x0 = xOf(C.ended[j], width), x1 = xOf(C.started[i], width);
    const y0 = TOP + from * ROW + ROW / 2, y1 = TOP + row * ROW + ROW / 2;
    g.strokeStyle = color(ACCESS[C.access[e]]); g.lineWidth = C.producer[i] === j ? 2.5 : 1;
    g.beginPath(); g.moveTo(x0, y0); g.bezierCurveTo(x0 + 30, y0, x1 - 30, y1, x1, y1); g.stroke();
  }
}
function hit(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const lane = lanes[Math.floor((y - TOP) / ROW)];
  if (!lane || x < LEFT) return null;
  const t = tOf(x, box.width), slack = (state.to - state.from) / box.width * 2;
  let best = null, nearest = Infinity;
  for (let k = firstVisible(lane.end, t - slack); k < lane.begin.length && lane.begin[k] <= t + slack; k++) {
    // what ran counts before the gaps beside it: it may be narrower than a pointer can be placed
    const ran = D.states[lane.what[k]] === "run";
    const far = Math.max(0, lane.begin[k] - t, t - lane.end[k]) + (ran ? 0 : 2 * slack);
    if (far < nearest) { best = { lane, k }; nearest = far; }
  }
  return best;
}
function zoom(factor, center = (state.from + state.to) / 2) {
  const least = 50, span = Math.min(D.wall * 1.02, Math.max(least, (state.to - state.from) * factor));
  const share = (center - state.from) / (state.to - state.from);
  move(center - share * span, span);
}
function move(from, span = state.to - state.from) {
  state.from = Math.max(-0.01 * D.wall, Math.min(from, D.wall * 1.01 - span));
  state.to = state.from + span;
  draw();
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const width = canvas.getBoundingClientRect().width;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(state.from + (event.deltaX || event.deltaY) / width * (state.to - state.from));
  else zoom(event.deltaY > 0 ? 1.25 : 0.8, tOf(event.offsetX, width));
}, { passive: false });
let drag = null;
canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: state.from, moved: false }; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointermove", (event) => {
  if (drag) {
    const dx = event.clientX - drag.x;
    if (Math.abs(dx) > 3) drag.moved = true;
    if (drag.moved) move(drag.from - dx / canvas.getBoundingClientRect().width * (state.to - state.from));
    return;
  }
  const found = hit(event);
  tip(event, found && describe(found));
});
canvas.addEventListener("pointerup", (event) => {
  if (drag && !drag.moved) { const found = hit(event); select(found && found.lane.ins[found.k] >= 0 ? found.lane.ins[found.k] : -1); }
  drag = null;
});
canvas.addEventListener("pointerleave", () => tip(null));
canvas.addEventListener("keydown", (event) => {
  const span = state.to - state.from;
  const act = { "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), ArrowLeft: () => move(state.from - span / 8), ArrowRight: () => move(state.from + span / 8), 0: () => { state.from = 0; state.to = D.wall; draw(); }, Escape: () => select(-1) }[event.key];
  if (act) { act(); event.preventDefault(); }
});
function describe({ lane, k }) {
  const i = lane.ins[k], cause = D.states[lane.what[k]], span = `${ms(lane.end[k] - lane.begin[k])} ms at ${ms(lane.begin[k])}`;
  if (lane.kind === "tasks") return `${D.names[lane.op[k]]} of ${label(i)}\n${span}\n${D.lines[lane.line[k]]}`;
  if (i < 0) return `${cause}: ${D.meaning[cause] || ""}\n${span}`;
  return cause === "run" ? `${label(i)}\n${span}\n${D.lines[C.line[i]]}` : `${cause}: ${D.meaning[cause]}\n${label(i)} came next\n${span}`;
}
function tip(event, text) {
  $("tip").hidden = !text;
  if (!text) return;
  $("tip").textContent = text;
  $("tip").style.left = Math.min(event.clientX + 14, innerWidth - 360) + "px";
  $("tip").style.top = event.clientY + 16 + "px";
}
for (const lane of lanes) if (lane.kind === "tasks") { const key = D.lanes.find((l) => l.name === lane.name).key; lane.op = C[key + ".op"]; lane.line = C[key + ".line"]; }

// --- an instruction --------------------------------------------------------------------------
function select(i) {
  state.selected = i;
  const panel = $("detail");
  panel.hidden = i < 0;
  panel.replaceChildren();
  if (i >= 0) {
    panel.append(el("div", {}, el("b", {}, label(i)), " on " + D.streams[C.stream[i]]));
    if (C.status[i]) panel.append(el("div", { class: "critical" }, C.status[i] === 1 << 20 ? "did not run for want of what failed" : "failed"));
    const line = D.lines[C.line[i]];
    panel.append(el("div", { class: "dim" }, line), el("pre", {}, D.sources[line] || ""));
    const forward = C.forward[i] < 0 ? "" : D.lines[C.forward[i]], module = D.modules[C.module[i]];
    if (forward) panel.append(el("div", { class: "dim" }, "forward " + forward), el("pre", {}, D.sources[forward] || ""));
    if (module) panel.append(el("div", { class: "dim" }, "module " + module));
    panel.append(table(["", "ms"], [["issued at", ms(C.issued[i])],
      ...(C.clock[i] ? [["handed over at", ms(C.opened[i])]] : []), ["started at", ms(C.started[i])],
      ["ran" + (C.clock[i] ? ", " + D.timed[C.clock[i]] : ""), ms(C.ended[i] - C.started[i])],
      ["waited: dep", ms(C.dep[i])], ["queue", ms(C.queue[i])], ["sched", ms(C.sched[i])]]));
    const operands = [];
    for (let k = C.offsets[i]; k < C.offsets[i + 1]; k++) operands.push(el("span", { class: ACCESS[C.opaccess[k]] }, ` ${ACCESS[C.opaccess[k]]} t${C.tensor[k]}`));
    panel.append(el("p", {}, "operands", ...operands));
    const link = (j, e, other) => el("div", {}, el("a", { onclick: () => { select(j); reveal(j); } }, label(j)), " ",
      el("span", { class: ACCESS[C.access[e]] }, `${ACCESS[C.access[e]]} ${HAZARD[C.hazard[e]]}`), other);
    panel.append(el("h4", {}, into[i] < into[i + 1] ? "waited for" : "waited for no instruction of this run"));
    for (let e = into[i]; e < into[i + 1]; e++) panel.append(link(C.source[e], e, C.producer[i] === C.source[e] ? " · gating" : ""));
    panel.append(el("h4", {}, outStart[i] < outStart[i + 1] ? "waits for it" : "nothing waits for it"));
    const last = Math.min(outStart[i + 1], outStart[i] + 30);
    for (let k = outStart[i]; k < last; k++) panel.append(link(C.target[outEdges[k]], outEdges[k], ""));
    if (last < outStart[i + 1]) panel.append(el("div", { class: "dim" }, `and ${outStart[i + 1] - last} more`));
  }
  draw();
}
function reveal(i) {
  const span = Math.min(D.wall, Math.max(2000, 40 * (C.ended[i] - C.started[i])));
  if (C.started[i] < state.from || C.ended[i] > state.to || (C.ended[i] - C.started[i]) / (state.to - state.from) < 0.001) {
    state.from = (C.started[i] + C.ended[i]) / 2 - span / 2; state.to = state.from + span;
  }
  const row = 22 * dag.scale, at = group[i] * row, high = dagCanvas.getBoundingClientRect().height;
  if (group[i] >= 0 && (at < dag.y || at > dag.y + high - 60)) dag.y = Math.max(0, at - high / 3);
  draw();
}

// --- search ----------------------------------------------------------------------------------
state.marks = new Set();
function search(text) {
  if ($("search").value !== text) $("search").value = text;
  state.found = []; state.at = 0;
  const wanted = text.trim().toLowerCase();
  if (wanted) {
    const ops = D.names.map((n) => n.toLowerCase().includes(wanted)), where = D.lines.map((l) => l.toLowerCase().includes(wanted));
    for (let i = 0; i < N; i++) if (("#" + C.seq[i]) === wanted || String(C.seq[i]) === wanted || ops[C.op[i]] || where[C.line[i]]) state.found.push(i);
  }
  state.marks = new Set(state.found);
  $("hits").textContent = wanted ? `${state.found.length} found` + (state.found.length ? ", Enter: next" : "") : "";
  draw();
}
$("search").addEventListener("input", (event) => search(event.target.value));
$("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !state.found.length) return;
  if (state.tab !== "timeline" && state.tab !== "dag") show("timeline");
  const i = state.found[state.at++ % state.found.length];
  select(i); reveal(i);
});

// --- the DAG: rows in the order of starts, a lane a stream -------------------------------------
const dagCanvas = $("dag").querySelector("canvas");
const dag = { y: 0, scale: 1, collapsed: false };
$("dag").querySelector(".bar").append(
  el("button", { onclick: () => { dag.collapsed = !dag.collapsed; dag.y = 0; layoutDag(); draw(); } }, "by instruction / by line"),
  el("span", { class: "dim" }, " wheel: scroll · ctrl+wheel: zoom · click: select · "), ...ACCESS.map((a, k) => el("span", { class: a }, "─━═"[k].repeat(2) + " " + a + "  ")));
// each edge's width and dashes by its access, so colour is not all that tells them apart
const PEN = [[1, []], [2.2, []], [2.2, [6, 3]]];
let nodes = [], links = [], group = new Int32Array(N).fill(-1); // the row of each instruction, or -1
function layoutDag() {
  const chosen = [];
  for (let i = 0; i < N; i++) if (!C.release[i]) chosen.push(i);
  chosen.sort((a, b) => C.started[a] - C.started[b] || a - b);
  group = new Int32Array(N).fill(-1);
  nodes = [];
  const open = new Map();
  for (const i of chosen) {
    const key = C.stream[i] + "|" + C.line[i], last = open.get(C.stream[i]);
    if (dag.collapsed && last && last.key === key) { last.members.push(i); last.critical ||= C.critical[i]; last.time += C.ended[i] - C.started[i]; group[i] = last.number; continue; }
    const node = { key, number: nodes.length, members: [i], lane: C.stream[i], critical: C.critical[i], time: C.ended[i] - C.started[i] };
    open.set(C.stream[i], node); group[i] = node.number; nodes.push(node);
  }
  const seen = new Set();
  links = [];
  for (let e = 0; e < C.source.length; e++) {
    const a = group[C.source[e]], b = group[C.target[e]];
    if (a < 0 || b < 0 || a === b || seen.has(a * nodes.length + b)) continue;
    seen.add(a * nodes.length + b);
    links.push({ a, b, access: C.access[e] });
  }
  links.sort((p, q) => p.b - q.b);
}
const used = D.order.filter((s) => C.stream.includes(s));
function drawDag() {
  const [g, width, height] = fit(dagCanvas);
  const row = 22 * dag.scale, lane = Math.max(100, Math.min(420, (width - 360) / Math.max(1, used.length)));
  const x = (n) => 70 + used.indexOf(n.lane) * lane, y = (k) => 34 + k * row - dag.y;
  const first = Math.max(0, Math.floor((dag.y - 40) / row)), last = Math.min(nodes.length, Math.ceil((dag.y + height) / row));
  for (const { a, b, access } of links) {
    if (b < first || a > last || b - a > 4000) continue;
    g.strokeStyle = color(ACCESS[access]); g.globalAlpha = 0.75; g.lineWidth = PEN[access][0]; g.setLineDash(PEN[access][1]);
    const x0 = x(nodes[a]), y0 = y(a), x1 = x(nodes[b]), y1 = y(b);
    g.beginPath(); g.moveTo(x0, y0);
    if (x0 === x1) g.bezierCurveTo(x0 - Math.min(60, 7 * (b - a)), y0 + 6, x1 - Math.min(60, 7 * (b - a)), y1 - 6, x1, y1);
    else g.bezierCurveTo(x0, y0 + row, x1, y1 - row, x1, y1);
    g.stroke();
  }
  g.globalAlpha = 1; g.lineWidth = 1; g.setLineDash([]);
  for (let k = first; k < last; k++) {
    const n = nodes[k], i = n.members[0], cx = x(n), cy = y(k);
    g.fillStyle = n.critical ? color("critical") : color("run");
    g.beginPath(); g.arc(cx, cy, 4.5, 0, 7); g.fill();
    if (n.members.includes(state.selected)) { g.strokeStyle = color("mark"); g.lineWidth = 2.5; g.stroke(); g.lineWidth = 1; }
    g.fillStyle = n.members.some((m) => state.marks.has(m)) ? color("mark") : color("text");
    const text = dag.collapsed ? `${D.lines[C.line[i]]}  ${n.members.length} ins` : label(i);
    g.fillText(text, cx + 10, cy, lane - 20);
    g.fillStyle = color("dim");
    g.fillText(`${ms(n.time)} ms  ${dag.collapsed ? D.sources[D.lines[C.line[i]]] || "" : D.lines[C.line[i]]}`.slice(0, 60), 70 + used.length * lane, cy);
  }
  g.fillStyle = color("back"); g.fillRect(0, 0, width, 22);
  g.fillStyle = color("dim");
  used.forEach((s, k) => g.fillText(D.streams[s], 70 + k * lane, 11));
}
dagCanvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (event.ctrlKey) dag.scale = Math.min(2, Math.max(0.6, dag.scale * (event.deltaY > 0 ? 0.9 : 1.1)));
  else dag.y = Math.max(0, Math.min(dag.y + event.deltaY, Math.max(0, nodes.length * 22 * dag.scale - 200)));
  draw();
}, { passive: false });
dagCanvas.addEventListener("click", (event) => {
  const box = dagCanvas.getBoundingClientRect(), k = Math.round((event.clientY - box.top - 34 + dag.y) / (22 * dag.scale));
  select(nodes[k] ? nodes[k].members[0] : -1);
});

// --- memory ----------------------------------------------------------------------------------
function drawMemory() {
  D.memories.forEach((memory, m) => {
    const [g, width, height] = fit($("memory").querySelectorAll("canvas")[m]);
    const parts = D.parts.map(([name]) => C[`memory${m}.${name}`]), top = memory.peak || 1, count = parts[0].length;
    const x = (t) => 70 + t / D.wall * (width - 90), y = (n) => height - 20 - n / top * (height - 40);
    g.fillStyle = color("dim");
    for (const share of [0, 0.5, 1]) { g.fillText(bytes(Math.round(share * top)), 4, y(share * top)); g.fillRect(70, y(share * top), width - 90, 1); }
    const below = new Float64Array(count);
    parts.forEach((part, k) => { // each stands on those before it
      g.beginPath();
      for (let c = 0; c < count; c++) { g.lineTo(x(c * D.wall / count), y(below[c] + part[c])); g.lineTo(x((c + 1) * D.wall / count), y(below[c] + part[c])); }
      for (let c = count - 1; c >= 0; c--) { g.lineTo(x((c + 1) * D.wall / count), y(below[c])); g.lineTo(x(c * D.wall / count), y(below[c])); }
      for (let c = 0; c < count; c++) below[c] += part[c];
      g.fillStyle = color(D.parts[k][1]); g.fill();
    });
    g.fillStyle = color("dim");
    for (const share of [0, 0.25, 0.5, 0.75]) g.fillText(ms(share * D.wall) + " ms", x(share * D.wall), height - 8);
    g.fillStyle = color("critical"); g.fillRect(x(memory.peak_time) - 1, y(top), 2, height - 20 - y(top));
  });
}
for (const memory of D.memories) {
  const used = D.parts.map(([name, style], k) => [name, style, memory.at_peak[k]]).filter(([, , n]) => n > 0);
  $("memory").append(el("h3", {}, memory.space),
    el("p", {}, `peak ${bytes(memory.peak)} at ${ms(memory.peak_time)} ms, of which ${bytes(memory.before)} were there before`),
    el("canvas"), el("p", { class: "legend" }, ...used.map(([name, style, n]) => el("span", {}, el("i", { style: `background:var(--${style})` }), `${name} ${bytes(n)}`))),
    ...memory.advice.map((said) => el("p", {}, said)),
    memory.owners.length ? table(["owner at the peak", "bytes", "tensors", "for", "line"], memory.owners.map((o) => [o.name, bytes(o.nbytes), o.count, o.kind, o.line])) : "");
}

// --- graphs, lines ---------------------------------------------------------------------------
const actor = (n) => "a" + String(n).padStart(2, "0");
$("plan").append(D.plans.length ? el("p", { class: "dim" }, "what the graphs' launches ran, summed over all of them") : el("p", {}, "no graph was launched, or its tasks were not recorded (level 2)"),
  ...D.plans.map((p) => el("div", {}, el("h3", {}, `${p.name}: ${p.launches} launches` + (p.registers ? `, ${p.registers} registers, chunk ${bytes(p.chunk)}` : "")),
    ...p.notes.map((said) => el("p", {}, said)),
    ...(p.actors.length ? [table(["actor", "", "stream", "tasks", "inputs", "credits", "acts", "ms each", "busy", "waited for"], p.actors.map((a) => [actor(a.number),
      a.label, a.stream, a.tasks, a.inputs.map(actor).join(" "), a.credits.map(([n, back]) => `${actor(n)}-${back}`).join(" "), a.acts, ms(a.each),
      el("span", { class: "meter", style: `width:${Math.round(120 * a.busy)}px` }), a.state]))] : []),
    table(["task", "op", "n", "ms", "", "module", "stream", "line"], p.tasks.map((t) => [t.task, t.op, t.count, t.time ? ms(t.time) : "",
      el("span", { class: "meter", style: `width:${Math.round(120 * t.time / (p.time || 1))}px` }), t.module, t.stream, t.line])))));
$("source").append(table(["line", "n", "ms", "", "code"], D.tables.line.slice().sort((a, b) => b.run - a.run).map((r) => [
  el("a", { onclick: () => search(r.name) }, r.name || "(flowvm itself)"), r.count, ms(r.run),
  el("span", { class: "meter", style: `width:${Math.round(160 * r.run / Math.max(1, ...D.tables.line.map((l) => l.run)))}px` }), D.sources[r.name] || ""])));

// --- drawing ---------------------------------------------------------------------------------
let asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    if (state.tab === "timeline") drawTimeline();
    if (state.tab === "dag") drawDag();
    if (state.tab === "memory") drawMemory();
  });
}
layoutDag();
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
{ // report.html#timeline opens a tab, report.html#311 an instruction
  const asked = location.hash.slice(1);
  show(TABS.includes(asked) ? asked : "verdict");
  const i = /^\d+$/.test(asked) ? C.seq.indexOf(Number(asked)) : -1;
  if (i >= 0) { show("timeline"); select(i); reveal(i); }
}
window.flowvm = { state, states: D.states, select, search, show, zoom, nodes: () => nodes, lanes }; // for tests
