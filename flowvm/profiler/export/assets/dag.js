// The layered graph: streams are lanes, boxes are modules, and what is below waits for what is
// above. Only what is in sight is drawn; far out a row of pixels stands for many layers.

const dagCanvas = $("graph"), MANY = 150; // instructions: of more, a line each to begin with
const dag = { y: 0, x: 0, row: N > MANY ? 21 : 46, releases: false, dirty: true };
const HEAD = 24, GAP = 10; // the lanes' names; between columns
const LEAST_ROW = 0.004, MOST_ROW = 90, TEXT_ROW = 18, LINK_ROW = 10, MOST_LINKS = 1500;
const usedStreams = D.order.filter((s) => C.stream.includes(s));
const laneNumber = new Int32Array(D.streams.length);
usedStreams.forEach((s, k) => { laneNumber[s] = k; });
let shown, boxes, around, scene; // made when the graph is first shown

function arrange() { // which instructions there are, and in which boxes
  shown = new Uint8Array(N);
  for (let i = 0; i < N; i++) shown[i] = dag.releases || !C.release[i] ? 1 : 0;
  boxes = boxesOf(D, C, laneNumber, shown);
  around = innermost(boxes, N);
  openUpTo(boxes, 160);
  layout();
}
function layout() {
  scene = layersOf(boxes, C, E, laneNumber, shown, usedStreams.length);
  for (const box of boxes) if (box.time === undefined) sum(box);
  scene.nodes = scene.item.length;
  dag.dirty = false;
}
function sum(box) { // what a closed box says of those inside
  box.time = 0; box.critical = 0; box.failed = 0;
  for (let i = box.first; i <= box.last; i++) {
    if (!shown[i]) continue;
    box.time += C.ended[i] - C.started[i];
    box.critical |= C.critical[i];
    if (C.status[i]) box.failed++;
  }
}

