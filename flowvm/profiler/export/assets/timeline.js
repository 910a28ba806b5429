// The timeline: what each stream did at every moment. A frame looks at one interval per pixel.

for (const cause of [...D.states.filter((c) => D.meaning[c]), "critical"]) {
  const meaning = D.meaning[cause] || "on the observed path";
  $("timeline").querySelector(".causes").append(" ", el("span", { class: "key", title: meaning },
    el("span", { style: `background:var(--${cause})` }), " " + cause));
}
const canvas = $("timeline").querySelector("canvas");
const TOP = 30, MOST_ARROWS = 300, [LEAST_ROW_HIGH, MOST_ROW_HIGH] = [26, 64];
let ROW = LEAST_ROW_HIGH; // a lane's height: what there is, within bounds
let begins = 150; // where lanes begin, behind their names
const left = () => begins;
// lanes: {name, begin, end, state or op index, instruction}; rows sorted by begin
const lanes = D.lanes.map((lane) => ({ name: lane.name, kind: lane.kind, part: lane.part,
  begin: C[lane.key + ".begin"], end: C[lane.key + ".end"], what: C[lane.key + ".what"],
  ins: C[lane.key + ".ins"], op: C[lane.key + ".op"], task: C[lane.key + ".task"], line: C[lane.key + ".line"] }));
const RUN = D.states.indexOf("run");
// of several ranks each is a group of lanes below a head
const rowOf = lanes.map((lane, k) => k + (D.ranks ? lane.part + 1 : 0));
const laneAt = new Map(rowOf.map((row, k) => [row, lanes[k]]));
const rows = lanes.length + (D.ranks ? D.parts.length : 0);
let down = 0; // pixels above what is to be seen
const yOf = (lane) => TOP + rowOf[lane] * ROW - down;
const titleOf = (lane) => D.ranks ? lane.name.replace(D.parts[lane.part].name + " ", "") : lane.name;
const xOf = (t, width) =>
  left() + (t - state.from) / (state.to - state.from) * (width - left() - 10);
const tOf = (x, width) =>
  state.from + (x - left()) / (width - left() - 10) * (state.to - state.from);
function firstVisible(ends, from, low = 0) { // ends never decrease within a lane
  let lo = low, hi = ends.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (ends[mid] < from) lo = mid + 1; else hi = mid; }
  return lo;
}
drawers.timeline = () => {
  const [g, width, height] = fit(canvas);
  begins = width < 600 ? 112 : 150; // "critical path" fits
  const text = color("text"), dim = color("dim"), edge = color("edge");
  ROW = Math.max(LEAST_ROW_HIGH, Math.min(MOST_ROW_HIGH, Math.floor((height - TOP - 8) / rows)));
  down = Math.max(0, Math.min(down, TOP + rows * ROW + 8 - height));
  if (D.ranks) drawRanks(g, width);
  const step = niceStep((state.to - state.from) / Math.max(1, (width - left()) / 110));
  const ticks = (each) => { for (let t = Math.ceil(state.from / step) * step; t <= state.to; t += step) each(xOf(t, width), ms(t) + " ms"); };
  g.fillStyle = edge;
  ticks((x) => g.fillRect(x, 18, 1, height));
  lanes.forEach((lane, k) => { if (yOf(k) > 0 && yOf(k) < height) drawLane(g, lane, yOf(k), width, text); });
  if (D.ranks) drawTies(g, width);
  if (state.selected >= 0) drawEdges(g, width);
  g.fillStyle = color("back"); g.fillRect(0, 0, width, 18);
  g.fillStyle = dim;
  ticks((x, said) => { if (x + 3 + g.measureText(said).width < width) g.fillText(said, x + 3, 10); });
  if (state.moment >= 0 && state.time >= state.from && state.time <= state.to) {
    g.fillStyle = color("mark");
    g.fillRect(xOf(state.time, width) - 1, 0, 2, height);
  }
};
function niceStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  for (const k of [1, 2, 5, 10]) if (k * power >= raw) return k * power;
  return 10 * power;
}
function drawLane(g, lane, y, width, text) {
  const perPixel = (state.to - state.from) / (width - begins - 10);
  drawText(g, titleOf(lane), 8, y + ROW / 2, begins - 12, text);
  let drawn = -1;
  for (let k = firstVisible(lane.end, state.from);
    k < lane.begin.length && lane.begin[k] <= state.to; k++) {
    const x0 = Math.max(begins, xOf(lane.begin[k], width));
    const x1 = Math.min(width, xOf(lane.end[k], width));
    if (x1 < begins) continue;
    if (x1 - drawn < 0.4) { // several in one pixel: one is drawn
      k = firstVisible(lane.end, lane.end[k] + (0.4 - x1 + drawn) * perPixel, k + 1) - 1;
      continue;
    }
    drawn = Math.max(x1, x0 + 0.5);
    const i = lane.ins[k], cause = D.states[lane.what[k]], running = lane.what[k] === RUN;
    g.fillStyle = running && i >= 0 && C.critical[i] ? color("critical") : color(cause);
    const inset = running || lane.kind === "path" ? 3 : Math.round(ROW / 3);
    g.fillRect(x0, y + inset, Math.max(0.7, x1 - x0), ROW - 2 * inset);
    const chosen = lane.kind === "tasks" && state.task && lane.task[k] === state.task.number && op(i) === state.task.plan;
    if ((i === state.selected && i >= 0) || chosen) {
      g.strokeStyle = color("mark"); g.lineWidth = 2;
      g.strokeRect(x0, y + 2, Math.max(2, x1 - x0), ROW - 4);
    } else if (state.found.length && running && i >= 0 && state.marks.has(i)) {
      g.fillStyle = color("mark"); g.fillRect(x0, y + ROW - 4, Math.max(1.5, x1 - x0), 3);
    }
    if (x1 - x0 > 34 && (running || ROW - 2 * inset >= 14)) {
      const name = !running ? cause : lane.kind === "tasks" ? D.names[lane.op[k]] : i >= 0 ? op(i) : "";
      drawText(g, name, x0 + 4, y + ROW / 2, x1 - x0 - 7, color(cause === "host" ? "text" : "back"));
    }
  }
}
const laneOfStream = D.streams.map((name) =>
  lanes.findIndex((lane) => lane.kind === "stream" && lane.name === name));
