// The layered DAG: boxes within boxes (spans, modules, lines), and where each stands. A box holds
// instructions that follow each other in program order, so edges between boxes point forwards,
// whichever are open; one pass in program order gives everything its layer.

const MOST_CHILDREN = 120; // of a box; what has more gets boxes for parts of it
const ACROSS = 4; // instructions of one stream that stand beside each other
const SMALL = 4; // instructions: a module or line with fewer has no box of its own
const MOST_TRACKS = 12, MOST_LEVELS = 4; // lines side by side between two columns, between two rows

// tree: boxes {name, kind, parent, first, last (instructions), n, children, lanes, open}; a child
// is an instruction, or ~number of a box. Box 0 is the whole run.
function boxesOf(D, C, laneOf, shown) {
  const boxes = [], n = C.seq.length;
  const make = (name, kind, parent, first) => {
    boxes.push({ name, kind, parent, first, last: first, n: 0, children: [], open: false,
      low: 1 << 30, high: -1 });
    return boxes.length - 1;
  };
  const stack = [make("the run", "run", -1, 0)], keys = [""];
  const parts = D.modules.map((name) => (name ? name.split(".") : []));
  const spans = D.spans.map(([name, first, last]) => ({ name, first, last }))
    .sort((a, b) => a.first - b.first || b.last - a.last);
  let next = 0, part = 0; // each rank's instructions are a box
  const inside = []; // spans around the instruction; one ends no later than the one around it
  for (let i = 0; i < n; i++) {
    while (inside.length && inside[inside.length - 1].last <= i) inside.pop();
    for (; next < spans.length && spans[next].first <= i; next++) {
      const around = inside[inside.length - 1], span = spans[next];
      const last = around ? Math.min(span.last, around.last) : span.last;
      if (last > i) inside.push({ name: span.name, key: "s" + next, last });
    }
    if (!shown[i]) continue;
    while (i >= D.parts[part].last) part++;
    const path = D.parts[part].name ? [[D.parts[part].name, "rank", "r" + part]] : [];
    path.push(...inside.map((span) => [span.name, "span", span.key]));
    const back = C.forward[i] !== -1 ? " ↩" : "";
    parts[C.module[i]].forEach((part, k) =>
      path.push([part + (k ? "" : back), "module", "m" + part + back]));
    path.push([D.lines.at(C.line[i]) || "(flowvm itself)", "line", "l" + C.line[i]]);
    let same = 0;
    while (same < path.length && same + 1 < stack.length && keys[same + 1] === path[same][2]) same++;
    stack.length = same + 1; keys.length = same + 1;
    for (const [name, kind, key] of path.slice(same)) {
      const number = make(name, kind, stack[stack.length - 1], i);
      boxes[stack[stack.length - 1]].children.push(~number);
      stack.push(number); keys.push(key);
    }
    boxes[stack[stack.length - 1]].children.push(i);
    for (const number of stack) {
      const box = boxes[number], lane = laneOf[C.stream[i]];
      box.last = i; box.n++;
      box.low = Math.min(box.low, lane); box.high = Math.max(box.high, lane);
    }
  }
  merge(boxes, 0);
  for (let k = 0, count = boxes.length; k < count; k++) cut(boxes, k, C, laneOf);
  return boxes;
}

// A box with few instructions is these, whose module and line are said with them; one with one box
// is that box.
function merge(boxes, number) {
  const box = boxes[number];
  box.children = box.children.flatMap((child) => {
    if (child >= 0) return [child];
    let inner = ~child;
    merge(boxes, inner);
    const one = boxes[inner], only = one.children.length === 1 && one.children[0] < 0 ? boxes[~one.children[0]] : null;
    if (one.kind === "span" || one.kind === "rank") return [~inner];
    if (only && only.kind === "line") one.children = only.children;
    else if (only) {
      only.name = one.name + "." + only.name;
      inner = ~one.children[0];
    }
    const least = boxes[inner];
    return least.n < SMALL && least.children.every((c) => c >= 0) ? least.children : [~inner];
  });
  for (const child of box.children) if (child < 0) boxes[~child].parent = number;
}