// --- places ----------------------------------------------------------------------------------
// x of columns and of gutters, which are as wide as their lines need where lines are drawn, and the
// width of a column: what there is, but readable where there is text
function grid() {
  const wide = dagCanvas.clientWidth, linked = dag.row >= LINK_ROW, text = dag.row >= TEXT_ROW, known = dag.grid;
  if (known && known.scene === scene && known.wide === wide && known.linked === linked && known.text === text) return known;
  const total = scene.start[scene.start.length - 1];
  const gutters = scene.routes.tracks.map((n) => GAP + (linked ? n * TRACK : 0)), sum = gutters.reduce((a, b) => a + b, 0);
  const cell = Math.max(text ? 104 : 6, Math.min(420, (wide - sum) / total)), x = [], gutter = [];
  for (let k = 0, at = 0; k <= total; k++) {
    gutter.push(at); at += gutters[k]; x.push(at); at += cell;
  }
  return dag.grid = { scene, wide, linked, text, x, gutter, cell, all: x[total] };
}
const TRACK = 4;
const deep = (depth) => Math.max(2, 8 - 2 * depth); // from a frame to what is in it
const rowTop = (y) => HEAD + scene.tops[y] * dag.row - dag.y;
const laneAtX = (lane) => { const { x, gutter } = grid(), k = scene.start[lane]; return (k < x.length - 1 ? (gutter[k] + x[k]) / 2 : grid().all) - dag.x; };
function layerAt(high) { // the layer that is so many rows down
  let low = 0, past = scene.rows;
  while (low < past) { const middle = (low + past) >> 1; if (scene.tops[middle + 1] <= high) low = middle + 1; else past = middle; }
  return low;
}
function placeOf(node) { // x, y, width, height
  const { x, cell } = grid(), first = scene.firsts[node], last = scene.lasts[node];
  const space = dag.row < LINK_ROW ? dag.row * 0.28 : Math.min(14, Math.max(9, dag.row * 0.3));
  const above = dag.row < LINK_ROW ? space / 2 : space - 2;
  return [x[first] - dag.x, rowTop(scene.layer[node]) + above, x[last] - x[first] + cell,
    Math.max(1, dag.row - space)];
}
function frameOf(frame) { // x0, y0, x1, y1
  const { x, cell } = grid(), inset = deep(frame.depth), shut = 1.5 - 0.7 * Math.min(frame.depth, 4);
  return [x[scene.start[frame.low]] - inset - dag.x, rowTop(frame.from) + 3,
    x[scene.start[frame.high + 1] - 1] + cell + inset - dag.x, rowTop(frame.to) + (dag.row < LINK_ROW ? 0 : shut)];
}
// the points of a line, from its source to its port
function routeOf(k) {
  const { how, gutter, track, level, port, ports } = scene.routes, [ax, ay, aw, ah] = placeOf(scene.from[k]);
  const [bx, by, bw] = placeOf(scene.to[k]), to = bx + bw * (port[k] + 1) / (ports[k] + 1);
  const along = by - HEAD_HIGH - 1 - level[k] * 1.8;
  if (how[k] === 0) return [[to, ay + ah], [to, by]];
  if (how[k] === 1) return [[ax + aw / 2, ay + ah], [ax + aw / 2, along], [to, along], [to, by]];
  const g = gutter[k], x = grid().gutter[g] + GAP * 0.6 + track[k] * TRACK - dag.x, right = x > ax;
  const out = ay + ah / 2 + (track[k] % 3 - 1) * Math.min(3, ah / 5);
  return [[right ? ax + aw : ax, out], [x, out], [x, along], [to, along], [to, by]];
}
function extent() { return [(scene.tops[scene.rows] + 1) * dag.row, grid().all]; }
function hold() { // what there is stays in sight
  const [high, wide] = extent();
  dag.y = Math.max(0, Math.min(dag.y, high - (dagCanvas.clientHeight - HEAD) * 0.6));
  dag.x = Math.max(0, Math.min(dag.x, wide - dagCanvas.clientWidth));
}
function inSight() { // how many instructions and closed boxes are on the screen
  const wide = dagCanvas.clientWidth, high = dagCanvas.clientHeight;
  return scene.item.filter((_, node) => { const [x, y, w, h] = placeOf(node); return x >= 0 && x + w <= wide && y >= HEAD && y + h <= high; }).length;
}
function nameOf(node) {
  const what = scene.item[node];
  if (what >= 0) {
    const module = D.modules[C.module[what]].split(".").slice(1).join(".");
    return [label(what), [`${ms(C.ended[what] - C.started[what])} ms`, module, D.lines.at(C.line[what])].filter((text) => text).join("  ")];
  }
  const box = boxes[~what];
  const code = box.kind === "line" ? `  ${D.sources[box.name] || ""}` : "";
  return [box.name, `${box.n.toLocaleString("en")} ins  ${ms(box.time)} ms${code}`];
}

