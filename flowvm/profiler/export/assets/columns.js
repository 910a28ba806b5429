// The run's columns: little-endian arrays, deflated together. Nothing here or in moments.js and
// boxes.js needs a page, so tests run them without a browser.

const KINDS = { f: Float64Array, i: Int32Array, b: Uint8Array };

// what was packed: all columns behind each other, of each the first bytes of all numbers first
async function inflated(D) {
  const stream = new Blob([bytesOf(D.packed)]).stream().pipeThrough(new DecompressionStream("deflate"));
  D.packed = ""; // the text is not needed any more
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function columnsOf(D, bytes) {
  const C = {};
  let at = 0;
  for (const [name, kind] of Object.entries(D.kinds)) {
    const count = D.counts[name], made = new KINDS[kind](count), wide = made.BYTES_PER_ELEMENT;
    const own = new Uint8Array(made.buffer);
    for (let k = 0; k < wide; k++) for (let i = 0, to = k; i < count; i++, to += wide) own[to] = bytes[at++];
    C[name] = made;
  }
  // times[7 * i + stage]: ns from the beginning, NaN for what never happened
  const n = C.seq.length, width = D.machine.times.length;
  C.times = new Float64Array(n * width);
  for (let i = 0; i < n; i++) {
    let t = C.times[i * width] = C.t0[i];
    for (let k = 1; k < width; k++) {
      const more = C["t" + k][i];
      C.times[i * width + k] = t = more < 0 ? NaN : t + more;
    }
  }
  for (const name of ["issued", "started", "ended"]) {
    const k = D.machine.times.indexOf(name);
    // what has not happened is where the run ends, so that nothing has a length below 0
    C[name] = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      const t = C.times[i * width + k];
      C[name][i] = t === t ? Math.max(0, t) : name === "ended" ? C.started[i] : 0;
    }
  }
  return C;
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// edges by instruction: those into i are [into[i], into[i + 1]), those out of it are
// outEdges[outStart[i]] up to outEdges[outStart[i + 1] - 1]
function edgesOf(C) {
  const n = C.seq.length, count = C.source.length;
  const into = new Int32Array(n + 1), outStart = new Int32Array(n + 1);
  for (let e = 0; e < count; e++) { into[C.target[e] + 1]++; outStart[C.source[e] + 1]++; }
  for (let i = 0; i < n; i++) { into[i + 1] += into[i]; outStart[i + 1] += outStart[i]; }
  const outEdges = new Int32Array(count), at = outStart.slice();
  for (let e = 0; e < count; e++) outEdges[at[C.source[e]]++] = e;
  return { into, outStart, outEdges };
}