// Of a box with too many children each part gets a box, and so on upwards.
function cut(boxes, number, C, laneOf) {
  while (boxes[number].children.length > MOST_CHILDREN) {
    const box = boxes[number], of = box.children, size = Math.ceil(Math.sqrt(of.length)) > MOST_CHILDREN
      ? MOST_CHILDREN : Math.ceil(Math.sqrt(of.length));
    box.children = [];
    for (let k = 0; k < of.length; k += size) {
      const own = of.slice(k, k + size), made = boxes.length;
      const part = { name: "", kind: "part", parent: number, n: 0, children: own, open: false,
        first: 1 << 30, last: -1, low: 1 << 30, high: -1 };
      for (const child of own) {
        const lane = child >= 0 ? laneOf[C.stream[child]] : 0;
        const one = child >= 0 ? { first: child, last: child, n: 1, low: lane, high: lane } : boxes[~child];
        if (child < 0) one.parent = made;
        part.first = Math.min(part.first, one.first); part.last = Math.max(part.last, one.last);
        part.low = Math.min(part.low, one.low); part.high = Math.max(part.high, one.high);
        part.n += one.n;
      }
      part.name = `#${C.seq[part.first]} to #${C.seq[part.last]}`;
      boxes.push(part);
      box.children.push(~made);
    }
  }
}

// Open boxes, the outermost first, as long as not too much is to be seen.
function openUpTo(boxes, most) {
  for (const box of boxes) box.open = false;
  let seen = 1;
  for (let queue = [0]; queue.length;) {
    const inner = [];
    for (const number of queue) {
      const box = boxes[number];
      if (seen + box.children.length - 1 > most && number) continue;
      box.open = true; seen += box.children.length - 1;
      for (const child of box.children) if (child < 0) inner.push(~child);
    }
    queue = inner;
  }
}

