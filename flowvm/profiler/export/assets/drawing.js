// How the graph's nodes and lines look. What a colour says is said by a line or a shape, too:
// const a thin line, mut a thick one, mut2 a double one; RAW ends in a filled triangle, WAR in an
// open circle, WAW in a square; what is critical has a diamond and a thick border.

const PEN = [1.2, 2.2, 1.1]; // mut2 is two lines of that width
const SHORT = "…";

// a line through points, with round corners, that arrives at the last one from above
function drawLink(g, points, access, hazard, { strong = false, faint = false } = {}) {
  const paint = color(ACCESS[access]), [x1, y1] = points[points.length - 1], end = y1 - HEAD_HIGH;
  g.globalAlpha = strong ? 1 : faint ? 0.2 : hazard ? 0.45 : 0.85;
  const line = () => {
    g.beginPath(); g.moveTo(points[0][0], points[0][1]);
    for (let k = 1; k + 1 < points.length; k++) {
      const [x, y] = points[k], [tx, ty] = points[k + 1], [fx, fy] = points[k - 1];
      const round = Math.min(4, (Math.abs(tx - x) + Math.abs(ty - y)) / 2, (Math.abs(fx - x) + Math.abs(fy - y)) / 2);
      g.arcTo(x, y, tx, ty, round);
    }
    g.lineTo(x1, end); g.stroke();
  };
  g.strokeStyle = paint;
  if (access === 2) { // double: a thick line with the middle taken out
    g.lineWidth = 3 * PEN[2] + (strong ? 1.5 : 0); line();
    g.strokeStyle = color("back"); g.lineWidth = PEN[2]; line();
    g.strokeStyle = paint;
  } else { g.lineWidth = PEN[access] + (strong ? 1 : 0); line(); }
  drawHead(g, x1, end, hazard, paint);
  g.globalAlpha = 1;
}
const HEAD_HIGH = 5;
function drawHead(g, x, y, hazard, paint) {
  g.fillStyle = hazard === 1 ? color("back") : paint; g.strokeStyle = paint; g.lineWidth = 1.4;
  g.beginPath();
  if (hazard === 0) { g.moveTo(x - 4, y); g.lineTo(x + 4, y); g.lineTo(x, y + HEAD_HIGH); g.closePath(); }
  else if (hazard === 1) g.arc(x, y + 2.2, 2.6, 0, 7);
  else g.rect(x - 2.4, y, 4.8, 4.8);
  g.fill(); g.stroke();
}

// from the side of the one that came last to the side of the one that had waited
function drawMeeting(g, [x0, y0, w0, h0], [x1, y1, w1, h1], strong) {
  const right = x1 > x0, from = right ? x0 + w0 : x0, to = right ? x1 : x1 + w1, bend = (right ? 1 : -1) * 40;
  const a = y0 + h0 / 2, b = y1 + h1 / 2, way = right ? 1 : -1;
  g.strokeStyle = g.fillStyle = color("sync"); g.lineWidth = strong ? 2.8 : 1.4; g.setLineDash([6, 4]);
  g.beginPath(); g.moveTo(from, a); g.bezierCurveTo(from + bend, a, to - bend, b, to - 7 * way, b); g.stroke(); g.setLineDash([]);
  g.beginPath(); g.arc(from, a, 3.4, 0, 7); g.fill();
  g.beginPath(); g.moveTo(to - 8 * way, b - 4); g.lineTo(to - 8 * way, b + 4); g.lineTo(to, b); g.fill();
}

// text no wider than it may be; widths of letters are all alike in this font
function drawText(g, text, x, y, width, paint, letter = LETTER) {
  const most = Math.floor(width / letter);
  if (most < 2) return;
  g.fillStyle = paint;
  g.fillText(text.length > most ? text.slice(0, most - 1) + SHORT : text, x, y);
}
const LETTER = (() => {
  const g = document.createElement("canvas").getContext("2d");
  g.font = "12px " + FONT;
  return g.measureText("m".repeat(20)).width / 20;
})();

// What an instruction is at, at the moment that the clock shows: a glyph and a colour.
const AT = [["◌", "head"], ["▹", "host"], ["░", "dep"], ["▷", "sched"], ["▫", "queue"],
  ["█", "run"], ["▪", "run"], ["✓", "dim"]];

