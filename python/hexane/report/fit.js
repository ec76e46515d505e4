// Makes the page of `hexane fit --html` from its data.

const [W, H] = [1240, 380];
const EACH = data.each.map(([layer, kernel, rows, live, weights, macs], step) => ({ step, layer, kernel, rows, live, weights, macs }));
const onHost = data.runtime === "host";
const beside = onHost ? "scratch" : "inputs and outputs";
const HELD = data.timeline.map(([layer, kernel, type, rows, kept, bytes, offset, first, last, why]) => ({ layer, kernel, type, rows, kept, bytes, offset, first, last, why }));

const bytes = (number) => `${exact(number)} bytes`;

// ---- figures ----

function figures() {
  const flash = data.in_flash;
  return make("div", { class: "figures" },
    figure(size(data.streamed + data.extra_bytes), `row by row: arena and ${beside}`),
    figure(size(data.whole + data.extra_bytes), `in whole tensors: arena and ${beside}`),
    figure(size(data.bound), "live at once: no placement takes less"),
    figure(size(data.floor), "of one step: no plan of these steps takes less"),
    figure(size(data.extra_bytes), onHost ? "working memory of kernels, counted in these sums: this CPU, one thread" : "inputs and outputs, counted in these sums: the C99 runtime uses no scratch"),
    figure(size(data.held), `one memory for arena, ${data.stream_input ? "rows of inputs" : "inputs"} and outputs`),
    figure(size(flash.plan), `of plan in flash, ${size(flash.weights)} of it weights`),
    figure(flash.missing ? "unknown" : size(flash.code), flash.missing || "of code, an upper estimate: Cortex-M4 at -Os"));
}

function latency() {
  const span = ([least, most], digits) => [...new Set([least, most].map((n) => Number(n.toPrecision(digits)).toLocaleString("en")))].join(" to ");
  return make("div", null, ...data.latency.map((one) => make("p", null,
    make("b", null, `${one.core}: `), `${span(one.milliseconds, 3)} ms at 100 MHz, ${span(one.cycles, 3)} million cycles. `,
    make("span", { class: "basis" }, one.basis))));
}

// ---- ways ----

function pareto() {
  const [left, right, top, bottom] = [70, 24, 24, 44];
  const x = scale(Math.max(...data.ways.map((way) => way.total), data.sram || 0) * 1.05, left, W - right);
  const y = scale(Math.max(...data.ways.map((way) => way.runs), 1) * 1.1, H - bottom, top);
  const marks = data.ways.map((way) => draw("circle", { cx: x(way.total), cy: y(way.runs), r: 5, class: way.slow ? "slow" : "program" },
    draw("title", null, wayText(way))));
  const line = data.ways.filter((way) => !way.slow).map((way) => `${x(way.total)},${y(way.runs)}`).join(" ");
  const labels = spread(data.ways.map((way) => {
    const text = way.slow ? `${way.name}, ${size(way.read + way.written)} of traffic` : way.name;
    return { x: Math.min(x(way.total) + 8, W - right - 6.2 * text.length), y: y(way.runs) - 7, text };
  }));
  return draw("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Ways of computing: memory and runs of kernels" },
    ...axes(x, y, left, right, top, bottom, `bytes of arena, ${beside} and slow memory`, "runs of kernels in a call", exact),
    ...limit(data.sram, x, top, H - bottom), draw("polyline", { points: line, class: "curve" }), ...marks,
    ...labels.map((label) => draw("text", { x: label.x, y: label.y }, label.text)));
}

function ways() {
  return table([["way"], ["total bytes", 1], ["slow memory", 1], ["read of it", 1], ["written to it", 1], ["products repeated", 1], ["runs of kernels", 1]], data.ways.map((way) => make("tr", null,
    make("td", null, way.name), ...[way.total, way.slow, way.read, way.written, way.repeated, way.runs].map((number) => make("td", { class: "number" }, exact(number))))));
}

const wayText = (way) => `${way.name}: ${bytes(way.total)}, ${bytes(way.read + way.written)} of traffic, ${count(way.runs, "run")} of kernels, ${exact(way.repeated)} multiply-accumulates done more than once`;

/** Moves labels up until none is over another. */
function spread(labels) {
  const done = [];
  for (const label of labels) {
    while (done.some((other) => Math.abs(other.y - label.y) < 13 && label.x < other.x + 6.2 * other.text.length && other.x < label.x + 6.2 * label.text.length)) label.y -= 13;
    done.push(label);
  }
  return done;
}

function scale(most, from, to) {
  const found = (value) => from + (value / (most || 1)) * (to - from);
  found.most = most;
  return found;
}

function ticks(most) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(most, 1) / 8));
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

function axes(x, y, left, right, top, bottom, below, beside, text = size) {
  return [
    ...ticks(y.most).flatMap((value) => [draw("line", { x1: left, x2: W - right, y1: y(value), y2: y(value), class: "axis" }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text(value))]),
    ...(x ? ticks(x.most).map((value) => draw("text", { x: x(value), y: H - bottom + 16, "text-anchor": "middle" }, size(value))) : []),
    draw("text", { x: (left + W - right) / 2, y: H - 8, "text-anchor": "middle" }, below),
    draw("text", { x: left, y: top - 7 }, beside),
  ];
}