// Where what is to be seen stands: nodes (instructions and closed boxes) with layer, lane and
// column, frames (open boxes) with the layers that they take, links between nodes.
function layersOf(boxes, C, edges, laneOf, shown, laneCount) {
  const n = C.seq.length, nodeOf = new Int32Array(n).fill(-1);
  const item = [], layer = [], low = [], high = [], column = [], frames = [];
  const floor = new Int32Array(laneCount), top = new Int32Array(laneCount);
  const columns = new Int32Array(laneCount).fill(1);
  const full = (1 << ACROSS) - 1;
  const taken = Array.from({ length: laneCount }, () => []); // columns of each layer, as bits
  const skip = Array.from({ length: laneCount }, () => []); // where to look instead of a full layer
  const free = (lane, y) => {
    let at = y;
    while (taken[lane][at] === full) at = skip[lane][at] || at + 1;
    for (let k = y; k < at;) { const to = skip[lane][k] || k + 1; skip[lane][k] = at; k = to; }
    return at;
  };
  const number = new Map(); // of boxes that are nodes

  function place(what, first, last, from, to) {
    let y = 0, beside = -1;
    for (let i = first; i <= last; i++) {
      if (!shown[i]) continue;
      for (let e = edges.into[i]; e < edges.into[i + 1]; e++) {
        const a = nodeOf[C.source[e]];
        if (a < 0) continue;
        if (layer[a] + 1 > y) y = layer[a] + 1;
        // below it, if that is in the same box
        if (low[a] === from && layer[a] >= floor[from] && (beside < 0 || layer[a] >= layer[beside])) beside = a;
      }
      const met = edges.met ? edges.met(i) : -1; // of a collective: a rank's part that has its place
      if (met >= 0 && nodeOf[met] >= 0) y = Math.max(y, layer[nodeOf[met]]);
    }
    const node = item.length;
    let where = 0;
    if (from === to) {
      y = free(from, Math.max(y, floor[from]));
      const bits = taken[from][y] || 0, wanted = beside < 0 ? 0 : column[beside];
      for (let far = 0; far < ACROSS; far++) { // the free column next to what it waits for
        if (wanted - far >= 0 && !(bits >> (wanted - far) & 1)) { where = wanted - far; break; }
        if (wanted + far < ACROSS && !(bits >> (wanted + far) & 1)) { where = wanted + far; break; }
      }
      taken[from][y] = bits | 1 << where;
      columns[from] = Math.max(columns[from], where + 1);
      top[from] = Math.max(top[from], y + 1);
    } else { // across lanes: nothing stands beside it
      for (let lane = from; lane <= to; lane++) y = Math.max(y, top[lane]);
      for (let lane = from; lane <= to; lane++) floor[lane] = top[lane] = y + 1;
    }
    item.push(what); layer.push(y); low.push(from); high.push(to); column.push(where);
    for (let i = first; i <= last; i++) if (shown[i]) nodeOf[i] = node;
  }

  function walk(at, depth) {
    const box = boxes[at];
    for (const child of box.children) {
      if (child >= 0) {
        const lane = laneOf[C.stream[child]];
        place(child, child, child, lane, lane);
        continue;
      }
      const inner = boxes[~child];
      if (!inner.open) {
        number.set(~child, item.length);
        place(child, inner.first, inner.last, inner.low, inner.high);
        continue;
      }
      let y = 0;
      for (let k = inner.low; k <= inner.high; k++) y = Math.max(y, top[k]);
      for (let k = inner.low; k <= inner.high; k++) floor[k] = top[k] = y + 1;
      const frame = { box: ~child, from: y, to: y, low: inner.low, high: inner.high, depth };
      const seen = item.length, framed = frames.push(frame);
      walk(~child, depth + 1);
      let from = Infinity; // what is inside may have had to wait: the frame begins above it
      for (let k = seen; k < item.length; k++) from = Math.min(from, layer[k]);
      for (let k = framed; k < frames.length; k++) from = Math.min(from, frames[k].from);
      frame.from = Math.max(y, from - 1);
      for (let k = inner.low; k <= inner.high; k++) y = Math.max(y, top[k]);
      frame.to = y;
      for (let k = inner.low; k <= inner.high; k++) floor[k] = top[k] = y;
    }
  }
  walk(0, 0);
  const rows = Math.max(1, ...top), start = [0], byLayer = grouped(layer, rows);
  for (const n of columns) start.push(start[start.length - 1] + n);
  // tops: where layers begin, in rows; one that has titles of boxes alone is lower
  const tops = new Float64Array(rows + 2);
  for (let y = 0; y <= rows; y++) tops[y + 1] = tops[y] + (y < rows && byLayer.start[y] === byLayer.start[y + 1] ? LOW_ROW : 1);
  // the first and the last column of each node
  const firsts = Int32Array.from(item, (_, k) => start[low[k]] + (low[k] === high[k] ? column[k] : 0));
  const lasts = Int32Array.from(item, (_, k) => (low[k] === high[k] ? firsts[k] : start[high[k] + 1] - 1));
  const scene = { item, layer, low, high, column, columns, start, firsts, lasts, frames, nodeOf, rows, tops, number,
    byLayer, ...linksOf(item.length, C, nodeOf) };
  scene.routes = routesOf(scene);
  return scene;
}
const LOW_ROW = 0.75;

