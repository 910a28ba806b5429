// Begin: what the address asks for, and what else asks for a frame.

addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colors = new Map();
  draw();
});
// --- the address -----------------------------------------------------------------------------
// run.html#dag&i=311&t=1.25&q=matmul is a view, an instruction, a moment (ms) and a search; so is
// run.html#311, in the timeline. It follows what is shown, so a copied link leads there.
function here() {
  const parts = [state.tab], text = $("search").value.trim();
  if (state.selected >= 0) parts.push("i=" + C.seq[state.selected]);
  if (state.moment >= 0) parts.push("t=" + (state.time / 1e6).toFixed(6));
  if (text) parts.push("q=" + encodeURIComponent(text));
  return "#" + parts.join("&");
}
let told = "";
function remember() {
  const now = here();
  if (now === told || (now === "#verdict" && !location.hash)) return;
  told = now;
  try { history.replaceState(null, "", now); } catch { /* a frame that has no address */ }
}
afterDrawing.push(remember);
function arrive() {
  const [first, ...rest] = location.hash.slice(1).split("&");
  const wanted = Object.fromEntries(rest.map((part) => part.split("=")));
  if (/^\d+$/.test(first)) wanted.i = first;
  show(TABS.includes(first) ? first : "i" in wanted ? "timeline" : "verdict");
  if (wanted.q) search(decodeURIComponent(wanted.q));
  const time = Math.round(Number(wanted.t) * 1e6);
  if (wanted.t && Number.isFinite(time)) rewind(machine().numberAt(time), time);
  const i = wanted.i ? C.seq.indexOf(Number(wanted.i)) : -1;
  if (i >= 0) { select(i); reveal(i); }
}
addEventListener("hashchange", () => { if (location.hash !== told) arrive(); });
arrive();

// --- help ------------------------------------------------------------------------------------
const KEYS = [["/", "search: op, line, module, #id; Enter goes from one to the next"], ["?", "this"], ["Escape", "close, or select nothing"],
  ["← → ↑ ↓", "timeline: move and scroll; dag: along edges, and through the program"], ["+ - 0", "zoom in, out, show all"],
  ["Enter", "dag: open or close the box around"], [". ,", "time machine: an event on, an event back"], ["Space", "time machine: play"]];
const help = el("dialog", { id: "help", "aria-label": "keys" }, el("h3", {}, "keys"), table(["key", "what it does"], KEYS),
  el("p", {}, "The address follows what is shown: copy it, and it leads to this view, instruction and moment."),
  button("close", () => help.close()));
document.body.append(help);
$("tabs").after(button("?", () => help.showModal(), "keys"));
addEventListener("keydown", (event) => {
  if (event.target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { "/": () => { $("search").focus(); $("search").select(); }, "?": () => help.showModal() }[event.key];
  if (act) { act(); event.preventDefault(); }
});
window.flowvm = { state, states: D.states, select, search, show, zoom, lanes, reveal, rewind, dag, flame, selectTask, movedIn, plans: D.plans,
  ties: D.ranks ? D.ranks.names.map((_, k) => C["tie.begin"][partTie(k, lateOf(k))]) : [],
  scene: () => scene, inSight, routeOf, placeOf, laneMiddle: (k) => yOf(k) + ROW / 2, get machine() { return machine(); } }; // for tests
