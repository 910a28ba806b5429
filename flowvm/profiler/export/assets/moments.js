// The VM at a moment, from the run's records alone. It says what `p.at` says, in the same words:
// this is the twin of flowvm/profiler/analysis/moments.py and flowvm/profiler/views/moment.py, and
// a test compares them.

const STAGES = ["to come", "issued", "pending", "ready", "queued", "running", "ended", "done"];
const [TO_COME, , PENDING, READY, QUEUED, RUNNING, , DONE] = STAGES.keys();
const HAZARD = ["RAW", "WAR", "WAW"];

class Moments { // made when somebody first asks: sorting all events takes a moment of its own
  constructor(D, C, edges) {
    this.D = D; this.C = C; this.into = edges.into;
    this.n = C.seq.length; this.width = D.machine.times.length;
    this.owner = new Int32Array(C.tensor.length);
    for (let i = 0; i < this.n; i++) this.owner.fill(i, C.offsets[i], C.offsets[i + 1]);
    this.order = this.sorted();
    this.events = this.order.length;
    this.rank = new Int32Array(this.n * this.width).fill(2 ** 31 - 1);
    this.order.forEach((at, k) => { this.rank[at] = k; });
    this.number = 0; // so many events have happened in `states`
    this.states = new Uint8Array(this.n);
    this.streams = [...new Set(C.stream)].sort((a, b) => a - b);
  }

  // Places in C.times of what happened, in the order of their times; of two at one time the place
  // decides. By 16 bits at a time, from the lowest: 700,000 numbers take milliseconds.
  sorted() {
    const times = this.C.times;
    let low = Infinity, high = -Infinity, count = 0;
    for (const t of times) if (t === t) { count++; if (t < low) low = t; if (t > high) high = t; }
    let order = new Int32Array(count), other = new Int32Array(count), k = 0;
    for (let at = 0; at < times.length; at++) if (times[at] === times[at]) order[k++] = at;
    const starts = new Int32Array(65537);
    for (let unit = 1; unit <= high - low; unit *= 65536) {
      const digit = new Uint16Array(count);
      starts.fill(0);
      for (let j = 0; j < count; j++) {
        digit[j] = Math.floor((times[order[j]] - low) / unit) % 65536;
        starts[digit[j] + 1]++;
      }
      for (let d = 0; d < 65536; d++) starts[d + 1] += starts[d];
      for (let j = 0; j < count; j++) other[starts[digit[j]]++] = order[j];
      [order, other] = [other, order];
    }
    return order;
  }

  time(number) { return number ? this.C.times[this.order[number - 1]] : 0; }

