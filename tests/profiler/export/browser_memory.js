// Memory: who holds it at the peak, and at the moment that the slider is moved to.
addEventListener("load", async () => {
  while (!window.flowvm) await new Promise((done) => setTimeout(done, 5)); // columns are unpacked first
  const F = window.flowvm, out = { errors: [] };
  const pause = () => new Promise((done) => setTimeout(done, 30));
  addEventListener("error", (e) => out.errors.push(String(e.message)));
  const text = () => document.getElementById("memory").textContent;
  F.show("memory"); await pause(); out.peak = text();
  const slider = document.querySelector("#clock input");
  slider.value = 0; slider.dispatchEvent(new Event("input")); await pause(); out.begin = text();
  const canvas = document.querySelector("#memory canvas"), box = canvas.getBoundingClientRect();
  HTMLCanvasElement.prototype.setPointerCapture = () => {};
  canvas.dispatchEvent(new PointerEvent("pointerdown",
    { clientX: box.left + 70 + (box.width - 90) / 2, clientY: box.top + 9, pointerId: 1 }));
  await pause(); out.time = F.state.time;
  [...document.querySelectorAll("#memory button")].find((b) => b.textContent === "to the peak").click();
  await pause(); out.at_peak = F.state.time; out.said = text();
  const pre = document.createElement("pre"); pre.id = "result";
  pre.textContent = JSON.stringify(out); document.body.append(pre);
});
