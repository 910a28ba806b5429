// node moments_in_node.js DATA QUESTIONS SCRIPT...: what the page's program says of moments, as
// JSON. A question is {"t": ms}, {"number": n}, {"seq": n, "stage": k} or {"next": [n, stage, by]}.
const fs = require("fs"), vm = require("vm");
const [, , data, questions, ...scripts] = process.argv;
for (const script of scripts) vm.runInThisContext(fs.readFileSync(script, "utf8"), script);
globalThis.D = JSON.parse(fs.readFileSync(data, "utf8"));
globalThis.questions = JSON.parse(fs.readFileSync(questions, "utf8"));
(async () => {
globalThis.bytes = await vm.runInThisContext("inflated(D)");
const said = vm.runInThisContext(`
  const C = columnsOf(D, bytes), M = new Moments(D, C, edgesOf(C));
  questions.map((q) => {
    if (q.next) return M.next(...q.next);
    if (q.seq !== undefined) return M.numberOf(C.seq.indexOf(q.seq), q.stage);
    return q.t !== undefined ? M.moment(...M.at(q.t)) : M.moment(q.number);
  })`);
process.stdout.write(JSON.stringify(said));
})();
