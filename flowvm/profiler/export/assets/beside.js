// An earlier run beside this one: what takes longer, what is there more often, what waits more.

if (D.beside) {
  const one = Object.values(D.beside)[0], [before, after] = one.wall;
  const how = after <= before ? "faster" : "slower";
  const factor = Math.max(before, after) / Math.max(1, Math.min(before, after));
  const pair = (was, is, said = ms) => `${said(was)} → ${said(is)}`;
  const whole = Math.max(1, before, after), causes = one.bound.filter(([, a, b]) => Math.max(a, b) >= 0.001 * whole);
  // each run as long as it was, in parts by what bound it; the words below say the same
  const bar = (name, at) => el("div", { class: "lasted" }, el("span", { class: "dim" }, name),
    el("div", { class: "share", "aria-hidden": "true", style: `width:${85 * one.wall[at] / whole}%` },
      ...causes.map((row) => el("div", { title: `${row[0]} ${ms(row[at + 1])} ms`,
        style: `width:${100 * row[at + 1] / Math.max(1, one.wall[at])}%;background:var(--${row[0]})` }))));
  $("beside").append(el("h2", { class: "verdict" }, `${factor.toFixed(2)}x ${how}: wall ${pair(before, after)} ms`),
    bar("before", 0), bar("after", 1),
    el("p", {}, `floor ${pair(...one.floor)} ms · instructions ${pair(...one.instructions, (n) => n.toLocaleString("en"))}`),
    table(["observed path", "before ms", "after ms", "change"], causes.map(([cause, a, b]) =>
      [cause, ms(a), ms(b), changed(a, b)])));
  for (const [by, diff] of Object.entries(D.beside)) {
    $("beside").append(el("h3", {}, "by " + by), table([by, "n", "run ms", "change", "on path", "waits", by === "line" ? "code" : ""],
      diff.changes.slice(0, 25).map((c) => [go(c.name || "(none)", () => search(c.name)), pair(...c.count, String), pair(...c.run),
        c.count[0] ? c.count[1] ? changed(...c.run) : "gone" : "new", pair(...c.path), pair(...c.wait), by === "line" ? D.sources[c.name] || "" : ""])));
  }
}
function changed(a, b) { // a sign, and not a colour alone
  const sign = b > a ? "▲ +" : b < a ? "▼ −" : "";
  return el("span", { class: b > a ? "critical" : b < a ? "good" : "dim" }, sign + ms(Math.abs(b - a)));
}
