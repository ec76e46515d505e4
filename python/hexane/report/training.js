// Makes the page of `hexane dashboard --html` from its data.

const [WIDTH, LEFT, RIGHT, TOP, BOTTOM] = [1240, 76, 24, 12, 28];
const finite = (value) => value !== null && value !== undefined;
const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3 ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4))));
const number = (text) => make("td", { class: "number" }, text);

function duration(seconds) {
  const whole = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${two(whole % 60)} s` : `${exact(Math.floor(whole / 3600))} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

const time = (ms) => (ms < 1000 ? `${Number(ms.toPrecision(3))} ms` : `${Number((ms / 1000).toPrecision(3))} s`);

/** About `wanted` round numbers between two numbers. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) found.push(i * step);
  return found;
}

/** Splits points into lists of finite neighbours. */
function stretches(points) {
  const found = [[]];
  for (const point of points) {
    if (finite(point[3])) found[found.length - 1].push(point);
    else if (found[found.length - 1].length) found.push([]);
  }
  return found.filter((stretch) => stretch.length);
}

/** points: first and last step, least, mean and greatest value; held: evaluations, as pairs of step and value. */
function curve(label, points, held, height) {
  const known = points.filter((point) => finite(point[3]));
  if (!known.length) return make("p", { class: "soft" }, "no number is finite");
  const values = [...known.flatMap((point) => [point[2], point[4]]), ...held.map((pair) => pair[1])];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const [first, last] = [points[0][0], Math.max(points[points.length - 1][1], points[0][0] + 1, ...held.map((pair) => pair[0]))];
  const x = (step) => LEFT + ((step - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (height - TOP - BOTTOM);
  const at = (step, value) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`;
  const middle = (point) => (point[0] + point[1]) / 2;
  return make("div", { class: "chart" }, draw("svg", { width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
    ...ticks(low, high, height > 200 ? 6 : 3).flatMap((value) => [draw("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "axis" }), draw("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, short(value))]),
    ...ticks(first, last, 10).filter(Number.isInteger).map((step) => draw("text", { x: x(step), y: height - 8, "text-anchor": "middle" }, exact(step))),
    ...stretches(points).flatMap((stretch) => [
      draw("polygon", { class: "low-high", points: [...stretch.map((p) => at(middle(p), p[2])), ...[...stretch].reverse().map((p) => at(middle(p), p[4]))].join(" ") }),
      stretch.length > 1 ? draw("polyline", { class: "mean", points: stretch.map((p) => at(middle(p), p[3])).join(" ") }) : draw("circle", { class: "mean-dot", cx: x(middle(stretch[0])), cy: y(stretch[0][3]), r: 2.5 })]),
    held.length ? draw("polyline", { class: "held-line", points: held.map((pair) => at(...pair)).join(" ") }) : null,
    ...held.map((pair) => draw("circle", { class: "held-dot", cx: x(pair[0]), cy: y(pair[1]), r: 3.5 }, draw("title", null, `step ${exact(pair[0])}: ${short(pair[1])}`)))));
}

function figures() {
  const found = [];
  const add = (value, text, words) => { if (finite(value)) found.push(figure(text(value), words)); };
  add(data.loss, short, "last loss");
  add(data.best, (best) => short(best.loss), data.best && `best loss, at step ${exact(data.best.step)}`);
  add(data.lr, short, "learning rate");
  add(data.norm, short, "norm of gradients");
  add(data.median_ms, time, finite(data.ms) ? `a step, median; last ${time(data.ms)}` : "a step, median");
  add(data.tokens_per_second, (rate) => exact(Math.round(rate)), "tokens a second");
  add(data.tokens, exact, "tokens");
  add(data.tflops, (rate) => (rate >= 0.1 ? `${short(rate)} TFLOP/s` : `${short(1e3 * rate)} GFLOP/s`), finite(data.of_peak) ? `of products; the engine at ${short(100 * data.of_peak)} % of its peak` : "of products");
  for (const [part, drawn] of Object.entries(data.milliwatts)) add(drawn, (mw) => `${(mw / 1e3).toFixed(2)} W`, `drawn by the ${part}`);
  add(data.memory, size, "memory at most");
  add(data.compiles_left, exact, "compiles left to the process");
  if (data.steps > data.step) add(data.seconds_left, duration, `left, for ${count(data.steps - data.step, "step")}`);
  if (data.not_finite) add(data.not_finite, exact, data.not_finite === 1 ? "step is not finite" : "steps are not finite");
  return make("div", { class: "figures" }, ...found);
}

/** Rows of lanes, the longest first. */
function lanes() {
  const known = Object.entries(data.lanes).sort((one, other) => other[1] - one[1]);
  return table([["lane", 0], ["a step", 1]], known.map(([lane, ms]) => make("tr", null, make("td", null, lane), number(time(ms)))));
}

function evaluations() {
  const names = [...new Set(data.evaluations.flatMap((one) => Object.keys(one)))].filter((key) => key !== "step");
  const rows = [...data.evaluations].reverse().map((one) => make("tr", null, number(exact(one.step)), ...names.map((key) => number(finite(one[key]) ? short(one[key]) : "\u2013"))));
  return table([["step", 1], ...names.map((key) => [key, 1])], rows);
}

function samples() {
  const shown = (one) => (one.text === null ? make("p", { class: "soft" }, "none: logits were not finite") : make("pre", { class: "sample" }, one.text));
  return [...data.samples].reverse().map((one) => make("div", null, make("p", { class: "soft sample-head" }, `step ${exact(one.step)}`), shown(one)));
}

const held = data.evaluations.filter((one) => finite(one.loss)).map((one) => [one.step, one.loss]);
const done = data.steps ? `${exact(data.step)} of ${count(data.steps, "step")}` : count(data.step, "step");
const main = make("main", null, make("p", { class: "kicker" }, "Hexane \u00b7 training"), make("h1", null, data.run),
  make("p", { class: "answer verdict-line" }, make("b", null, data.step ? `${done} done` : "no step is done yet")));
if (data.step) {
  const legend = make("p", { class: "legend soft" }, make("i", { class: "of-steps" }), "training", ...(held.length ? [make("i", { class: "of-evaluations" }), "evaluation"] : []));
  main.append(figures(), ...section("Loss", "mean of neighbouring steps; shaded: from the least to the greatest", curve("Loss", data.series.loss, held, 360), legend));
  for (const [key, title] of [["norm", "Norm of gradients"], ["lr", "Learning rate"], ["ms", "Milliseconds of a step"]]) main.append(...section(title, "", curve(title, data.series[key], [], 150)));
}
if (Object.keys(data.lanes).length) main.append(...section("Lanes", "mean milliseconds of the last steps; engine and other ranks may run while this CPU does", lanes()));
if (data.samples.length) main.append(...section("Samples", "the last one first", ...samples()));
if (data.evaluations.length) main.append(...section("Evaluations", "the last one first", evaluations()));
main.append(make("footer", null, "One file, no network. It shows the run as it was when the page was written."));
document.body.append(main);