// --- a frame ---------------------------------------------------------------------------------
drawers.dag = () => {
  arranged();
  for (const sample of drawers.legend) sample();
  hold();
  const [g, width, height] = fit(dagCanvas);
  const first = Math.max(0, layerAt(dag.y / dag.row) - 1);
  const last = Math.min(scene.rows, layerAt((dag.y + height - HEAD) / dag.row) + 1);
  usedStreams.forEach((_, k) => { // lanes
    const x = k ? laneAtX(k) : 0;
    if (k % 2) { g.fillStyle = color("lane"); g.fillRect(x, 0, laneAtX(k + 1) - x, height); }
    if (k) { g.strokeStyle = color("edge"); g.lineWidth = 1; g.setLineDash([4, 4]); g.beginPath(); g.moveTo(x, 0); g.lineTo(x, height); g.stroke(); g.setLineDash([]); }
  });
  if (dag.row < LINK_ROW) drawFar(g, first, last, height);
  drawFrames(g, height, first, last);
  if (dag.row >= LINK_ROW) { drawLinks(g, first, last); drawNodes(g, first, last); }
  g.fillStyle = color("back"); g.globalAlpha = 0.92; g.fillRect(0, 0, width, HEAD - 2); g.globalAlpha = 1;
  usedStreams.forEach((s, k) => drawText(g, D.streams[s], (k ? laneAtX(k) : 0) + GAP, 11,
    laneAtX(k + 1) - laneAtX(k) - GAP, color("text")));
  const at = layerAt(dag.y / dag.row), around = scene.frames.filter((f) => f.from < at && f.to > at);
  if (around.length && !D.ranks) drawText(g, around.map((f) => boxes[f.box].name).join(" › "), width / 2, 11, width / 2 - 8, color("dim"));
  drawScroll(g, width, height);
};
function drawFrames(g, height, first, last) {
  let said = -Infinity; // y of the title above
  for (const frame of scene.frames) {
    if (frame.to < first || frame.from > last || (scene.tops[frame.to] - scene.tops[frame.from]) * dag.row < 6) continue;
    const [x0, y0, x1, y1] = frameOf(frame);
    g.strokeStyle = color({ module: "dep", rank: "sync" }[boxes[frame.box].kind] || "head"); g.lineWidth = 1;
    g.globalAlpha = 0.75; g.beginPath(); g.roundRect(x0, y0, x1 - x0, y1 - y0, 6); g.stroke(); g.globalAlpha = 1;
    const far = dag.row < LINK_ROW, box = boxes[frame.box], y = far ? y0 + 8 : y0 + Math.max(6, Math.min(dag.row * LOW_ROW / 2, 12) - 1);
    if (dag.row < TEXT_ROW && (y1 - y0 < 16 || y - said < 14)) continue;
    said = y;
    const code = box.kind === "line" ? "  " + (D.sources[box.name] || "") : "";
    const title = `▾ ${box.name} ${box.n.toLocaleString("en")} ins ${ms(box.time)} ms${code}`;
    const wide = Math.min(x1 - x0, grid().cell) - 12; // lines may go where the next column is
    if (far) { // on what it covers
      g.globalAlpha = 0.9; g.fillStyle = color("back"); g.fillRect(x0 + 4, y - 7, Math.min(wide, title.length * LETTER) + 4, 14); g.globalAlpha = 1;
    }
    drawText(g, title, x0 + 6, y, wide, color("dim"));
  }
}
function drawLinks(g, first, last) {
  const { byLayer, from, to, code, critical, inTo, outOf, layer, nodeOf } = scene;
  const chosen = state.selected >= 0 ? nodeOf[state.selected] : -1, late = [];
  let drawn = 0;
  const line = (k, strong) => {
    if (drawn++ > MOST_LINKS && !strong) return;
    drawLink(g, routeOf(k), Math.floor(code[k] / 3), code[k] % 3,
      { strong: strong || critical[k], faint: chosen >= 0 && !strong });
  };
  const mine = (k) => chosen >= 0 && (from[k] === chosen || to[k] === chosen);
  for (let v = byLayer.start[first]; v < byLayer.start[last]; v++) {
    const node = byLayer.order[v];
    for (let k = inTo.start[node]; k < inTo.start[node + 1]; k++) {
      const l = inTo.order[k];
      if (mine(l)) late.push(l); else line(l, false);
    }
    for (let k = outOf.start[node]; k < outOf.start[node + 1]; k++) {
      const l = outOf.order[k];
      if (layer[to[l]] < last) continue; // drawn where it arrives
      if (mine(l)) late.push(l); else line(l, false);
    }
  }
  for (const l of late) line(l, true);
  if (D.ranks) drawMeetings(g, first, last);
  const left = drawn - late.length - MOST_LINKS;
  if (left > 0) drawText(g, `closer in: ${left.toLocaleString("en")} more lines`, GAP, dagCanvas.clientHeight - 10, 400, color("dim"));
}
// The parts of a collective, which ranks make together: a dashed line from who came last.
function drawMeetings(g, first, last) {
  const { nodeOf, layer } = scene, chosen = state.selected >= 0 ? tieOf(state.selected) : -1, seen = new Set();
  for (let k = 0; k < D.ranks.names.length && seen.size < MOST_LINKS; k++) {
    const late = lateOf(k), from = nodeOf[C["tie.instruction"][partTie(k, late)]];
    for (let r = 0; r < D.parts.length; r++) {
      const to = nodeOf[C["tie.instruction"][partTie(k, r)]];
      if (r === late || from < 0 || to < 0 || seen.has(from * scene.nodes + to)) continue;
      if (Math.max(layer[from], layer[to]) < first || Math.min(layer[from], layer[to]) > last) continue;
      seen.add(from * scene.nodes + to);
      drawMeeting(g, placeOf(from), placeOf(to), k === chosen);
    }
  }
}
function drawNodes(g, first, last) {
  const { byLayer, item, nodeOf } = scene, chosen = state.selected >= 0 ? nodeOf[state.selected] : -1;
  const states = state.moment >= 0 ? machine().go(state.moment) : null;
  for (let v = byLayer.start[first]; v < byLayer.start[last]; v++) {
    const node = byLayer.order[v], what = item[node], box = what < 0 ? boxes[~what] : null;
    const [x, y, width, height] = placeOf(node);
    const [title, below] = height >= 12 ? nameOf(node) : ["", ""];
    const failed = box ? (box.failed ? "✗" : "") : C.status[what] ? (C.status[what] === 1 << 20 ? "∅" : "✗") : "";
    drawNode(g, x, y, width, height, { title, below, failed, pile: box !== null,
      critical: box ? box.critical : C.critical[what], selected: node === chosen,
      marked: state.marks.size > 0 && (box ? anyMarked(box) : state.marks.has(what)),
      stage: states ? (box ? stageOf(box, states) : states[what]) : -1 });
  }
}
function anyMarked(box) { // found is in program order
  let low = 0, high = state.found.length;
  while (low < high) { const mid = (low + high) >> 1; if (state.found[mid] < box.first) low = mid + 1; else high = mid; }
  return low < state.found.length && state.found[low] <= box.last;
}
function stageOf(box, states) { // running if something runs, else where the first is that is not done
  let seen = -1, any = false;
  for (let i = box.first; i <= box.last; i++) {
    if (!shown[i]) continue;
    if (states[i] === 5) return 5;
    any = any || states[i] > 0;
    if (seen < 0 && states[i] < 7) seen = states[i];
  }
  return seen < 0 ? 7 : any ? Math.max(1, seen) : 0;
}
function drawFar(g, first, last, height) { // a row of pixels is what its layers have most of
  const { byLayer, layer, item, start, nodeOf } = scene, { x, cell } = grid();
  const total = start[start.length - 1], rows = Math.ceil(height) + 1, thick = Math.max(1, dag.row - 1);
  const seen = new Uint8Array(rows * total), hot = new Uint32Array(rows * total), states = state.moment >= 0 ? machine().go(state.moment) : null;
  for (let v = byLayer.start[first]; v < byLayer.start[last]; v++) {
    const node = byLayer.order[v], y = Math.round(rowTop(layer[node]) - HEAD);
    if (y < 0 || y >= rows) continue;
    const what = item[node], box = what < 0 ? boxes[~what] : null;
    const marked = state.marks.size > 0 && (box ? anyMarked(box) : state.marks.has(what));
    const stage = states && !box ? states[what] : -1;
    const value = marked ? 4 : stage === 5 ? 3 : stage === 0 ? 1 : 2;
    const from = scene.firsts[node], to = scene.lasts[node];
    const critical = box ? box.critical : C.critical[what];
    for (let k = from; k <= to; k++) {
      if (seen[y * total + k] < value) seen[y * total + k] = value;
      if (critical) hot[y * total + k]++;
    }
  }
  const paints = ["", color("edge"), color("head"), color("run"), color("mark")];
  for (let y = 0; y < rows; y++) {
    for (let k = 0; k < total; k++) {
      const value = seen[y * total + k];
      if (!value) continue;
      g.fillStyle = paints[value];
      g.fillRect(x[k] - dag.x, HEAD + y, cell, thick);
      if (!hot[y * total + k]) continue; // the more of it is critical, the wider
      g.fillStyle = color("critical");
      g.fillRect(x[k] - dag.x, HEAD + y, cell * Math.min(1, hot[y * total + k] * Math.min(1, dag.row) / 2), thick);
    }
  }
  if (state.selected >= 0 && nodeOf[state.selected] >= 0) {
    const [at, y, width] = placeOf(nodeOf[state.selected]);
    g.strokeStyle = color("mark"); g.lineWidth = 3; g.strokeRect(at - 3, y - 4, width + 6, Math.max(8, dag.row + 4));
  }
}
function drawScroll(g, width, height) { // where in the whole this is
  const [high] = extent(), room = height - HEAD;
  if (high <= room) return;
  g.fillStyle = color("head"); g.globalAlpha = 0.6;
  g.fillRect(width - 5, HEAD + dag.y / high * room, 4, Math.max(12, room * room / high));
  g.globalAlpha = 1;
}

