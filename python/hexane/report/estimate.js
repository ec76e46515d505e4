// Makes the page of `hexane estimate --html` from its data.

const GOOD = data.chips.filter((chip) => !chip.error);
const PARTS = ["dispatch", "copies", "host", "compute", "weights", "activations"];
const SAID = { activations: "tensors in memory", host: "CPU" };
const said = (part) => SAID[part] ?? part;
const [WIDTH, LINE, LEFT, RIGHT] = [1240, 24, 150, 60];

const time = (us) => (us >= 1e6 ? `${(us / 1e6).toPrecision(3)} s` : us >= 1000 ? `${(us / 1000).toPrecision(3)} ms` : `${us >= 100 ? Math.round(us) : us.toPrecision(2)} us`);
const number = (text) => make("td", { class: "number" }, text);

/** Splits the microseconds by purpose. Layers overlap with layers that only move data, so their sum is scaled to the engine's time. */
function parts(chip) {
  const found = { dispatch: chip.floor_us, copies: chip.copies_us, host: chip.host_us, compute: 0, weights: 0, activations: 0 };
  const all = chip.layers.reduce((sum, layer) => sum + layer[3], 0) || 1;
  for (const layer of chip.layers) if (layer[3]) found[data.words[layer[4]]] += (layer[3] * chip.engine_us) / all;
  return found;
}

function bar(chip) {
  const found = parts(chip);
  return make("span", { class: "parts" }, ...PARTS.filter((part) => found[part] > 0).map((part) => {
    const piece = make("i", { class: part, title: `${said(part)}: ${time(found[part])}` });
    piece.style.flex = String(found[part]);
    return piece;
  }));
}

// ---- chips ----

function chart() {
  const [least, most] = [Math.min(...GOOD.map((chip) => chip.p10_us)) / 1.1, Math.max(...GOOD.map((chip) => chip.p90_us)) * 1.1];
  const x = (us) => LEFT + (Math.log(us / least) / Math.log(most / least)) * (WIDTH - LEFT - RIGHT);
  const height = GOOD.length * LINE + 40;
  const marks = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power++) {
    for (const step of [1, 2, 5]) if (step * 10 ** power >= least && step * 10 ** power <= most) marks.push(step * 10 ** power);
  }
  return draw("svg", { width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Latency of each chip with its interval" },
    ...marks.flatMap((us) => [draw("line", { x1: x(us), x2: x(us), y1: 8, y2: height - 24, class: "axis" }), draw("text", { x: x(us), y: height - 8, "text-anchor": "middle" }, time(us))]),
    ...GOOD.flatMap((chip, i) => {
      const y = 8 + LINE * (i + 0.5);
      const far = chip.extrapolated ? " far" : "";
      return [draw("text", { x: LEFT - 10, y: y + 4, "text-anchor": "end", class: "chip" }, chip.target),
        draw("line", { x1: x(chip.p10_us), x2: x(chip.p90_us), y1: y, y2: y, class: `span${far}` }),
        draw("circle", { cx: x(chip.latency_us), cy: y, r: 5, class: `point${far}` },
          draw("title", null, `${chip.target}: ${time(chip.latency_us)} (${time(chip.p10_us)} to ${time(chip.p90_us)})`))];
    }));
}

function chips() {
  const heads = [["chip"], ["latency", 1], ["p10", 1], ["p90", 1], ["calls", 1], ["dispatch", 1], ["copies", 1], ["engine", 1], ["CPU", 1], ["goes to"], ["mostly"], ["rates of"]];
  return table(heads, data.chips.map((chip) => (chip.error
    ? make("tr", null, make("td", null, chip.target), make("td", { colspan: heads.length - 1, class: "soft" }, chip.error))
    : make("tr", null, make("td", null, chip.target), ...[chip.latency_us, chip.p10_us, chip.p90_us].map((us) => number(time(us))), number(exact(chip.submissions)),
      ...[chip.floor_us, chip.copies_us, chip.engine_us, chip.host_us].map((us) => number(us ? time(us) : "0")), make("td", null, bar(chip)),
      make("td", null, said(chip.dominant)), make("td", null, chip.measured_on + (chip.extrapolated ? " (extrapolated)" : ""))))));
}

const legend = () => make("p", { class: "legend soft" }, ...PARTS.flatMap((part) => [make("i", { class: part }), said(part)]));

// ---- layers of a chip ----

function layers(chip, all) {
  const most = Math.max(...chip.layers.map((layer) => layer[3]), 1e-9);
  const shown = all ? chip.layers : chip.layers.slice(0, FIRST);
  const rows = shown.map(([index, called, kind, us, bound, used, operations, weights, traffic]) => make("tr", null,
    number(String(index)), make("td", { class: "layer" }, name(data.words[called])), make("td", null, data.words[kind]), number(us.toFixed(1)), make("td", null, meter(us / most)),
    make("td", null, said(data.words[bound]) || "\u2013"), number(`${Math.round(100 * used)} %`), number(exact(operations)), number(weights ? size(weights) : "\u2013"), number(traffic ? size(traffic) : "\u2013")));
  const more = chip.layers.length - shown.length;
  return make("div", null,
    make("ul", { class: "remarks" }, ...chip.remarks.map((line) => make("li", null, line))),
    make("p", { class: "soft" }, `Weights ${size(chip.memory.weights)}, inputs and outputs ${size(chip.memory.surfaces)}, between layers ${size(chip.memory.spilled)} in main memory; at most ${size(chip.memory.on_chip)} on chip.`),
    table([["layer", 1], ["name"], ["kind"], ["us", 1], [""], ["bound by"], ["busy", 1], ["operations", 1], ["weights", 1], ["traffic", 1]], rows),
    more > 0 ? make("button", { class: "link", onclick: () => show(chip, true) }, `${count(more, "more layer")}`) : null);
}

const place = make("div", { id: "layers" });

function show(chip, all = false) {
  place.replaceChildren(layers(chip, all));
}

function chooser() {
  return make("select", { class: "choose", "aria-label": "chip", onchange: (event) => show(GOOD[Number(event.target.value)]) },
    ...GOOD.map((chip, i) => make("option", { value: String(i) }, chip.target)));
}

const answer = () => (GOOD.length === 1
  ? `${time(GOOD[0].latency_us)} on ${GOOD[0].target}, between ${time(GOOD[0].p10_us)} and ${time(GOOD[0].p90_us)} in eight of ten cases`
  : `${time(Math.min(...GOOD.map((chip) => chip.latency_us)))} to ${time(Math.max(...GOOD.map((chip) => chip.latency_us)))} on ${count(GOOD.length, "chip")}`);

const main = make("main", null, make("p", { class: "kicker" }, "Hexane \u00b7 latency"), make("h1", null, data.model),
  make("p", { class: "answer verdict-line" }, make("b", null, GOOD.length ? answer() : "no estimate on any of these chips")));
if (GOOD.length) main.append(...section("Latency", "of a call; lines from p10 to p90; dashed: no latency of the chip was published", make("div", { class: "chart" }, chart())));
main.append(...section("Chips", "where the time goes", chips(), legend()));
if (GOOD.length) {
  const [title, ...rest] = section("Layers", "in order, and what limits each", place);
  title.append(chooser());
  main.append(title, ...rest);
  show(GOOD[0]);
}
main.append(make("footer", null, "One file, no network. Latencies of chips are estimates: nothing ran on a chip. docs/cost.md has the formula."));
document.body.append(main);
