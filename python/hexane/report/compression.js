// Makes the page of `hexane compress --html` from its data.

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [1240, 420, 84, 40, 16, 44];
const MANY = 4; // layers that a remark names
const known = (value) => value !== null && value !== undefined;
const short = (value) => (!known(value) ? "not finite" : value === 0 ? "0" : value < 1e-3 ? Number(value.toPrecision(2)).toExponential() : String(Number(value.toPrecision(2))));
const number = (text, attributes) => make("td", { class: "number", ...attributes }, text);
const sum = (field) => data.layers.reduce((total, layer) => total + layer[field], 0);
const [BEFORE, AFTER] = [sum("bytes_before"), sum("bytes_after")];

/** Powers of ten between two numbers, at most eight; if there are none, the two numbers. */
function decades(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.floor(Math.log10(high)); power++) found.push(10 ** power);
  const every = Math.ceil(found.length / 8) || 1;
  return found.length > 1 ? found.filter((_, i) => i % every === 0) : [low, high];
}

function chart() {
  const drawn = (points) => points.filter((point) => point[2] > 0);
  const [alike, mixed] = [drawn(data.alike), drawn(data.mixed)];
  const written = known(data.error) && data.error > 0 ? [["as written", AFTER, data.error]] : [];
  const errors = [...alike, ...mixed, ...written].map((point) => point[2]);
  if (!errors.length) return make("p", { class: "soft" }, "no encoding changes an output");
  const limits = data.limit ? [data.limit] : [];
  const [low, high] = [Math.min(...errors, ...limits) / 1.5, Math.max(...errors, ...limits) * 1.5];
  const most = Math.max(BEFORE, AFTER) * 1.06;
  const x = (bytes) => LEFT + (bytes / most) * (WIDTH - LEFT - RIGHT);
  const y = (error) => TOP + (Math.log(high / error) / Math.log(high / low)) * (HEIGHT - TOP - BOTTOM);
  const title = ([encoding, bytes, error]) => draw("title", null, `${encoding || "mixture"}: ${size(bytes)}, error ${short(error)}`);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => part * BEFORE);
  // A label goes where no earlier one is: right of its point, or below.
  const taken = [];
  const label = (point) => {
    const wide = 7 * point[0].length;
    const right = x(point[1]) + wide + 10 < WIDTH;
    const left = right ? x(point[1]) + 8 : x(point[1]) - wide - 8;
    let at = y(point[2]) + 4;
    while (taken.some((other) => Math.abs(other[1] - at) < 12 && left < other[0] + other[2] && other[0] < left + wide)) at += 12;
    taken.push([left, at, wide]);
    return draw("text", { x: left, y: at, class: "alike-label" }, point[0]);
  };
  return make("div", { class: "chart" }, draw("svg", { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Error of the outputs over bytes of the weights" },
    ...decades(low, high).flatMap((error) => [draw("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(error), y2: y(error), class: "axis" }), draw("text", { x: LEFT - 8, y: y(error) + 4, "text-anchor": "end" }, short(error))]),
    ...marks.flatMap((bytes) => [draw("line", { x1: x(bytes), x2: x(bytes), y1: TOP, y2: HEIGHT - BOTTOM, class: "axis" }), draw("text", { x: x(bytes), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, size(Math.round(bytes)) + (bytes === BEFORE ? ", whole" : ""))]),
    ...limits.flatMap((error) => [draw("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(error), y2: y(error), class: "tolerance" }), draw("text", { x: WIDTH - RIGHT, y: y(error) - 4, "text-anchor": "end", class: "tolerance-label" }, `tolerance ${short(error)}`)]),
    draw("polyline", { class: "mixed", points: mixed.map((point) => `${x(point[1]).toFixed(1)},${y(point[2]).toFixed(1)}`).join(" ") }),
    ...mixed.map((point) => draw("circle", { class: "mixed-dot", cx: x(point[1]), cy: y(point[2]), r: 3 }, title(point))),
    ...alike.map((point) => draw("circle", { class: "alike", cx: x(point[1]), cy: y(point[2]), r: 4.5 }, title(point))),
    ...alike.map(label),
    ...written.map((point) => draw("circle", { class: "written", cx: x(point[1]), cy: y(point[2]), r: 7 }, title(point)))));
}

function layers() {
  const most = Math.max(...data.layers.map((layer) => layer.bytes_before));
  return table([["layer"], ["encoding"], ["before", 1], ["after", 1], [""], ["error alone", 1], [data.target]], data.layers.map((layer) => make("tr", null,
    make("td", { class: "layer" }, name(layer.layer)), make("td", null, layer.encoding === "none" ? "whole" : layer.encoding), number(size(layer.bytes_before)), number(size(layer.bytes_after)),
    make("td", null, meter(layer.bytes_after / most)), number(known(layer.error) ? short(layer.error) : "–"), make("td", { class: layer.streams ? "streams" : "soft" }, layer.target_does))));
}

function choices() {
  const encodings = [...new Set(data.layers.flatMap((layer) => layer.choices.map((choice) => choice[0])))].filter((encoding) => encoding !== "none");
  return table([["layer"], ...encodings.map((encoding) => [encoding, 1])], data.layers.map((layer) => make("tr", null, make("td", { class: "layer" }, name(layer.layer)), ...encodings.map((encoding) => {
    const choice = layer.choices.find((one) => one[0] === encoding);
    return choice ? number(short(choice[2]), { class: layer.encoding === encoding ? "number chosen" : "number", title: size(choice[1]) }) : number("–");
  }))));
}

function figures() {
  const streamed = data.layers.filter((layer) => layer.streams).length;
  const found = [figure(size(BEFORE), "of weights before, in fp16"), figure(size(AFTER), `after, ${Math.round((100 * AFTER) / BEFORE)} %`)];
  found.push(figure(known(data.error) ? short(data.error) : "not finite", "largest relative error of an output"));
  found.push(figure(`${streamed} of ${data.layers.length}`, "weights are streamed"));
  return make("div", { class: "figures" }, ...found);
}

const named = (list) => list.slice(0, MANY).join(", ") + (list.length > MANY ? ` and ${list.length - MANY} more` : "");
const main = make("main", null, make("p", { class: "kicker" }, "Hexane · compressed weights"), make("h1", null, data.model),
  make("p", { class: "answer verdict-line" }, make("b", null, `${size(BEFORE)} → ${size(AFTER)} for ${data.target}`), `, measured on ${data.measured_on}`), figures());
const legend = make("p", { class: "legend soft" }, make("i", { class: "of-written" }), "as written, in the target's program", make("i", { class: "of-alike" }), "all layers in one encoding, where they may have it", make("i", { class: "of-mixed" }), "mixtures");
main.append(...section("Error over bytes", "of the outputs; of one encoding and mixtures on this CPU", chart(), legend));
main.append(...section("Layers", "each error is of the outputs, with this layer alone compressed", layers()));
if (data.remarks.length) main.append(...section("In the file", "", make("ul", { class: "remarks" }, ...data.remarks.map(([words, list]) => make("li", null, name(named(list)), `: ${words}`)))));
main.append(...section("Choices", "the outputs' error with the layer alone in each encoding; shaded: what it became", choices()));
main.append(make("footer", null, "One file, no network. docs/compression.md says what the encodings are."));
document.body.append(main);
