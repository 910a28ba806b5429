// What all views share: the data, small helpers, which instruction is selected, the tabs.

const D = JSON.parse(document.getElementById("data").textContent);
const C = columnsOf(D, await inflated(D)), E = edgesOf(C), N = C.seq.length;
C.critical = C.observed; // or C.longest: the graph has a switch
const { into, outStart, outEdges } = E;
const ACCESS = ["const", "mut", "mut2"];
const $ = (id) => document.getElementById(id);

// a style is asked for once; a frame uses a colour thousands of times
let colors = new Map();
function color(name) {
  let found = colors.get(name);
  if (!found) {
    found = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    colors.set(name, found);
  }
  return found;
}
const ms = (ns) => {
  const v = ns / 1e6, size = Math.abs(v);
  return size >= 100 ? v.toFixed(1) : size >= 1 ? v.toFixed(2) : v.toFixed(3);
};
const bytes = (n) => {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) {
    if (Math.abs(n) >= size) return (n / size).toFixed(1) + " " + unit;
  }
  return n + " B";
};
const op = (i) => D.names[C.op[i]];
const label = (i) => "#" + C.seq[i] + " " + op(i);
const counted = (n, what) => n.toLocaleString("en") + " " + what + (n === 1 ? "" : "s");

// the collective that an instruction is a rank's part of, -1 for none; a graph has the first of its
const ties = new Map();
if (D.ranks) for (let at = D.ranks.names.length * D.parts.length - 1; at >= 0; at--) ties.set(C["tie.instruction"][at], Math.floor(at / D.parts.length));
const tieOf = (i) => ties.has(i) ? ties.get(i) : -1;
// parts of a collective stand beside each other where the graph lets them: that of the first rank
if (D.ranks) E.met = (i) => ties.has(i) && C["tie.instruction"][ties.get(i) * D.parts.length] < i ? C["tie.instruction"][ties.get(i) * D.parts.length] : -1;
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
const button = (text, act, said = text) =>
  el("button", { type: "button", "aria-label": said, title: said, onclick: act }, text);
const go = (text, act) => el("button", { type: "button", class: "link", onclick: act }, text);

// columns of numbers, with or without a unit, stand at the right
const counts = (cell) => typeof cell === "number"
  || (typeof cell === "string" && /^(-|-?[\d.,]+( %| B| [KMG]iB)?)$/.test(cell));
function table(heads, rows) {
  const right = heads.map((_, k) =>
    rows.length && rows.every((row) => counts(row[k])) ? { class: "n" } : {});
  const cells = (row) => row.map((cell, k) =>
    el("td", right[k], cell instanceof Node ? cell : String(cell)));
  return el("div", { class: "wide" }, el("table", {},
    el("tr", {}, ...heads.map((h, k) => el("th", { scope: "col", ...right[k] }, h))),
    ...rows.map((row) => el("tr", {}, ...cells(row)))));
}
// The same, sorted by a click on a column's name: by `values`, which stand behind the cells; numbers
// begin with the largest.
function sortable(heads, rows, values) {
  const made = table(heads, rows), [head, ...lines] = made.querySelectorAll("tr");
  let sorted = -1, way = 1;
  [...head.children].forEach((th, k) => {
    if (!heads[k]) return;
    th.replaceChildren(button(heads[k], () => {
      const numbers = values.every((row) => typeof row[k] === "number");
      way = sorted === k ? -way : numbers ? -1 : 1;
      sorted = k;
      const order = [...lines.keys()].sort((a, b) => way * (numbers ? values[a][k] - values[b][k] : String(values[a][k]).localeCompare(String(values[b][k]))) || a - b);
      head.parentNode.append(...order.map((at) => lines[at]));
      [...head.children].forEach((other, n) => { if (n === k) other.setAttribute("aria-sort", way < 0 ? "descending" : "ascending"); else other.removeAttribute("aria-sort"); });
    }, `sort by ${heads[k]}`));
  });
  return made;
}
// a picture in SVG, as an image: nothing in it can run, whatever a name is
const picture = (svg, said) => el("img", { alt: said, src: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg) });
const meter = (share, most) => el("span", { class: "meter", "aria-hidden": "true",
  style: `width:${Math.round(most * Math.min(1, Math.max(0, share)))}px` });

