// The exported network in onnxruntime-web: pixels and a density in, logits and channel lists out.

import * as ort from "./ort/ort.js";

ort.env.wasm.wasmPaths = {
  mjs: new URL("./ort/ort-wasm.js", import.meta.url).href,
  wasm: new URL("./ort/ort-wasm.wasm", import.meta.url).href,
};
ort.env.wasm.numThreads = 1; // more would need headers that a plain file server does not send
ort.env.logLevel = "error";

export async function open(file) {
  return ort.InferenceSession.create(file, { executionProviders: ["wasm"] });
}

// pixels: the bytes of a canvas (red, green, blue, alpha by pixel) → float32 planes, as the network was trained.
export function preprocess(pixels, size, { mean, std }) {
  const area = size * size;
  const planes = new Float32Array(3 * area);
  for (let channel = 0; channel < 3; channel += 1) {
    for (let place = 0; place < area; place += 1) {
      planes[channel * area + place] = (pixels[4 * place + channel] - 255 * mean[channel]) / (255 * std[channel]);
    }
  }
  return planes;
}

export async function run(session, planes, size, density) {
  const feeds = {
    images: new ort.Tensor("float32", planes, [1, 3, size, size]),
    density: new ort.Tensor("float32", [density], []),
  };
  const start = performance.now();
  const found = await session.run(feeds);
  const milliseconds = performance.now() - start;
  const lists = {};
  for (const [name, tensor] of Object.entries(found)) {
    if (name.startsWith("channels/")) {
      lists[name.slice("channels/".length)] = Array.from(tensor.data, Number);
    }
  }
  return { logits: Array.from(found.logits.data), lists, milliseconds };
}

// Both sessions in turn, so that a busy machine slows both; the fastest run of each counts.
export async function race(first, second, planes, size, density, rounds = 30) {
  const best = [Infinity, Infinity];
  for (let round = 0; round < rounds; round += 1) {
    for (const [place, session] of [first, second].entries()) {
      const { milliseconds } = await run(session, planes, size, density);
      best[place] = Math.min(best[place], milliseconds);
    }
  }
  return best;
}