// --- acting ----------------------------------------------------------------------------------
function scaleTo(row, y = dagCanvas.clientHeight / 2) {
  const at = (y - HEAD + dag.y) / dag.row;
  dag.row = Math.max(LEAST_ROW, Math.min(MOST_ROW, row));
  dag.y = at * dag.row - (y - HEAD);
  draw();
}
function whole() {
  dag.y = dag.x = 0;
  scaleTo(Math.min(46, (dagCanvas.clientHeight - HEAD - 8) / (scene.tops[scene.rows] + 0.5)), HEAD);
}
function toggle(number) {
  const box = boxes[number], seen = scene.number.get(number);
  const before = seen === undefined ? scene.frames.find((f) => f.box === number).from : scene.layer[seen];
  const y = rowTop(before);
  box.open = !box.open;
  layout();
  const frame = scene.frames.find((f) => f.box === number);
  const after = frame ? frame.from : scene.layer[scene.number.get(number)];
  dag.y = HEAD + scene.tops[after] * dag.row - y; // what was clicked stays where it is
  $("said").textContent = `${box.name} ${box.open ? "opened" : "closed"}, ${counted(box.n, "instruction")}`;
  draw();
}
function openAll(open) {
  for (const [k, box] of boxes.entries()) box.open = open || k === 0;
  layout();
  if (state.selected >= 0) revealNode(state.selected); else whole();
}
function arranged() { if (!scene) arrange(); else if (dag.dirty) layout(); }
function revealNode(i) {
  arranged();
  if (C.release[i] && !dag.releases) { dag.releases = true; arrange(); }
  if (openAround(boxes, around, i) || dag.dirty) layout();
  const node = scene.nodeOf[i];
  if (dag.row < TEXT_ROW) dag.row = 46;
  const y = scene.tops[scene.layer[node]] * dag.row, room = dagCanvas.clientHeight - HEAD || 400;
  if (y < dag.y || y > dag.y + room - 2 * dag.row) dag.y = y - room / 3;
  const [x, , width] = placeOf(node);
  if (x < 0) dag.x += x - GAP; else if (x + width > dagCanvas.clientWidth) dag.x += x + width - dagCanvas.clientWidth + GAP;
  draw();
}
revealers.push((i) => { if (state.tab === "dag") revealNode(i); });