function drawNode(g, x, y, width, height, { title, below, critical, failed, marked, selected,
  stage, pile }) {
  const path = (inset = 0) => {
    g.beginPath();
    g.roundRect(x + inset, y + inset, width - 2 * inset, height - 2 * inset, Math.min(5, height / 4));
  };
  if (pile && height > 12) { // a closed box: a pile of cards
    g.fillStyle = color("panel"); g.strokeStyle = color("edge"); g.lineWidth = 1;
    g.beginPath(); g.roundRect(x + 4, y + 4, width, height, 5); g.fill(); g.stroke();
  }
  g.fillStyle = stage === 5 ? color("running") : color("panel");
  path(); g.fill();
  g.strokeStyle = failed ? color("critical") : critical ? color("critical") : color("head");
  g.lineWidth = critical || failed ? 2.2 : 1;
  if (stage === 0) g.setLineDash([3, 3]);
  g.stroke(); g.setLineDash([]);
  if (marked || selected) {
    g.strokeStyle = color("mark"); g.lineWidth = selected ? 3 : 1.6;
    g.beginPath(); g.roundRect(x - 3, y - 3, width + 6, height + 6, 7);
    if (!selected) g.setLineDash([5, 3]);
    g.stroke(); g.setLineDash([]);
  }
  if (height < 12) return;
  const glyph = failed ? failed : stage >= 0 ? AT[stage][0] : pile ? "▸" : critical ? "◆" : "○";
  const paint = failed || (critical && stage < 0) ? color("critical")
    : stage >= 0 ? color(AT[stage][1]) : color("dim");
  // in a low card letters that it holds between its borders
  const low = height < LOW, letter = low ? LETTER * 10 / 12 : LETTER;
  if (low) g.font = "10px " + FONT;
  const middle = height >= 30 ? y + height * 0.3 : y + height / 2 + 0.5;
  drawText(g, glyph, x + 6, middle, 20, paint, letter);
  drawText(g, title, x + 20, middle, width - 24, color(stage === 7 ? "dim" : "text"), letter);
  if (height >= 30) drawText(g, below, x + 20, y + height * 0.73, width - 24, color("dim"));
  else { // in one line, behind the title
    const used = 32 + title.length * letter;
    const most = Math.floor((width - used - 4) / letter), parts = below.split("  ");
    while (parts.length && parts.join("  ").length > most) parts.pop(); // whole words or none
    drawText(g, parts.join("  "), x + used, middle, width - used - 4, color("dim"), letter);
  }
  if (low) g.font = "12px " + FONT;
}
const LOW = 18; // pixels of a card, below which twelve of a letter's do not fit

// The legend's samples, drawn by what draws the graph.
function legend() {
  const sample = (draw) => {
    const c = el("canvas", { class: "sample", "aria-hidden": "true" });
    drawers.legend.push(() => { const [g, w, h] = fit(c); draw(g, w, h); });
    return c;
  };
  drawers.legend = [];
  const parts = [];
  ACCESS.forEach((name, k) => parts.push(el("span", { class: "key " + name },
    sample((g, w, h) => {
      g.strokeStyle = color(name); g.lineWidth = k === 2 ? 3.6 : PEN[k];
      const line = () => { g.beginPath(); g.moveTo(0, h / 2); g.lineTo(w, h / 2); g.stroke(); };
      line();
      if (k === 2) { g.strokeStyle = color("back"); g.lineWidth = 1.2; line(); }
    }), name)));
  HAZARD.forEach((name, k) => parts.push(el("span", { class: "key" },
    sample((g, w, h) => drawHead(g, w / 2, h / 2 - 3, k, color("text"))), name)));
  if (D.ranks) parts.push(el("span", { class: "key" }, sample((g, w, h) => drawMeeting(g, [-9, 0, 14, h], [w - 3, 0, 9, h], false)), "a collective, from who came last"));
  parts.push(el("span", { class: "key critical" }, "◆ critical"),
    el("span", { class: "key" }, "▸ closed box"));
  return parts;
}