// --- state -----------------------------------------------------------------------------------
const state = { tab: "verdict", from: 0, to: D.wall, selected: -1, found: [], at: 0,
  marks: new Set(), moment: -1, time: 0,
  task: null }; // moment: how many events have happened, -1: not asked; task: of a graph {plan, number}

// Views say how they are drawn, and how they show an instruction that is not to be seen.
const drawers = {}, revealers = [], afterDrawing = [];
let asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    if (drawers[state.tab]) drawers[state.tab]();
    for (const act of afterDrawing) act();
  });
}
function reveal(i) { for (const show of revealers) show(i); draw(); }

const TABS = ["verdict", "timeline", "dag", "moment", "flame", "memory", "plan", "source", ...(D.beside ? ["beside"] : [])];
function show(tab) {
  state.tab = tab;
  for (const section of document.querySelectorAll("section")) section.hidden = section.id !== tab;
  for (const tabButton of $("tabs").children) {
    const chosen = tabButton.textContent === tab;
    tabButton.setAttribute("aria-selected", chosen);
    tabButton.tabIndex = chosen ? 0 : -1;
  }
  if (state.selected >= 0) reveal(state.selected); else draw();
}
for (const name of TABS) {
  $(name).setAttribute("role", "tabpanel");
  $(name).setAttribute("aria-label", name);
  $("tabs").append(el("button", { type: "button", role: "tab", "aria-controls": name,
    onclick: () => show(name) }, name));
}
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  show(TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length]);
  $("tabs").querySelector("[aria-selected=true]").focus();
});
$("title").textContent = D.title;

// --- canvases --------------------------------------------------------------------------------
function fit(c) {
  const ratio = window.devicePixelRatio || 1, box = c.getBoundingClientRect();
  const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
  if (c.width !== width || c.height !== height) { c.width = width; c.height = height; }
  const g = c.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, box.width, box.height);
  g.font = "12px " + FONT;
  g.textBaseline = "middle";
  g.textAlign = "left";
  return [g, box.width, box.height];
}
const FONT = getComputedStyle(document.body).fontFamily;
function tip(event, text) {
  $("tip").hidden = !text;
  if (!text) return;
  $("tip").textContent = text;
  $("tip").style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - 360)) + "px";
  $("tip").style.top = Math.min(event.clientY + 16, innerHeight - 90) + "px";
}

// Drag and pinch of one canvas: moved(dx, dy), zoomed(factor, x, y), clicked(event); x and y are
// places in the canvas.
function handle(c, { moved, zoomed, clicked, hovered }) {
  const fingers = new Map();
  let dragged = false;
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return [Math.hypot(a.x - b.x, a.y - b.y), (a.x + b.x) / 2, (a.y + b.y) / 2];
  };
  c.addEventListener("pointerdown", (event) => {
    if (!fingers.size) dragged = false;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    c.setPointerCapture(event.pointerId);
  });
  c.addEventListener("pointermove", (event) => {
    const finger = fingers.get(event.pointerId);
    if (!finger) { if (hovered) hovered(event); return; }
    const dx = event.clientX - finger.x, dy = event.clientY - finger.y;
    if (fingers.size === 1 && !dragged && Math.hypot(dx, dy) <= 3) return;
    dragged = true;
    tip(null);
    if (fingers.size === 2) {
      const [before] = spread();
      finger.x = event.clientX; finger.y = event.clientY;
      const [after, x, y] = spread(), box = c.getBoundingClientRect();
      zoomed(after / Math.max(1, before), x - box.left, y - box.top);
      return;
    }
    finger.x = event.clientX; finger.y = event.clientY;
    moved(dx, dy);
  });
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (!dragged && event.type === "pointerup") clicked(event);
  };
  c.addEventListener("pointerup", up);
  c.addEventListener("pointercancel", up);
  c.addEventListener("pointerleave", () => tip(null));
  c.addEventListener("wheel", (event) => {
    event.preventDefault();
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) moved(-(event.deltaX || event.deltaY), event.shiftKey ? -event.deltaY : 0);
    else zoomed(event.deltaY > 0 ? 0.8 : 1.25, event.offsetX, event.offsetY);
  }, { passive: false });
}
