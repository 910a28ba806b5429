// Graphs with their tasks, and the source with what each line took.

const actor = (n) => "a" + String(n).padStart(2, "0");
$("plan").append(D.plans.length ? el("p", { class: "dim" }, "what the graphs' launches ran, summed over all of them") : el("p", {}, "no graph was launched, or its tasks were not recorded (level 2)"),
  ...D.plans.map((p) => el("div", {}, el("h3", {}, `${p.name}: ${p.launches} launches` + (p.registers ? `, ${p.registers} registers, chunk ${bytes(p.chunk)}` : "")),
    ...p.notes.map((said) => el("p", {}, said)),
    ...(p.actors.length ? [table(["actor", "", "stream", "tasks", "inputs", "credits", "acts", "ms each", "busy", "waited for"], p.actors.map((a) => [actor(a.number),
      a.label, a.stream, a.tasks, a.inputs.map(actor).join(" "), a.credits.map(([n, back]) => `${actor(n)}-${back}`).join(" "), a.acts, ms(a.each),
      el("span", { class: "meter", style: `width:${Math.round(120 * a.busy)}px` }), a.state]))] : []),
    table(["task", "op", "n", "ms", "", "module", "stream", "line"], p.tasks.map((t) => [t.task, t.op, t.count, t.time ? ms(t.time) : "",
      el("span", { class: "meter", style: `width:${Math.round(120 * t.time / (p.time || 1))}px` }), t.module, t.stream, t.line])))));

// The source with heat: each file's lines in their order, the hotter the more of them is shaded.
{
  const files = new Map(), most = Math.max(1, ...D.tables.line.map((r) => r.run));
  for (const row of D.tables.line) {
    const [, file, number] = /^(.*):(\d+)$/.exec(row.name) || [null, row.name || "(flowvm itself)", ""];
    if (!files.has(file)) files.set(file, []);
    files.get(file).push({ ...row, number: Number(number) });
  }
  const took = (rows) => rows.reduce((sum, row) => sum + row.run, 0);
  for (const [file, rows] of [...files].sort((a, b) => took(b[1]) - took(a[1]))) {
    rows.sort((a, b) => a.number - b.number);
    $("source").append(el("h3", {}, `${file}  ${ms(took(rows))} ms`), table(
      ["line", "n", "ms", "on path", "waits", "code"],
      rows.map((row) => [go(String(row.number || "–"), () => search(row.name)), row.count, ms(row.run),
        (100 * row.path / D.path).toFixed(1) + " %", ms(row.dep + row.queue + row.sched),
        el("code", { class: "heat", style: `--heat:${Math.round(100 * row.run / most)}%` }, D.sources[row.name] || "")])));
  }
}