// How lines go, so that none crosses a card or a title, and no two into one node lie on each other.
// A line arrives at a port of its own (of `ports`). It comes straight down (how 0), along the space
// above its target's row (1), or leaves aside and comes down between two columns, in `track` of
// `gutter` (2). `level` tells lines apart that go along one row.
function routesOf(scene) {
  const { from, to, layer, byLayer, inTo, outOf, start, firsts, lasts } = scene;
  const count = from.length, total = start[start.length - 1];
  const how = new Uint8Array(count), gutter = new Int32Array(count), track = new Uint8Array(count);
  const level = new Uint8Array(count), port = new Int32Array(count), ports = new Int32Array(count);
  const begins = new Float64Array(count); // where it comes from, in columns; gutter k is at k
  const ends = Array.from({ length: total + 1 }, () => []); // of each gutter's tracks, a layer
  for (const node of byLayer.order) {
    const first = firsts[node], last = lasts[node];
    for (let at = outOf.start[node]; at < outOf.start[node + 1]; at++) {
      const k = outOf.order[at], left = firsts[to[k]], right = lasts[to[k]];
      const next = layer[to[k]] === layer[node] + 1;
      begins[k] = (first + last + 1) / 2;
      if (next) { how[k] = first <= left && right <= last ? 0 : 1; continue; }
      const g = left < first ? first : last + 1, own = ends[g];
      let t = own.findIndex((end) => end <= layer[node]);
      if (t < 0 && own.length < MOST_TRACKS) t = own.length;
      if (t < 0) t = own.indexOf(Math.min(...own));
      own[t] = layer[to[k]];
      how[k] = 2; gutter[k] = begins[k] = g; track[k] = t;
    }
  }
  for (let y = 0; y + 1 < byLayer.start.length; y++) {
    const along = [];
    for (let v = byLayer.start[y]; v < byLayer.start[y + 1]; v++) {
      const node = byLayer.order[v], own = Array.from(inTo.order.subarray(inTo.start[node], inTo.start[node + 1]));
      const middle = (firsts[node] + lasts[node] + 1) / 2;
      own.sort((a, b) => begins[a] - begins[b] || track[a] - track[b] || a - b);
      own.forEach((k, n) => {
        port[k] = n; ports[k] = own.length;
        if (how[k]) along.push([Math.min(begins[k], middle), Math.max(begins[k], middle), k]);
      });
    }
    along.sort((a, b) => a[0] - b[0]);
    const over = [];
    for (const [low, high, k] of along) {
      let n = over.findIndex((end) => end < low);
      if (n < 0) n = over.length < MOST_LEVELS ? over.length : over.indexOf(Math.min(...over));
      over[n] = high; level[k] = n;
    }
  }
  return { how, gutter, track, level, port, ports, tracks: ends.map((own) => own.length) };
}

// Indices by a key below `count`: those with key k are order[start[k]] up to order[start[k + 1] - 1].
function grouped(key, count) {
  const start = new Int32Array(count + 1), order = new Int32Array(key.length);
  for (const k of key) start[k + 1]++;
  for (let k = 0; k < count; k++) start[k + 1] += start[k];
  const at = start.slice();
  for (let i = 0; i < key.length; i++) order[at[key[i]]++] = i;
  return { start, order };
}

// One link for all edges between two nodes that are alike: code is 3 * access + hazard.
function linksOf(count, C, nodeOf) {
  const from = [], to = [], code = [], critical = [], seen = new Map();
  for (let e = 0; e < C.source.length; e++) {
    const a = nodeOf[C.source[e]], b = nodeOf[C.target[e]];
    if (a < 0 || b < 0 || a === b) continue;
    const kind = 3 * C.access[e] + C.hazard[e], key = (a * count + b) * 9 + kind;
    const gates = C.critical[C.source[e]] && C.critical[C.target[e]]
      && C.producer[C.target[e]] === C.source[e] ? 1 : 0;
    const known = seen.get(key);
    if (known !== undefined) { critical[known] |= gates; continue; }
    seen.set(key, from.length);
    from.push(a); to.push(b); code.push(kind); critical.push(gates);
  }
  return { from, to, code, critical, outOf: grouped(from, count), inTo: grouped(to, count) };
}

// Open every box around an instruction; whether one was closed.
function openAround(boxes, around, i) {
  let changed = false;
  for (let at = around[i]; at >= 0; at = boxes[at].parent) {
    if (!boxes[at].open) { boxes[at].open = true; changed = true; }
  }
  return changed;
}

// The innermost box of each instruction.
function innermost(boxes, n) {
  const around = new Int32Array(n).fill(-1);
  for (let stack = [0]; stack.length;) {
    const at = stack.pop();
    for (const child of boxes[at].children) {
      if (child >= 0) around[child] = at; else stack.push(~child);
    }
  }
  return around;
}
