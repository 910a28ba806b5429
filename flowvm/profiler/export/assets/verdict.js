// The verdict: what bound the run, and tables.
{
  const shares = el("div", { class: "share", "aria-hidden": "true" });
  for (const [name, share, cause] of D.bound) {
    if (share > 0.001) {
      shares.append(el("div", { title: name + " " + (100 * share).toFixed(1) + " %",
        style: `width:${100 * share}%;background:var(--${cause})` }));
    }
  }
  const words = D.bound.filter(([, s]) => s >= 0.005)
    .map(([c, s]) => c + " " + (100 * s).toFixed(0) + " %").join(" · ");
  $("verdict").append(el("h2", { class: "verdict" }, (D.ranks ? `${D.parts.length} ranks, ` : "") + "bound by " + words), shares, ...ranked(),
    ...D.facts.map(([name, text]) => el("p", name === "mostly" ? { class: "mostly" } : {}, name + " " + text)),
    ...D.wrong.map((text) => el("p", { class: "critical" }, text)),
    el("p", {}, `wall ${ms(D.wall)} ms · floor ${D.floor}`),
    ...(D.devices ? [el("p", {}, `times of devices: ${D.devices}`)] : []),
    ...D.advice.map((text, k) => el("p", {}, (k + 1) + ". " + text)));
  for (const [by, rows] of Object.entries(D.tables)) $("verdict").append(...summed(by, rows));
  if (D.roofline) {
    $("verdict").append(el("h3", {}, "roofline"), el("div", { class: "wide" },
      picture(D.roofline, "how fast each operator computed, over its operations a byte; p.roofline() prints the same")));
  }
}
// A table of sums, which a click on a column's name sorts; rows that took nothing that counts are
// shown when asked for.
function summed(by, rows) {
  const last = (row) => (by === "line" ? D.sources[row.name] || "" : row.hottest), LITTLE = 0.0005 * D.wall;
  const worth = rows.filter((r) => Math.max(r.path, r.host) >= LITTLE), shown = worth.length ? worth : rows;
  const body = el("div"), left = rows.length - Math.min(shown.length, 20);
  const fill = (some) => body.replaceChildren(sortable(
    [by, "n", "run ms", "on path", "", "GB/s", "GFLOP/s", "dep ms", "queue", "sched", "host ms", by === "line" ? "code" : "hottest line"],
    some.map((r) => [go(r.name || "(none)", () => search(r.name)), r.count,
      ms(r.run), (100 * r.path / D.path).toFixed(1) + " %", meter(r.path / D.path, 80), r.run && r.nbytes ? (r.nbytes / r.run).toFixed(1) : "-",
      r.run && r.flops ? (r.flops / r.run).toFixed(1) : "-", ms(r.dep), ms(r.queue), ms(r.sched), r.host ? ms(r.host) : "-", last(r)]),
    some.map((r) => [r.name, r.count, r.run, r.path, r.path, r.nbytes / r.run || 0, r.flops / r.run || 0, r.dep, r.queue, r.sched, r.host, last(r)])));
  fill(shown.slice(0, 20));
  const more = button(`${left.toLocaleString("en")} more`, () => { fill(rows); more.remove(); }, `show all rows by ${by}`);
  return [el("h3", {}, "by " + by), body, ...(left > 0 ? [more] : [])];
}
function ranked() { // what each rank did, who was late and for how long the others waited
  if (!D.ranks) return [];
  const said = [...D.ranks.late, D.ranks.note].filter((text) => text);
  const most = (bound) => bound.filter(([, share]) => share >= 0.05).slice(0, 3).map(([cause, share]) => `${cause} ${(100 * share).toFixed(0)} %`).join(" · ");
  return [...said.map((text) => el("p", { class: "late" }, text)),
    table(["rank", "wall ms", "computing", "exchanging", "hidden", "came last", "others waited", "bound by"],
      D.ranks.ranks.map((r, k) => [r.rank, ms(r.wall), ms(r.computing), ms(r.exchanging), (100 * r.hidden).toFixed(0) + " %", r.late, ms(r.others), most(D.ranks.bound[k])])),
    ...(D.ranks.exchanges.length ? [table(["collective", "n", "bytes", "waited for the last", "bytes/s then"],
      D.ranks.exchanges.map((e) => [e.name, e.count, bytes(e.nbytes), ms(e.waited), bytes(Math.round(e.bandwidth))]))] : [])];
}
