// The source with heat: each file's lines in their order, the hotter the more of them is shaded: by
// their part of the path, whether that was instructions or Python.
{
  const files = new Map(), most = Math.max(1, ...D.tables.line.map((r) => r.path));
  for (const row of D.tables.line) {
    const [, file, number] = /^(.*):(\d+)$/.exec(row.name) || [null, row.name || "(flowvm itself)", ""];
    if (!files.has(file)) files.set(file, []);
    files.get(file).push({ ...row, number: Number(number) });
  }
  const took = (rows) => rows.reduce((sum, row) => sum + row.run + row.host, 0);
  for (const [file, rows] of [...files].sort((a, b) => took(b[1]) - took(a[1]))) {
    rows.sort((a, b) => a.number - b.number);
    $("source").append(el("h3", {}, `${file}  ${ms(took(rows))} ms`), table(
      ["line", "n", "run ms", "host ms", "on path", "waits", "code"],
      rows.map((row) => [go(String(row.number || "–"), () => search(row.name)), row.count, ms(row.run),
        row.host ? ms(row.host) : "-",
        (100 * row.path / D.path).toFixed(1) + " %", ms(row.dep + row.queue + row.sched),
        el("code", { class: "heat", style: `--heat:${Math.round(100 * row.path / most)}%` }, D.sources[row.name] || "")])));
  }
}
