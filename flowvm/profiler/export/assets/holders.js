// Who holds a memory at a moment: the twin of Holdings.at in flowvm/profiler/views/memory/holders.py.

const BEFORE = "before the run";

function holdersAt(D, C, number, time, level) {
  const memory = D.memories[number], column = (name) => C[`holds${number}.${name}`];
  const [kind, label, keeper, size, born, freed, died] = ["kind", "label", "keeper", "size", "born", "freed", "died"].map(column);
  const waiting = D.purposes.findIndex(([name]) => name === "to be released"), other = D.purposes.findIndex(([name]) => name === "other");
  const groups = new Map(), found = [];
  for (let k = 0; k < born.length; k++) {
    if (!(born[k] <= time && time < died[k])) continue;
    const of = freed[k] <= time ? waiting : kind[k], key = of * memory.labels.length + label[k];
    let group = groups.get(key);
    if (!group) groups.set(key, group = { of, label: label[k], nbytes: 0, count: 0, keepers: new Set(), first: -1 });
    group.nbytes += size[k]; group.count++;
    if (keeper[k] < 0) continue;
    group.keepers.add(keeper[k]);
    if (group.first < 0 || size[k] > size[group.first]) group.first = k;
  }
  const holder = (of, at, nbytes, count, kept) => {
    const [module, op, line] = memory.labels[at];
    found.push({ kind: D.purposes[of][0], module, op, line, nbytes, count, keeper: kept });
  };
  let rest = level;
  for (const group of groups.values()) {
    const more = group.keepers.size > 1 ? ` and ${group.keepers.size - 1} more` : "";
    holder(group.of, group.label, group.nbytes, group.count, group.first < 0 ? "" : memory.keepers[keeper[group.first]] + more);
    rest -= group.nbytes;
  }
  for (const [of, at, nbytes, count, kept] of memory.before) {
    const left = Math.min(nbytes, rest);
    if (left <= 0) continue;
    rest -= left;
    holder(of, at, left, count, kept < 0 ? "" : memory.keepers[kept]);
  }
  if (rest > 0) found.push({ kind: D.purposes[other][0], module: "", op: BEFORE, line: "", nbytes: rest, count: 0, keeper: "" });
  const by = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return found.sort((a, b) => b.nbytes - a.nbytes || by(a.kind, b.kind) || by(a.module, b.module) || by(a.line, b.line) || by(a.op, b.op));
}