function limit(value, x, top, bottom) {
  if (!value) return [];
  return [draw("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "limit" }), draw("text", { x: x(value) + 5, y: top + 10, class: "limit-label" }, `sram ${size(value)}`)];
}

// ---- the arena ----

function arena() {
  const [left, right, top, bottom] = [70, 12, 20, 44];
  const width = Math.max(W, left + right + 14 * data.steps);
  const column = (width - left - right) / Math.max(data.steps, 1);
  const y = scale(Math.max(data.streamed, 1) * 1.04, H - bottom, top);
  const boxes = HELD.flatMap((one, i) => {
    const box = { x: left + one.first * column, y: y(one.offset + one.bytes), width: (one.last - one.first + 1) * column, height: y(one.offset) - y(one.offset + one.bytes) };
    const kind = one.kept ? "kept" : "whole";
    const text = `${one.kernel}${one.kept ? ` ${one.kept}/${one.rows} rows` : ""}`;
    const room = box.height > 13 && box.width > 6.3 * text.length + 8;
    return [draw("rect", { ...box, class: `held ${kind} ${i % 2 ? "even" : ""}` }, draw("title", null, heldText(one))),
      room ? draw("text", { x: box.x + 4, y: box.y + box.height / 2 + 4, class: "inside" }, text) : null];
  });
  const every = Math.max(1, Math.ceil(28 / column));
  const steps = Array.from({ length: Math.ceil(data.steps / every) }, (_, i) => i * every);
  const picture = draw("svg", { width, height: H, viewBox: `0 0 ${width} ${H}`, role: "img", "aria-label": "The arena over the steps" },
    ...axes(null, y, left, right, top, bottom, "", "byte of the arena"), ...boxes.filter(Boolean),
    draw("line", { x1: left, x2: width - right, y1: y(data.bound), y2: y(data.bound), class: "bound" }),
    ...steps.map((step) => draw("text", { x: left + (step + 0.5) * column, y: H - bottom + 16, "text-anchor": "middle" }, String(step))),
    draw("text", { x: left, y: H - 8 }, "step"));
  return make("div", null, make("p", { class: "soft" }, make("i", { class: "key kept" }), "a ring of rows", make("i", { class: "key whole" }), "a whole tensor",
    " · dotted: the most that is live at once · point at a tensor for what it is"), make("div", { class: "chart" }, picture));
}

const heldText = (one) => `${one.layer || "(no name)"} (${one.kernel})\n${one.type}${one.kept ? `, ${one.kept} of ${one.rows} rows` : ""}\n${bytes(one.bytes)} at ${exact(one.offset)}, steps ${one.first} to ${one.last}\n${one.why}`;

// ---- tables ----

function heldTable() {
  const cells = (one) => [make("td", { class: "layer" }, name(one.layer)), make("td", null, one.kernel), make("td", { class: "mono" }, one.type),
    make("td", { class: "number" }, one.kept ? `${one.kept} of ${one.rows}` : one.rows || ""), make("td", { class: "number" }, exact(one.bytes)), make("td", { class: "number" }, exact(one.offset)),
    make("td", { class: "number" }, `${one.first} to ${one.last}`), make("td", null, one.why)];
  return make("details", null, make("summary", null, `${count(HELD.length, "tensor")} as a table`),
    table([["layer"], ["kernel"], ["type"], ["rows", 1], ["bytes", 1], ["offset", 1], ["steps", 1], ["why"]], HELD.map((one) => make("tr", null, ...cells(one)))));
}

function eachTable() {
  const most = Math.max(...EACH.map((one) => one.live), 1);
  const body = EACH.map((one) => make("tr", { class: one.live === most ? "peak" : false }, make("td", { class: "number" }, String(one.step)), make("td", { class: "layer" }, name(one.layer)),
    make("td", null, one.kernel), make("td", { class: "number" }, one.rows ? String(one.rows) : "all"), make("td", { class: "number" }, exact(one.live)), make("td", null, meter(one.live / most)),
    make("td", { class: "number" }, exact(one.weights)), make("td", { class: "number" }, exact(one.macs))));
  return table([["step", 1], ["layer"], ["kernel"], ["rows a run", 1], ["live bytes", 1], [""], ["weights", 1], ["multiply-accumulates", 1]], body);
}

function causes() {
  return make("ul", { class: "causes" }, ...data.causes.map((one) => make("li", null, make("span", { class: "bytes" }, size(one.bytes)), name(one.layer), `: ${one.why}`, make("div", { class: "soft" }, one.help))));
}

function layers() {
  return table([["layer"], ["kernel"], ["bytes", 1]], data.layers.map((one) => make("tr", null, make("td", { class: "layer" }, name(one.layer)), make("td", null, one.kernel), make("td", { class: "number" }, exact(one.bytes)))));
}

const state = data.fits === null ? "" : data.fits ? "fits" : "fits-not";
document.body.append(make("main", null,
  make("p", { class: "kicker" }, "Hexane · memory"), make("h1", null, data.model),
  make("p", { class: `answer verdict-line ${state}` }, make("b", null, data.verdict)), figures(),
  ...section("Causes", "what takes the memory, and what would help", causes()),
  ...section("Ways to run the network that no other way beats", "hollow: with slow memory; stripes compute some columns more than once", make("div", { class: "chart" }, pareto()), ways()),
  ...section("The arena", "row by row: which tensor lies where, from which step to which", arena(), heldTable()),
  ...section("Latency", "estimates: nothing ran on a device", latency()),
  ...section("Largest layers", "bytes of the arena read and written as whole tensors", layers()),
  ...section("Every step", "the streamed program; the fullest is marked", eachTable()),
  make("footer", null, `One file, no network. Arena and ${beside} are counted exactly${onHost ? " for one thread of this CPU" : ""}; code and latency are estimates.`)));