  numberAt(time) {
    let low = 0, high = this.events;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.C.times[this.order[middle]] <= time) low = middle + 1; else high = middle;
    }
    return low;
  }

  // How many events had happened when instruction i came to a stage; -1: it never did.
  numberOf(i, stage) {
    const rank = this.rank[i * this.width + stage];
    return rank === 2 ** 31 - 1 ? -1 : rank + 1;
  }

  // The moment one event of a stage (-1: of any) further on, or back.
  next(number, stage, step) {
    let at = number + step;
    while (at > 0 && at < this.events && stage >= 0
      && this.order[at - 1] % this.width !== stage) at += step;
    return Math.min(Math.max(at, 0), this.events);
  }

  go(number) { // events between two moments are few where one is played after the other
    for (; this.number < number; this.number++) this.states[this.index(this.number)]++;
    for (; this.number > number; this.number--) this.states[this.index(this.number - 1)]--;
    return this.states;
  }

  index(event) { return Math.floor(this.order[event] / this.width); }

  named(i) {
    const { C, D } = this;
    return { seq: C.seq[i], op: D.names[C.op[i]], line: D.lines.at(C.line[i]) };
  }

  // [number, time] of a time in milliseconds, as `p.at(t)` takes it
  at(t) {
    const wanted = Math.min(Math.max(t * 1e6, 0), this.D.machine.over), down = Math.floor(wanted);
    const over = wanted - down; // a half goes to the even one, as Python rounds
    const now = over > 0.5 || (over === 0.5 && down % 2) ? down + 1 : down;
    return [this.numberAt(now), now];
  }

  moment(number, time = this.time(number)) {
    const { C, D } = this, states = this.go(number);
    let event = "nothing was issued yet", line = "";
    if (number) {
      const i = this.index(number - 1), stage = this.order[number - 1] % this.width;
      const named = this.named(i), name = D.machine.times[stage];
      const on = name === "started" || name === "dispatched" ? ` on ${D.streams[C.stream[i]]}` : "";
      event = `#${named.seq} ${named.op} ${D.machine.events[stage]}${on}`;
      line = named.line;
    }
    const at = STAGES.map(() => []), counts = new Int32Array(STAGES.length);
    for (let i = 0; i < this.n; i++) {
      counts[states[i]]++;
      if (states[i] >= PENDING && states[i] < DONE) at[states[i]].push(i);
    }
    const queueRank = (i) => this.rank[i * this.width + QUEUED - 1];
    const names = (some) => some.map((i) => this.named(i));
    return {
      number, events: this.events, time, wall: D.machine.wall, event, line,
      counts: STAGES.map((name, k) => [name, counts[k]]),
      python: D.parts.map((part, k) => this.python(part, k, states, time)),
      live: D.machine.spaces.map((space, k) => [space, this.live(k, time)]),
      streams: this.streams.map((s) => {
        const running = at[RUNNING].filter((i) => C.stream[i] === s);
        const queued = at[QUEUED].filter((i) => C.stream[i] === s);
        queued.sort((a, b) => queueRank(a) - queueRank(b));
        return { name: D.streams[s], running: names(running), queued: names(queued),
          ran: running.map((i) => time - C.times[i * this.width + RUNNING - 1]) };
      }),
      ready: names(at[READY]),
      waiting: at[PENDING].map((i) => ({ what: this.named(i), front: this.front(states, i) })),
      storages: this.storages(states),
      actors: this.actors(states, time),
      meetings: this.meetings(time),
      holders: D.memories.map((_, k) => holdersAt(D, C, k, time, this.live(k, time))),
    };
  }

  // The collectives to which a rank has come and that are not over on all of them.
  meetings(time) {
    const { C, D } = this, found = [];
    if (!D.ranks || !D.ranks.names.length) return found;
    const count = D.parts.length, begins = C["tie.begin"], ends = C["tie.end"];
    for (let k = 0; k < D.ranks.names.length; k++) {
      const begin = begins.subarray(k * count, (k + 1) * count), end = ends.subarray(k * count, (k + 1) * count);
      const last = Math.max(...begin);
      if (time < Math.min(...begin) || time >= Math.max(...end)) continue;
      const ranks = [...begin].map((begun, r) => time < begun ? ["to come", begun - time]
        : time >= end[r] ? ["done", time - end[r]]
          : time < last ? ["waits", time - begun] : ["exchanges", time - last]);
      found.push({ name: D.ranks.names[k], number: k, nbytes: C["tie.bytes"][k], ranks,
        awaited: time < last ? begin.indexOf(last) : -1 });
    }
    return found;
  }

  python(part, number, states, time) {
    const { C, D } = this, who = (part.name + " Python").trim();
    for (let k = D.machine.first_waits[number + 1] - 1; k >= D.machine.first_waits[number]; k--) {
      if (C["wait.begin"][k] <= time && time < C["wait.end"][k]) {
        return [who, D.machine.waits[C["wait.cause"][k]]];
      }
    }
    const i = states.indexOf(TO_COME, part.first);
    if (i < 0 || i >= part.last) return [who, "has issued everything"];
    const next = this.named(i);
    return [who, `will issue #${next.seq} ${next.op} next, at ${next.line}`];
  }

  live(number, time) {
    const when = this.C[`level${number}.time`];
    let low = 0, high = when.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (when[middle] <= time) low = middle + 1; else high = middle;
    }
    return low ? this.C[`level${number}.bytes`][low - 1] : this.D.memories[number].base;
  }

  // who has to end before i may run, the hazard, and the tensor that it is about
  front(states, i) {
    const { C } = this, found = [];
    for (let e = this.into[i]; e < this.into[i + 1]; e++) {
      if (states[C.source[e]] >= DONE) continue;
      found.push([this.named(C.source[e]), HAZARD[C.hazard[e]], C.tensor.at(C.operand[e])]);
    }
    return found;
  }

  // The access lists in which something stands behind something else: those in which most waits
  // first, then the longest.
  storages(states) {
    const { C } = this, lists = new Map();
    for (let i = 0; i < this.n; i++) {
      if (states[i] < PENDING || states[i] >= DONE) continue;
      for (let k = C.offsets[i]; k < C.offsets[i + 1]; k++) {
        const own = lists.get(C.tensor[k]);
        if (own) own.push(k); else lists.set(C.tensor[k], [k]);
      }
    }
    const found = [];
    for (const [tensor, all] of lists) {
      if (this.owner[all[0]] === this.owner[all[all.length - 1]]) continue;
      const once = new Map(); // an instruction has one place in a list for each way of access
      for (const k of all) {
        const key = this.owner[k] * 4 + C.opaccess[k];
        if (!once.has(key)) once.set(key, k);
      }
      const own = [...once.keys()].sort((a, b) => a - b).map((key) => once.get(key));
      let waits = 0, nbytes = 0;
      for (const k of own) {
        waits += states[this.owner[k]] === PENDING;
        nbytes = Math.max(nbytes, C.size[k]);
      }
      found.push({ waits, tensor, nbytes, accesses: own.map((k) =>
        [this.named(this.owner[k]), C.opaccess[k], STAGES[states[this.owner[k]]]]) });
    }
    found.sort((a, b) => b.waits - a.waits || b.accesses.length - a.accesses.length
      || a.tensor - b.tensor);
    return found.map(({ tensor, nbytes, accesses }) => ({ tensor, nbytes, accesses }));
  }

  // The actors of the Plans whose launches run.
  actors(states, time) {
    const { C, D } = this, found = [], names = new Set();
    for (let i = 0; i < this.n; i++) {
      if (C.kind[i] === D.machine.launch && states[i] === RUNNING) names.add(D.names[C.op[i]]);
    }
    for (const name of names) {
      const plan = D.machine.plans[name], places = new Map(), first = D.names.indexOf(name);
      for (let i = 0; i < this.n; i++) {
        if (C.kind[i] === D.machine.launch && C.op[i] === first) places.set(i, places.size);
      }
      if (!plan || !C["task.launch"].some((i) => places.has(i))) continue;
      this.registers(plan, places, time).forEach((one, k) =>
        found.push({ plan: name, number: k, label: plan[k].label, ...one }));
    }
    return found;
  }

  registers(plan, places, time) {
    const { C } = this, ofTask = [], running = plan.map(() => -1);
    plan.forEach((actor, k) => { for (let j = 0; j < actor.count; j++) ofTask.push(k); });
    const left = plan.map(() => new Int32Array(places.size));
    const fired = plan.map(() => new Uint8Array(places.size)), ends = plan.map(() => new Float64Array(places.size));
    const launches = [...places.keys()], started = this.D.machine.times.indexOf("started"), width = this.D.machine.times.length;
    const past = plan.map(() => -Infinity); // of each actor, when the act before was over
    for (let k = 0; k < C["task.launch"].length; k++) {
      const launch = places.get(C["task.launch"][k]);
      if (launch === undefined) continue;
      const number = C["task.number"][k], actor = ofTask[number];
      const begun = C["task.begin"][k], over = C["task.end"][k];
      if (over <= time) { left[actor][launch]++; past[actor] = Math.max(past[actor], over); }
      ends[actor][launch] = Math.max(ends[actor][launch], over);
      if (begun <= time) fired[actor][launch] = 1;
      if (running[actor] < 0 && begun <= time && time < over) running[actor] = number;
    }
    const count = (flags) => flags.reduce((sum, flag) => sum + (flag ? 1 : 0), 0);
    const acts = plan.map((actor, k) => count(left[k].map((n) => n >= actor.count)));
    const begun = fired.map(count);
    return plan.map((actor, k) => {
      const mailbox = actor.inputs.map((j) => [j, acts[j] - begun[k]]);
      const credits = actor.credits.map(([j, n]) => [j, n - (begun[k] - acts[j])]);
      const at = begun[k], given = at < launches.length ? C.times[launches[at] * width + started] : NaN;
      const one = { acts: acts[k], task: running[k], mailbox, credits, launch: -1, waits: [], since: -1 };
      if (running[k] >= 0 || !(given <= time)) return one;
      one.launch = C.seq[launches[at]];
      one.waits = [...mailbox.filter(([, n]) => n <= 0).map(([j]) => ["regst", j]), ...credits.filter(([, n]) => n <= 0).map(([j]) => ["credit", j])];
      const came = [...actor.inputs.map((j) => ends[j][at]), ...actor.credits.filter(([, n]) => at >= n).map(([j, n]) => ends[j][at - n])];
      one.since = Math.max(given, past[k], ...(one.waits.length ? [] : came.filter((t) => t <= time)));
      return one;
    });
  }
}
