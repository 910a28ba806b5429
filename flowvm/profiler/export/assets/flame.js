// The flame graph of `p.flame`: Python's stacks above, what they did and issued below.
// Each part is as wide as its share; a click makes it the whole, a click on what is around goes back.

const FLAME_ROW = 22;
const flame = { by: "time", root: null, at: null };
const heat = (n) => (flame.by === "time" ? ms(n) + " ms" : bytes(n));

function flames(by) { // parts: {name, value, own, parts (by name), depth}
  const root = { name: "the run", value: 0, own: 0, parts: new Map(), depth: 0, up: null };
  for (const [stack, value] of D.flames[by]) {
    let at = root;
    root.value += value;
    for (const frame of stack) {
      const name = D.flames.names[frame];
      if (!at.parts.has(name)) {
        at.parts.set(name, { name, value: 0, own: 0, parts: new Map(), depth: at.depth + 1, up: at });
      }
      at = at.parts.get(name);
      at.value += value;
    }
    at.own += value;
  }
  return root;
}
function deepest(part) {
  let most = part.depth;
  for (const inner of part.parts.values()) most = Math.max(most, deepest(inner));
  return most;
}
function sortedParts(part) { return [...part.parts.values()].sort((a, b) => b.value - a.value); }

const flameCanvas = $("flame").querySelector("canvas");
let placed = []; // what was drawn: [part, x, y, width]
drawers.flame = () => {
  if (!flame.root) { flame.root = flame.at = flames(flame.by); hottest(); }
  const around = [];
  for (let part = flame.at.up; part; part = part.up) around.unshift(part);
  flameCanvas.style.height = (deepest(flame.at) + 1) * FLAME_ROW + 4 + "px";
  const [g, width] = fit(flameCanvas);
  placed = [];
  around.forEach((part) => drawPart(g, part, 0, width, true));
  place1(g, flame.at, 0, width);
};
function place1(g, part, x, width) {
  drawPart(g, part, x, width, false);
  let at = x;
  for (const inner of sortedParts(part)) {
    const wide = width * inner.value / Math.max(1, part.value);
    if (wide >= 0.6) place1(g, inner, at, wide); // narrower ones are in the table, and a click away
    at += wide;
  }
}
function drawPart(g, part, x, width, faint) {
  const y = part.depth * FLAME_ROW;
  placed.push([part, x, y, width]);
  g.globalAlpha = faint ? 0.5 : 1;
  const wanted = $("search").value.trim().toLowerCase();
  const found = wanted && part.name.toLowerCase().includes(wanted);
  const mine = state.selected >= 0 && part.name === op(state.selected)
    && part.up && part.up.name === D.lines.at(C.line[state.selected]);
  // operators, which take the time themselves, are filled; what is around them is not
  g.fillStyle = part.own ? color("running") : color("panel");
  g.fillRect(x + 0.5, y + 1, Math.max(0.5, width - 1), FLAME_ROW - 2);
  if (width > 3) {
    g.strokeStyle = found || mine ? color("mark") : color("edge");
    g.lineWidth = found || mine ? 2.5 : 1;
    g.strokeRect(x + 1, y + 1.5, width - 2, FLAME_ROW - 3);
  }
  const share = (100 * part.value / Math.max(1, flame.root.value)).toFixed(1) + " %";
  drawText(g, `${part.name}  ${share}`, x + 5, y + FLAME_ROW / 2, width - 8, color("text"));
  g.globalAlpha = 1;
}
function partAt(event) {
  const box = flameCanvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const hit = placed.findLast(([, left, top, width]) =>
    x >= left && x < left + width && y >= top && y < top + FLAME_ROW);
  return hit ? hit[0] : null;
}
flameCanvas.addEventListener("pointermove", (event) => {
  const part = partAt(event);
  tip(event, part && `${part.name}\n${heat(part.value)}, ${heat(part.own)} of it itself\n${D.sources[part.name] || ""}`);
});
flameCanvas.addEventListener("pointerleave", () => tip(null));
flameCanvas.addEventListener("click", (event) => { const part = partAt(event); if (part) enter(part); });
flameCanvas.addEventListener("keydown", (event) => {
  const beside = (step) => {
    const all = flame.at.up ? sortedParts(flame.at.up) : [flame.at];
    return all[(all.indexOf(flame.at) + step + all.length) % all.length];
  };
  const to = {
    ArrowDown: () => sortedParts(flame.at)[0], ArrowUp: () => flame.at.up, Escape: () => flame.root,
    ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
  }[event.key];
  if (to) { enter(to() || flame.at); event.preventDefault(); }
});
function enter(part) {
  flame.at = part;
  $("said").textContent = `${part.name}, ${heat(part.value)}`;
  draw();
}
function hottest() { // the same in words: what took most, itself
  const sums = new Map();
  const walk = (part) => {
    if (part.own) {
      const key = part.name + "\n" + (part.up ? part.up.name : "");
      const sum = sums.get(key) || [part, 0];
      sum[1] += part.own;
      sums.set(key, sum);
    }
    part.parts.forEach(walk);
  };
  walk(flame.root);
  const rows = [...sums.values()].sort((a, b) => b[1] - a[1]).slice(0, 25);
  $("hot").replaceChildren(table(["itself", flame.by === "time" ? "ms" : "bytes", "share", "", "in"],
    rows.map(([part, own]) => [go(part.name, () => enter(part)),
      flame.by === "time" ? ms(own) : bytes(own), (100 * own / Math.max(1, flame.root.value)).toFixed(1) + " %",
      meter(own / Math.max(1, flame.root.value), 120), part.up ? part.up.name : ""])));
}
function weigh(by) {
  flame.by = by;
  flame.root = null;
  for (const one of $("flame").querySelectorAll(".bar button")) {
    one.setAttribute("aria-pressed", one.textContent === "by " + by);
  }
  draw();
}
$("flame").querySelector(".bar").append(button("by time", () => weigh("time")),
  button("by bytes", () => weigh("bytes")),
  el("span", { class: "dim" }, "click: this part alone · arrows walk, Escape: all"));
$("search").addEventListener("input", draw);
weigh("time");
