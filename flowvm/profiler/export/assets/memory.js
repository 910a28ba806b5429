// Memory over time, by what it was for, and who had it at the peak.

drawers.memory = () => {
  D.memories.forEach((memory, m) => {
    const [g, width, height] = fit($("memory").querySelectorAll("canvas")[m]);
    const parts = D.purposes.map(([name]) => C[`memory${m}.${name}`]), top = memory.peak || 1, count = parts[0].length;
    const x = (t) => 70 + t / D.wall * (width - 90), y = (n) => height - 20 - n / top * (height - 40);
    g.fillStyle = color("dim");
    for (const share of [0, 0.5, 1]) { g.fillText(bytes(Math.round(share * top)), 4, y(share * top)); g.fillRect(70, y(share * top), width - 90, 1); }
    const below = new Float64Array(count);
    parts.forEach((part, k) => { // each stands on those before it
      g.beginPath();
      for (let c = 0; c < count; c++) { g.lineTo(x(c * D.wall / count), y(below[c] + part[c])); g.lineTo(x((c + 1) * D.wall / count), y(below[c] + part[c])); }
      for (let c = count - 1; c >= 0; c--) { g.lineTo(x((c + 1) * D.wall / count), y(below[c])); g.lineTo(x(c * D.wall / count), y(below[c])); }
      for (let c = 0; c < count; c++) below[c] += part[c];
      g.fillStyle = color(D.purposes[k][1]); g.fill();
    });
    g.fillStyle = color("dim");
    for (const share of [0, 0.25, 0.5, 0.75]) g.fillText(ms(share * D.wall) + " ms", x(share * D.wall), height - 8);
    g.fillStyle = color("critical"); g.fillRect(x(memory.peak_time) - 1, y(top), 2, height - 20 - y(top));
  });
};
for (const memory of D.memories) {
  const used = D.purposes.map(([name, style], k) => [name, style, memory.at_peak[k]]).filter(([, , n]) => n > 0);
  $("memory").append(el("h3", {}, memory.space),
    el("p", {}, `peak ${bytes(memory.peak)} at ${ms(memory.peak_time)} ms, of which ${bytes(memory.before)} were there before`),
    el("canvas", { role: "img", "aria-label": `bytes of ${memory.space} over time; the table below has who had them at the peak` }), el("p", { class: "legend" }, ...used.map(([name, style, n]) => el("span", {}, el("i", { style: `background:var(--${style})` }), `${name} ${bytes(n)}`))),
    ...memory.advice.map((said) => el("p", {}, said)),
    memory.owners.length ? table(["owner at the peak", "bytes", "tensors", "for", "line"], memory.owners.map((o) => [o.name, bytes(o.nbytes), o.count, o.kind, o.line])) : "");
}
