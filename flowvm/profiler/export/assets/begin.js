// Begin: what the address asks for, and what else asks for a frame.

addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colors = new Map();
  draw();
});
{ // report.html#timeline opens a tab, report.html#311 an instruction
  const wanted = location.hash.slice(1);
  show(TABS.includes(wanted) ? wanted : "verdict");
  const i = /^\d+$/.test(wanted) ? C.seq.indexOf(Number(wanted)) : -1;
  if (i >= 0) { show("timeline"); select(i); reveal(i); }
}
window.flowvm = { state, states: D.states, select, search, show, zoom, lanes, reveal, rewind, dag, flame, selectTask, movedIn, plans: D.plans,
  ties: D.ranks ? D.ranks.names.map((_, k) => C["tie.begin"][partTie(k, lateOf(k))]) : [],
  scene: () => scene, get machine() { return machine(); } }; // for tests
