// The page behind a server: one image with a density of one's own, and the server as it is now.
"use strict";
const at = (id) => document.getElementById(id);
const state = { file: null, model: null, history: [], layers: {}, busy: false, again: false };

function milliseconds(value) {
  return value >= 100 ? `${value.toFixed(0)} ms` : value >= 10 ? `${value.toFixed(1)} ms` : `${value.toFixed(2)} ms`;
}

function say(words, bad = false) {
  at("message").textContent = words;
  at("message").className = bad ? "bad" : "";
}

async function classify() {
  if (!state.file) return;
  if (state.busy) { state.again = true; return; }
  state.busy = true;
  try {
    const query = new URLSearchParams({ layers: "1" });
    if (state.model) query.set("model", state.model);
    if (!at("automatic").checked) query.set("density", at("density").value);
    const response = await fetch(`classify?${query}`, { method: "POST", body: state.file });
    const found = await response.json();
    if (response.ok) show(found); else say(found.error, true);
  } catch (error) {
    say(`The server does not answer: ${error.message}`, true);
  } finally {
    state.busy = false;
    if (state.again) { state.again = false; classify(); }
  }
}

function show(found) {
  say("");
  at("classes").replaceChildren(...found.classes.map(({ name, probability }) => {
    const row = document.createElement("li");
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.style.width = `${100 * probability}%`;
    const label = document.createElement("span");
    label.textContent = name;
    const share = document.createElement("span");
    share.textContent = `${(100 * probability).toFixed(1)}%`;
    row.append(bar, label, share);
    return row;
  }));
  at("cost").hidden = false;
  at("used").textContent = found.density.toFixed(2);
  at("took").textContent = milliseconds(found.milliseconds);
  at("waited").textContent = milliseconds(found.latency_milliseconds);
  showLayers(found.layers || {});
}

function showLayers(layers) {
  state.layers = layers;
  const names = Object.keys(layers);
  at("layers-title").hidden = names.length === 0;
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--blue").trim();
  at("layers").replaceChildren(...names.map((name) => {
    const { channels, computed } = layers[name];
    const row = document.createElement("div");
    row.className = "layer";
    const label = document.createElement("span");
    label.className = "name";
    label.title = label.textContent = name;
    const strip = document.createElement("canvas");
    strip.width = channels;
    strip.height = 1;
    strip.setAttribute("role", "img");
    strip.setAttribute("aria-label", `${name}: ${computed.length} of ${channels} channels computed`);
    const pen = strip.getContext("2d");
    pen.fillStyle = ink;
    for (const channel of computed) pen.fillRect(channel, 0, 1, 1);
    const count = document.createElement("span");
    count.textContent = `${computed.length}/${channels}`;
    row.append(label, strip, count);
    return row;
  }));
}

function take(file) {
  if (!file) return;
  state.file = file;
  const shown = at("shown");
  URL.revokeObjectURL(shown.src);
  shown.src = URL.createObjectURL(file);
  shown.alt = file.name;
  shown.hidden = false;
  at("invite").hidden = true;
  classify();
}

async function refresh() {
  try {
    const all = await (await fetch("status")).json();
    const names = Object.keys(all);
    if (state.model === null) {
      state.model = names[0];
      at("models").hidden = names.length < 2;
      at("model").replaceChildren(...names.map((name) => new Option(name, name)));
    }
    live(all[state.model]);
    at("trouble").textContent = all[state.model].reload_error
      ? `The network's file changed and cannot be used: ${all[state.model].reload_error}` : "";
  } catch (error) {
    at("trouble").textContent = `The server does not answer: ${error.message}`;
  }
}

function live(now) {
  const idle = now.p99 === 0;  // nothing was answered within the last second
  at("p95").textContent = idle ? "no requests" : milliseconds(now.p95);
  at("p95").className = now.p95 > now.target ? "over" : "";
  at("target").textContent = milliseconds(now.target);
  at("others").textContent = idle ? "–" : `${milliseconds(now.p50)}, ${milliseconds(now.p99)}`;
  at("now").textContent = `${now.density.toFixed(2)} of ${now.floor}–${now.ceiling}`;
  at("rate").textContent = now.rate.toFixed(now.rate < 10 ? 1 : 0);
  at("waiting").textContent = now.waiting;
  at("accuracy").textContent = now.accuracy === null ? "not in the file"
    : `${now.accuracy.toFixed(2)}% (${now.given_away > 0.005 ? `−${now.given_away.toFixed(2)}` : "nothing given away"})`;
  at("counts").textContent = `${now.answered}, ${now.refused}`;
  state.history.push({ p95: now.p95, density: now.density, target: now.target, idle });
  if (state.history.length > 120) state.history.shift();
  draw();
}

function draw() {
  const { history } = state;
  if (history.length === 0) return;
  const right = Math.max(at("chart").clientWidth, 200) - 36;  // in pixels: letters keep their size on a phone
  const most = Math.max(...history.map((one) => Math.max(one.p95, one.target))) * 1.15;
  const x = (i) => 56 + ((right - 56) * (i + 120 - history.length)) / 119;
  const y = (share) => 208 - 196 * share;
  const line = (pick, colour, dash = "") => {
    // A point that is no number ends a line: where nothing was asked, there is no latency.
    const points = history.map((one, i) => [pick(one), i]).map(([share, i]) =>
      (Number.isFinite(share) ? `${x(i).toFixed(1)},${y(share).toFixed(1)}` : "|")).join(" ");
    return points.split("|").filter((part) => part.trim()).map((part) => `<polyline points="${part.trim()}" fill="none"
      stroke="var(--${colour})" stroke-width="2" stroke-linecap="round" stroke-dasharray="${dash}"/>`).join("");
  };
  const text = (left, share, anchor, colour, words) => `<text x="${left}" y="${y(share / 1.15) + 4}" font-size="12"
    text-anchor="${anchor}" fill="var(--${colour})">${words}</text>`;
  const scale = [0, 0.5, 1].map((share) => {
    const height = y(share / 1.15);
    const value = (most * share) / 1.15;
    return `<line x1="56" x2="${right}" y1="${height}" y2="${height}" stroke="var(--line)"/>`
      + text(50, share, "end", "blue", `${value.toFixed(value < 10 ? 1 : 0)} ms`)
      + text(right + 6, share, "start", "orange", share.toFixed(1));
  });
  at("chart").innerHTML = scale.join("") + line((one) => one.target / most, "muted", "4 4")
    + line((one) => (one.idle ? NaN : one.p95 / most), "blue") + line((one) => one.density / 1.15, "orange");
}

at("file").addEventListener("change", (event) => take(event.target.files[0]));
at("drop").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); at("file").click(); }
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  at("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files[0]);
  });
}
at("density").addEventListener("input", () => {
  at("density-value").textContent = Number(at("density").value).toFixed(2);
  at("automatic").checked = false;
  classify();
});
at("automatic").addEventListener("change", classify);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showLayers(state.layers));
at("model").addEventListener("change", (event) => { state.model = event.target.value; state.history = []; classify(); });
addEventListener("resize", draw);
refresh();
setInterval(refresh, 500);
