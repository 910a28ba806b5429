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
    ...D.mostly.map((text) => el("p", { class: "mostly" }, "mostly " + text)),
    ...D.wrong.map((text) => el("p", { class: "critical" }, text)),
    el("p", {}, `wall ${ms(D.wall)} ms · floor ${ms(D.floor)} ms if streams were unlimited and `
      + "Python took no time"),
    ...(D.devices ? [el("p", {}, `times of devices: ${D.devices}`)] : []),
    ...D.advice.map((text, k) => el("p", {}, (k + 1) + ". " + text)));
  for (const [by, rows] of Object.entries(D.tables)) {
    const last = (row) => (by === "line" ? D.sources[row.name] || "" : row.hottest);
    $("verdict").append(el("h3", {}, "by " + by), table(
      [by, "n", "run ms", "on path", "", "dep ms", "queue", "sched", "host ms",
        by === "line" ? "code" : "hottest line"],
      rows.slice(0, 20).map((r) => [go(r.name || "(none)", () => search(r.name)), r.count,
        ms(r.run), (100 * r.path / D.path).toFixed(1) + " %", meter(r.path / D.path, 80),
        ms(r.dep), ms(r.queue), ms(r.sched), r.host ? ms(r.host) : "-", last(r)])));
  }
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