const laneOf = (i) => laneOfStream[C.stream[i]];
function drawEdges(g, width) {
  const i = state.selected, row = laneOf(i);
  for (let e = into[i]; e < into[i + 1]; e++) {
    const j = C.source[e], from = laneOf(j);
    if (from < 0 || row < 0) continue;
    const x0 = xOf(C.ended[j], width), x1 = xOf(C.started[i], width);
    const y0 = yOf(from) + ROW / 2, y1 = yOf(row) + ROW / 2;
    g.strokeStyle = color(ACCESS[C.access[e]]); g.lineWidth = C.producer[i] === j ? 2.5 : 1;
    g.beginPath(); g.moveTo(x0, y0); g.bezierCurveTo(x0 + 30, y0, x1 - 30, y1, x1, y1); g.stroke();
  }
}
// Ranks: a head above each one's lanes, and every second one shaded.
function drawRanks(g, width) {
  D.parts.forEach((part, k) => {
    const own = lanes.findIndex((lane) => lane.part === k), y = yOf(own) - ROW;
    const next = lanes.findIndex((lane) => lane.part === k + 1), end = next < 0 ? TOP + rows * ROW - down : yOf(next) - ROW;
    if (k % 2) { g.fillStyle = color("lane"); g.fillRect(0, y, width, end - y); }
    g.fillStyle = color("edge"); g.fillRect(0, y, width, 1);
    const { late, others } = D.ranks.ranks[k];
    g.font = "bold 12px " + FONT; drawText(g, part.name, 8, y + ROW / 2, begins, color("text")); g.font = "12px " + FONT;
    if (late) drawText(g, `came last to ${late} of ${counted(D.ranks.names.length, "collective")}, others waited ${ms(others)} ms`, begins, y + ROW / 2, width - begins, color("dim"));
  });
}
// The parts of each collective: an arrow from who came last, when it came, to each that had waited.
const partTie = (k, rank) => k * D.parts.length + rank;
function lateOf(k) { // who came last
  let late = 0;
  for (let r = 1; r < D.parts.length; r++) if (C["tie.begin"][partTie(k, r)] > C["tie.begin"][partTie(k, late)]) late = r;
  return late;
}
function drawTies(g, width) {
  const most = D.ranks.names.length, mine = state.selected >= 0 ? tieOf(state.selected) : -1;
  let drawn = 0;
  for (let k = 0; k < most && drawn < MOST_ARROWS; k++) {
    const late = lateOf(k), at = C["tie.begin"][partTie(k, late)];
    if (at < state.from || at > state.to) continue;
    drawn++;
    const x = xOf(at, width), from = laneOf(C["tie.instruction"][partTie(k, late)]);
    g.fillStyle = color("text");
    for (let r = 0; r < D.parts.length; r++) {
      const to = laneOf(C["tie.instruction"][partTie(k, r)]);
      if (r === late || from < 0 || to < 0) continue;
      const y0 = yOf(from) + ROW / 2, y1 = yOf(to) + ROW / 2, way = Math.sign(y1 - y0);
      g.strokeStyle = g.fillStyle = color("text"); g.lineWidth = k === mine ? 2.6 : 1.2;
      g.setLineDash([5, 3]); g.beginPath(); g.moveTo(x, y0); g.lineTo(x, y1 - 7 * way); g.stroke(); g.setLineDash([]);
      g.beginPath(); g.moveTo(x - 4, y1 - 8 * way); g.lineTo(x + 4, y1 - 8 * way); g.lineTo(x, y1); g.fill();
    }
    g.beginPath(); g.arc(x, yOf(from) + ROW / 2, 3.4, 0, 7); g.fill();
  }
}
function hit(event) {
  const box = canvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const lane = laneAt.get(Math.floor((y - TOP + down) / ROW));
  if (!lane || x < left()) return null;
  const t = tOf(x, box.width), slack = (state.to - state.from) / box.width * 2;
  let best = null, nearest = Infinity;
  for (let k = firstVisible(lane.end, t - slack);
    k < lane.begin.length && lane.begin[k] <= t + slack; k++) {
    // what ran counts before the gaps beside it: it may be narrower than a pointer can be placed
    const ran = lane.what[k] === RUN;
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
handle(canvas, {
  moved: (dx, dy) => { down -= dy; move(state.from - dx / canvas.getBoundingClientRect().width * (state.to - state.from)); },
  zoomed: (factor, x) => zoom(1 / factor, tOf(x, canvas.getBoundingClientRect().width)),
  hovered: (event) => { const found = hit(event); tip(event, found && describe(found)); },
  clicked: (event) => {
    const found = hit(event), plan = found && found.lane.kind === "tasks" && D.plans.find((p) => p.name === op(found.lane.ins[found.k]));
    if (plan) selectTask(plan, found.lane.task[found.k], found.lane.ins[found.k]);
    else select(found && found.lane.ins[found.k] >= 0 ? found.lane.ins[found.k] : -1);
  },
});
canvas.addEventListener("keydown", (event) => {
  const span = state.to - state.from;
  const act = {
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4),
    ArrowLeft: () => move(state.from - span / 8), ArrowRight: () => move(state.from + span / 8),
    ArrowUp: () => { down -= 2 * ROW; draw(); }, ArrowDown: () => { down += 2 * ROW; draw(); },
    0: () => { down = 0; state.from = 0; state.to = D.wall; draw(); }, Escape: () => select(-1),
  }[event.key];
  if (act) { act(); event.preventDefault(); }
});
function describe({ lane, k }) {
  const i = lane.ins[k], cause = D.states[lane.what[k]];
  const span = `${ms(lane.end[k] - lane.begin[k])} ms at ${ms(lane.begin[k])}`;
  if (lane.kind === "tasks") {
    return `${D.names[lane.op[k]]} of ${label(i)}\n${span}\n${D.lines[lane.line[k]]}`;
  }
  if (i < 0) return `${cause}: ${D.meaning[cause] || ""}\n${span}`;
  if (cause === "run") return `${label(i)}\n${span}\n${D.lines[C.line[i]]}`;
  return `${cause}: ${D.meaning[cause]}\n${label(i)} came next\n${span}`;
}
revealers.push((i) => {
  const took = C.ended[i] - C.started[i], span = Math.min(D.wall, Math.max(2000, 40 * took));
  if (C.started[i] < state.from || C.ended[i] > state.to || took / (state.to - state.from) < 0.001) {
    state.from = (C.started[i] + C.ended[i]) / 2 - span / 2; state.to = state.from + span;
  }
});