function nodeAt(event) { // {node} or {frame}, whose header is there
  const rect = dagCanvas.getBoundingClientRect(), px = event.clientX - rect.left, py = event.clientY - rect.top;
  const y = layerAt((py - HEAD + dag.y) / dag.row);
  if (py - HEAD + dag.y < 0 || y >= scene.rows || py < HEAD) return null;
  const { byLayer } = scene;
  for (let v = byLayer.start[y]; v < byLayer.start[y + 1]; v++) {
    const [x, , width] = placeOf(byLayer.order[v]);
    if (px >= x && px <= x + width) return { node: byLayer.order[v] };
  }
  const inside = scene.frames.filter((f) => { const [x0, , x1] = f.from === y ? frameOf(f) : []; return px >= x0 && px <= x1; });
  return inside.length ? { frame: inside[inside.length - 1] } : null;
}
handle(dagCanvas, {
  moved: (dx, dy) => { dag.x -= dx; dag.y -= dy; draw(); },
  zoomed: (factor, x, y) => scaleTo(dag.row * factor, y),
  hovered: (event) => {
    const at = nodeAt(event);
    tip(event, at && at.node !== undefined ? nameOf(at.node).join("\n")
      : at ? `${boxes[at.frame.box].name}: click to close` : "");
  },
  clicked: (event) => {
    const at = nodeAt(event);
    if (!at) select(-1);
    else if (at.frame) toggle(at.frame.box);
    else if (scene.item[at.node] < 0) toggle(~scene.item[at.node]);
    else select(scene.item[at.node]);
  },
});
dagCanvas.addEventListener("keydown", (event) => {
  const i = state.selected, to = (j) => { if (j >= 0 && j < N) { select(j); reveal(j); } };
  const beside = (step) => { let j = i + step; while (j >= 0 && j < N && !shown[j]) j += step; to(j); };
  const start = () => to(shown.indexOf(1));
  const act = {
    "+": () => scaleTo(dag.row * 1.3), "=": () => scaleTo(dag.row * 1.3), "-": () => scaleTo(dag.row / 1.3),
    0: whole, Escape: () => select(-1),
    PageDown: () => { dag.y += dagCanvas.clientHeight * 0.8; draw(); },
    PageUp: () => { dag.y -= dagCanvas.clientHeight * 0.8; draw(); },
    ArrowUp: () => { if (i < 0) start(); else to(C.producer[i] >= 0 ? C.producer[i] : into[i] < into[i + 1] ? C.source[into[i]] : -1); },
    ArrowDown: () => { if (i < 0) start(); else for (let k = outStart[i]; k < outStart[i + 1]; k++) if (shown[C.target[outEdges[k]]]) { to(C.target[outEdges[k]]); break; } },
    ArrowLeft: () => { if (i < 0) start(); else beside(-1); }, ArrowRight: () => { if (i < 0) start(); else beside(1); },
    Enter: () => { if (i >= 0) { const node = scene.nodeOf[i], what = node >= 0 ? scene.item[node] : 0; const box = what < 0 ? ~what : around[i]; if (box) toggle(box); } },
  }[event.key];
  if (act) { act(); event.preventDefault(); }
});
function nextCritical() { // the next on the critical path, from the one that is selected
  for (let k = 1; k <= N; k++) {
    const i = (Math.max(state.selected, -1) + k) % N;
    if (C.critical[i] && shown[i]) { select(i); revealNode(i); return; }
  }
}
$("dag").querySelector(".bar").append(
  button("+", () => scaleTo(dag.row * 1.5), "zoom in"), button("−", () => scaleTo(dag.row / 1.5), "zoom out"),
  button("all", whole, "show all of it"), button("open", () => openAll(true), "open every box"),
  button("close", () => openAll(false), "close every box"),
  button("◆ next", nextCritical, "the next instruction on the critical path"),
  button("longest", (event) => {
    const longest = C.critical === C.observed;
    C.critical = longest ? C.longest : C.observed;
    event.currentTarget.setAttribute("aria-pressed", longest);
    arranged();
    for (const box of boxes) box.time = undefined;
    layout(); draw();
  }, "mark the longest chain of data, or what the run waited for"),
  button("releases", () => { dag.releases = !dag.releases; arrange(); draw(); }, "show or hide instructions that release tensors"),
  ...legend());
