// The verdict: what bound the run, and tables.
{
  const shares = el("div", { class: "share", "aria-hidden": "true" });
  for (const [cause, share] of D.bound) {
    if (share > 0.001) {
      shares.append(el("div", { title: cause + " " + (100 * share).toFixed(1) + " %",
        style: `width:${100 * share}%;background:var(--${cause})` }));
    }
  }
  const words = D.bound.filter(([, s]) => s >= 0.005)
    .map(([c, s]) => c + " " + (100 * s).toFixed(0) + " %").join(" · ");
  $("verdict").append(el("h2", { class: "verdict" }, "bound by " + words), shares,
    ...D.wrong.map((text) => el("p", { class: "critical" }, text)),
    el("p", {}, `wall ${ms(D.wall)} ms · floor ${ms(D.floor)} ms if streams were unlimited and `
      + "Python took no time"),
    ...(D.devices ? [el("p", {}, `times of devices: ${D.devices}`)] : []),
    ...D.advice.map((text, k) => el("p", {}, (k + 1) + ". " + text)));
  for (const [by, rows] of Object.entries(D.tables)) {
    const last = (row) => (by === "line" ? D.sources[row.name] || "" : row.hottest);
    $("verdict").append(el("h3", {}, "by " + by), table(
      [by, "n", "run ms", "on path", "", "dep ms", "queue", "sched",
        by === "line" ? "code" : "hottest line"],
      rows.slice(0, 20).map((r) => [go(r.name || "(none)", () => search(r.name)), r.count,
        ms(r.run), (100 * r.path / D.wall).toFixed(1) + " %", meter(r.path / D.wall, 80),
        ms(r.dep), ms(r.queue), ms(r.sched), last(r)])));
  }
}
