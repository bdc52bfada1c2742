// The page: a picture and a density in; the answer, the time and the computed channels shown.

import { open, preprocess, race, run } from "./network.js";

const at = (id) => document.getElementById(id);
const state = { about: null, skipping: null, everything: null, planes: null, name: "", before: {}, turn: 0 };
// What was shown last, for tests and the curious: {logits, lists, density, milliseconds, name}.
window.penstock = { shown: null };

function fail(where, error) {
  at("about").className = "alarm";
  at("about").textContent = `${where}: ${error.message ?? error}. Is everything there? Run docs/browser/build.py once.`;
}

function softmax(logits) {
  const top = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

function element(kind, text = "", parts = []) {
  const made = document.createElement(kind);
  made.textContent = text;
  made.append(...parts);
  return made;
}

function showScores(logits) {
  const shares = softmax(logits);
  const order = shares.map((share, place) => [share, state.about.classes[place]]).sort((a, b) => b[0] - a[0]);
  at("verdict").textContent = `${order[0][1]}, ${(100 * order[0][0]).toFixed(0)}% sure`;
  at("scores").replaceChildren(
    ...order.slice(0, 5).map(([share, name]) => {
      const bar = element("span");
      bar.className = "bar";
      bar.style.setProperty("--share", `${100 * share}%`);
      bar.setAttribute("aria-hidden", "true");
      return element("li", "", [element("span", name), bar, element("span", `${(100 * share).toFixed(1)}%`)]);
    }),
  );
}

function makeLayers() {
  at("layers").replaceChildren(
    ...state.about.layers.map((layer) => {
      const cells = element("div");
      cells.className = "cells";
      cells.setAttribute("role", "img");
      cells.append(...Array.from({ length: layer.channels }, () => document.createElement("i")));
      return element("li", "", [element("p", "", [element("b", layer.name), element("span")]), cells]);
    }),
  );
}

function showLayers(lists) {
  for (const [place, layer] of state.about.layers.entries()) {
    const row = at("layers").children[place];
    const cells = row.lastChild;
    const list = lists[layer.name];
    for (const cell of cells.children) cell.className = "";
    list.forEach((channel, rank) => {
      const cell = cells.children[channel];
      cell.className = "on";
      cell.style.setProperty("--rank", (rank / Math.max(1, list.length - 1)).toFixed(3));
    });
    const old = state.before[layer.name];
    const fresh = old ? list.filter((channel) => !old.has(channel)).length : 0;
    const text = `${list.length} of ${layer.channels}${fresh ? `, ${fresh} not in the last run` : ""}`;
    row.querySelector("p span").textContent = text;
    cells.setAttribute("aria-label", `${layer.name}: ${text} channels computed`);
  }
}

// A layer's multiplications fall with the channels it reads and the channels it makes.
function workShare(lists) {
  let done = 0;
  let all = 0;
  const channels = Object.fromEntries(state.about.layers.map((layer) => [layer.name, layer.channels]));
  for (const layer of state.about.layers) {
    const reads = layer.reads ? lists[layer.reads].length / channels[layer.reads] : 1;
    done += layer.macs * reads * (lists[layer.name].length / layer.channels);
    all += layer.macs;
  }
  return done / all;
}

async function classify() {
  if (!state.planes) return;
  state.turn += 1;
  const turn = state.turn;
  const density = Number(at("density").value);
  at("density-shown").textContent = density.toFixed(2);
  let found = null;
  for (let round = 0; round < 3; round += 1) { // the first run at a density also has to find its memory
    const again = await run(state.skipping, state.planes, state.about.size, density);
    if (turn !== state.turn) return; // a newer question is on its way
    found = found === null || again.milliseconds < found.milliseconds ? again : found;
  }
  showScores(found.logits);
  showLayers(found.lists);
  at("time").textContent = `${found.milliseconds.toFixed(1)} ms`;
  at("work").textContent = `${(100 * workShare(found.lists)).toFixed(0)}%`;
  at("race").textContent = "";
  state.before = Object.fromEntries(Object.entries(found.lists).map(([name, list]) => [name, new Set(list)]));
  window.penstock.shown = { ...found, density, name: state.name };
}

async function look(source, name) {
  const { size } = state.about;
  const canvas = at("seen");
  canvas.width = canvas.height = size;
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  const side = Math.min(source.width, source.height); // the middle square
  brush.imageSmoothingQuality = "high";
  brush.drawImage(source, (source.width - side) / 2, (source.height - side) / 2, side, side, 0, 0, size, size);
  state.planes = preprocess(brush.getImageData(0, 0, size, size).data, size, state.about);
  state.name = name;
  await classify();
}

async function lookAtSample(file) {
  const image = new Image();
  image.src = file;
  await image.decode();
  await look(image, file);
}

async function lookAtUpload() {
  const [file] = at("file").files;
  if (!file) return;
  try {
    await look(await createImageBitmap(file), file.name);
    for (const input of document.querySelectorAll("#samples input")) input.checked = false;
  } catch {
    at("verdict").textContent = `${file.name} is not a picture this browser can read`;
  }
}

function makeSamples() {
  at("samples").append(
    ...state.about.samples.map(({ file, label }, place) => {
      const input = element("input");
      Object.assign(input, { type: "radio", name: "sample", value: file, checked: place === 0 });
      input.addEventListener("change", () => lookAtSample(file));
      const image = new Image();
      Object.assign(image, { src: file, alt: `sample ${place + 1}: ${label}`, width: 32, height: 32 });
      return element("label", "", [input, image]);
    }),
  );
}

async function compare() {
  const button = at("compare");
  button.disabled = true;
  at("race").textContent = "Measuring…";
  try {
    state.everything ??= await open("net/everything.onnx");
    const density = Number(at("density").value);
    const { size } = state.about;
    const [skipping, everything] = await race(state.skipping, state.everything, state.planes, size, density);
    const gain = (everything / skipping).toFixed(1);
    at("race").textContent =
      `${skipping.toFixed(1)} ms skipping, ${everything.toFixed(1)} ms computing every channel and zeroing ` +
      `the losers: ${gain}× (same answer, fastest of 30 runs each)`;
  } catch (error) {
    at("race").textContent = `Could not measure: ${error.message ?? error}`;
  }
  button.disabled = false;
}

async function start() {
  try {
    state.about = await (await fetch("net/page.json")).json();
    state.skipping = await open("net/skipping.onnx");
  } catch (error) {
    fail("The network could not be loaded", error);
    return;
  }
  at("about").textContent = state.about.text;
  makeSamples();
  makeLayers();
  at("density").addEventListener("input", classify);
  at("file").addEventListener("change", lookAtUpload);
  at("compare").addEventListener("click", compare);
  await lookAtSample(state.about.samples[0].file);
}

start();
