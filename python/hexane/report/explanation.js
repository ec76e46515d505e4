
// Makes the page of `hexane explain` from its data. The state of the filters is the part of the address after "#".

// ---- the program ----

const word = (number) => data.words[number];
const layers = data.layers.map(([name, kind, slots, engine, segment, partition, reads, makes, operations, loaded, stored, weights, onChip, sources, own], number) => ({
  number, name: word(name), kind: word(kind), slots: slots.map(word), engine, segment, partition, reads, makes, operations, loaded, stored, weights, onChip, sources, own,
  moved: loaded + stored + weights, text: [`layer ${number}`, word(name), word(kind), ...slots.map(word)].join(" ").toLowerCase(),
}));
const tensors = data.tensors.map(([name, type, producer, readers, kept, allocation, notChained, rows, rowBytes, stride, turns, stays], number) => ({
  number, name: word(name), type: word(type), producer, readers, kept, allocation: word(allocation), notChained: word(notChained), rows, rowBytes, stride, turns, stays,
}));
const decisions = data.decisions.map((texts, number) => {
  const [stage, node, verdict, reason, source] = texts.map(word);
  return { number, stage, node, verdict, reason, source, phase: data.phases[stage], text: texts.map(word).join(" ").toLowerCase() };
});
const ops = data.ops.map(([typed, verdict, reason, source, sources], number) => ({ number, typed: word(typed), verdict: word(verdict), reason: word(reason), source: word(source), sources }));
const opsOf = grouped(ops, (op) => op.sources);
const stagesOf = new Map(Object.entries(data.decided).map(([source, list]) => [Number(source), new Set(list.map((i) => decisions[i].stage))]));
const sourcesOf = grouped(Object.entries(data.decided).flatMap(([source, list]) => list.map((i) => ({ source: Number(source), i }))), ({ i }) => [i]);
const ownerOf = new Map(layers.flatMap((layer) => layer.own.map((i) => [i, layer.number])));
const ownedStages = layers.map((layer) => new Set(layer.own.map((i) => decisions[i].stage)));
const stages = [...new Set(decisions.map((d) => d.stage))];
const engines = LANES.filter((engine) => layers.some((layer) => layer.engine === engine));
const { limit, capacity } = data.partitions[0];
const state = { q: "", engine: new Set(), segment: "", partition: "", stage: "", layer: null };

function grouped(items, keys) {
  const found = new Map();
  for (const item of items) for (const key of keys(item)) found.has(key) ? found.get(key).push(item) : found.set(key, [item]);
  return found;
}

const sum = (list, name) => list.reduce((total, one) => total + one[name], 0);
const owner = (tensor) => (tensor.producer === null ? tensor.readers[0] : tensor.producer);
const label = (tensor) => `${tensor.number}: ${tensor.name.split(" at ").slice(1).join(" at ") || tensor.name}`;
const kindOf = (allocation) => allocation.split(",")[0].replace(" ", "-");

const rectangles = tensors.flatMap((tensor) => tensor.stays.flatMap(([, bytes, places, cost]) => places.map(([first, last, offset]) => ({
  tensor: tensor.number, owner: owner(tensor), label: label(tensor), first, last, offset, bytes, kind: kindOf(tensor.allocation), spilled: cost >= 0,
})))).sort((a, b) => a.first - b.first);
const edges = tensors.flatMap((tensor) => (tensor.producer === null ? [] : tensor.readers.map((reader) => [tensor.producer, reader])));
const timeline = new Timeline(layers, edges, rectangles, limit, capacity, (layer) => choose(layer === state.layer ? null : layer));

// ---- filters ----

/** True if a layer passes all filters but the text. */
function inScope(layer) {
  const staged = !state.stage || ownedStages[layer.number].has(state.stage) || layer.sources.some((source) => stagesOf.get(source)?.has(state.stage));
  return staged && (!state.engine.size || state.engine.has(layer.engine)) && (state.segment === "" || layer.segment === Number(state.segment)) && (state.partition === "" || layer.partition === Number(state.partition));
}

const shownLayers = () => layers.filter((layer) => inScope(layer) && layer.text.includes(state.q.toLowerCase()));

function shownDecisions() {
  const query = state.q.toLowerCase();
  let about = () => true;
  if (state.engine.size || state.segment !== "" || state.partition !== "") {
    const left = layers.filter(inScope);
    const own = new Set(left.map((layer) => layer.number));
    const sources = new Set(left.flatMap((layer) => layer.sources));
    about = (d) => (ownerOf.has(d.number) ? own.has(ownerOf.get(d.number)) : (sourcesOf.get(d.number) || []).some(({ source }) => sources.has(source)));
  }
  return decisions.filter((d) => (!state.stage || d.stage === state.stage) && d.text.includes(query) && about(d));
}

function tools() {
  const select = (name, all, options) => options.length < 2 ? null :
    make("select", { id: name, "aria-label": all, onchange: (event) => change({ [name]: event.target.value }) },
      make("option", { value: "" }, all), ...options.map(([value, text]) => make("option", { value }, text)));
  const toggles = engines.map((engine) => make("button", { class: `toggle ${engine}`, type: "button", "data-engine": engine, onclick: () => flip(engine) },
    make("span", { class: "mark", "aria-hidden": "true" }, "\u25a0"), `${engine} ${layers.filter((layer) => layer.engine === engine).length.toLocaleString("en")}`));
  const engineSegments = data.segments.map(([device], i) => [device, i]).filter(([device]) => device === "engine");
  return make("div", { class: "tools" },
    make("input", { id: "q", type: "search", placeholder: "Find a layer, a name, a reason", "aria-label": "Find a layer, a name, a reason", oninput: (event) => change({ q: event.target.value }) }),
    make("div", { class: "toggles" }, ...toggles),
    select("segment", "All segments", engineSegments.map(([, i]) => [i, `segment ${i}`])),
    select("partition", "All partitions", data.partitions.map((p, i) => [i, `partition ${i}: ${p.end - p.first > 1 ? `layers ${p.first} to ${p.end - 1}` : `layer ${p.first}`}`])),
    select("stage", "All stages", stages.map((stage) => [stage, `${data.phases[stage]}: ${stage}`])),
    make("button", { id: "clear", class: "link", type: "button", onclick: () => change({ q: "", engine: new Set(), segment: "", partition: "", stage: "" }) }, "clear filters"));
}

function flip(engine) {
  const chosen = new Set(state.engine);
  if (!chosen.delete(engine)) chosen.add(engine);
  change({ engine: chosen });
}

// ---- the head ----

function head() {
  const peak = layers.reduce((most, layer) => (layer.onChip > most.onChip ? layer : most));
  const { loaded, stored, spilled, weights } = data.traffic;
  const moved = loaded + stored + spilled + weights;
  const operations = sum(layers, "operations");
  const used = data.segments.filter(([device]) => device === "engine").length;
  const hosts = data.segments.length - used;
  return make("header", {},
    make("p", { class: "kicker" }, "Hexane \u00b7 what compiling made of it, and why"),
    make("h1", { class: "name" }, data.model),
    make("p", { class: "answer" }, make("b", {}, `${count(layers.length, "layer")} in ${count(data.partitions.length, "partition")}`),
      ` on ${data.title}, in ${data.schedule === "optimal" ? "the order of the lowest peak" : "the list scheduler\u2019s order"}; ${count(used, "segment")} of the engine${hosts ? `, ${hosts} of the CPU` : ""}.`),
    make("div", { class: "tiles" },
      tile("Peak on chip", size(peak.onChip), `${percent(peak.onChip, capacity)} of ${size(capacity)}, at layer ${peak.number}; the limit of a partition is ${size(limit)}`,
        [["area-fill", peak.onChip, "in use"], ["rest", Math.max(capacity - peak.onChip, 0), "free"]], () => choose(peak.number)),
      tile("Main memory", size(moved), [["loaded", loaded], ["stored", stored], ["spills", spilled], ["weights", weights]].filter(([, n]) => n).map(([name, n]) => `${size(n)} ${name}`).join(", "),
        [["loaded", loaded, "tensors loaded"], ["stored", stored, "tensors stored"], ["spills", spilled, "more by spills"], ["weights", weights, "weights"]]),
      tile("Operations", short(operations), `${(operations / Math.max(moved, 1)).toFixed(1)} for each byte moved; no source says how long either takes`,
        engines.map((engine) => [engine, sum(layers.filter((layer) => layer.engine === engine), "operations"), engine])),
      tile("Layers", layers.length.toLocaleString("en"), kinds(), engines.map((engine) => [engine, layers.filter((layer) => layer.engine === engine).length, engine]))),
    make("details", { class: "more" }, make("summary", {}, "What dominates, and everything else in words"), ...data.lines.map((line) => make("p", { class: "soft" }, line))));
}

function tile(name, value, words, parts, act) {
  const bars = parts.filter(([, part]) => part).map(([kind, part, title]) => {
    const bar = make("i", { class: kind, title: `${title}: ${part.toLocaleString("en")}` });
    bar.style.flex = String(part);
    return bar;
  });
  const inside = [make("span", { class: "soft" }, name), make("b", {}, value), make("div", { class: "bar" }, ...bars), make("span", { class: "soft small" }, words)];
  return act ? make("button", { class: "tile", type: "button", onclick: act }, ...inside) : make("div", { class: "tile" }, ...inside);
}

function kinds() {
  const found = [...grouped(layers, (layer) => [layer.kind])].sort((a, b) => b[1].length - a[1].length);
  const more = found.length > 4 ? `, ${count(found.length - 4, "more kind")}` : "";
  return found.slice(0, 4).map(([kind, list]) => `${list.length.toLocaleString("en")} ${kind}`).join(", ") + more;
}

const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`;

function short(number) {
  const units = ["", " thousand", " million", " billion", " trillion"];
  let unit = 0;
  while (number >= 1000 && unit < 4) [number, unit] = [number / 1000, unit + 1];
  return `${unit ? number.toPrecision(3) : number}${units[unit]}`;
}

// ---- the story of a layer ----

function story(layer) {
  const lines = [
    ...layer.sources.flatMap((source) => opsOf.get(source) || []).flatMap((op) => [["model", `op${op.number}: ${op.typed}`, ""], ["retarget", `${op.verdict}: ${op.reason}`, op.source]]),
    ...layer.sources.flatMap((source) => data.decided[source] || []).map((i) => told(decisions[i])),
    ["layer", `${layer.kind}${layer.slots.length ? ", finishes with " + layer.slots.join("; ") : ", no slots"}`, ""],
    ...layer.own.map((i) => told(decisions[i])),
    ["partition", partitionText(data.partitions[layer.partition], layer.partition), ""],
    ["main memory", `${size(layer.loaded)} loaded, ${size(layer.stored)} stored, ${size(layer.weights)} of weights; ${layer.operations.toLocaleString("en")} operations`, ""],
  ];
  const phases = ["model", "retarget", "simplify", "segment", "lowering", "fusion", "legalisation", "layer", "order", "partition", "co-issue", "weights", "main memory", "this CPU"];
  const unique = [...new Map(lines.map((line) => [line.join("\n"), line])).values()].sort((a, b) => phases.indexOf(a[0]) - phases.indexOf(b[0]));
  const comesIn = layer.reads.map((i) => tensors[i]);
  return make("article", { class: `story ${layer.engine}` },
    make("header", {}, make("b", { class: "number" }, `layer ${layer.number}`), make("span", { class: "name" }, layer.name),
      make("span", { class: `badge ${layer.engine}` }, layer.engine), make("button", { class: "link", type: "button", onclick: () => choose(null) }, "close")),
    make("div", { class: "columns" },
      make("div", {}, make("h3", {}, "What happened, in order"), make("dl", { class: "phases" }, ...unique.slice(0, FIRST).flatMap(([phase, text, source], i, all) => [
        make("dt", {}, i && all[i - 1][0] === phase ? "" : phase), make("dd", {}, text, source ? make("span", { class: "source" }, source) : null)])),
        unique.length > FIRST ? make("p", { class: "soft" }, `and ${count(unique.length - FIRST, "line")} more: its place in the model is that of many ops`) : null),
      make("div", {}, make("h3", {}, "Tensors"), ...layer.makes.map((i) => tensorCard(tensors[i], "makes")), ...comesIn.map((tensor) => tensorCard(tensor, "reads")))));
}

// As story.py says decisions on arithmetic.
const ARITHMETICS = { engine: "computed in the engine's arithmetic", ieee: "computed in IEEE arithmetic" };

function arithmetic(reason) {
  const [status, ...rule] = reason.split(": ");
  if (status === "open") return `how the chip does it is not known; computed here as: ${rule.join(": ")}`;
  return `${rule.join(": ")} (${status === "exact" ? "equal to a chip's results to the bit" : status})`;
}

const reasoned = (d) => (d.stage === "numerics" ? `${ARITHMETICS[d.verdict]}: ${arithmetic(d.reason)}` : `${d.verdict}: ${d.reason}`);
const told = (d) => [d.phase, `${d.node}: ${reasoned(d)}`, ownerOf.has(d.number) ? d.source : `${d.stage}; ${d.source}`];

function partitionText(p, i) {
  const over = p.peak > p.limit ? ", one layer that exceeds the limit alone" : "";
  return `partition ${i}: layers ${p.first} to ${p.end - 1}; at most ${size(p.peak)} in use at once (a partition ends before ${size(p.limit)})${over}, ${size(p.height)} after packing (the chip has ${size(p.capacity)})`;
}

function tensorCard(tensor, role) {
  const link = (layer) => make("button", { class: "link", type: "button", onclick: () => choose(layer), title: layers[layer].name }, String(layer));
  const links = (list) => list.slice(0, 20).flatMap((layer) => [link(layer)]).concat(list.length > 20 ? [`and ${list.length - 20} more`] : []);
  const places = tensor.stays.map(([partition, bytes, list, cost]) => cost < 0
    ? `${list[0][2].toLocaleString("en")} in partition ${partition}, from layer ${list[0][0]} to ${list[0][1]}: ${bytes.toLocaleString("en")} bytes`
    : `spilled in partition ${partition}: a tile of ${bytes.toLocaleString("en")} bytes at ${list.map(([layer, , offset]) => `${offset.toLocaleString("en")} (layer ${layer})`).join(", ")}; ${size(cost)} of traffic more`);
  const rows = [
    ["from", tensor.producer === null ? ["main memory"] : ["layer ", link(tensor.producer)]],
    ["to", [...(tensor.readers.length ? [tensor.readers.length > 1 ? "layers " : "layer ", ...links(tensor.readers)] : []), tensor.kept ? (tensor.readers.length ? ", and main memory" : "main memory") : ""]],
    ["allocation", [`${tensor.allocation}: ${data.meaning[tensor.allocation]}`]],
    ...places.map((text, i) => [i ? "" : "offset", [text]]),
    ...(tensor.rows ? [["banks", [`${tensor.rows.toLocaleString("en")} rows of ${tensor.rowBytes} bytes, ${tensor.stride} apart: ${tensor.turns === 1 ? "read in 1 access, without bank conflicts" : `bank conflicts turn 1 access into ${tensor.turns}`}`]]] : []),
    ["chain", [tensor.notChained ? `not chained: ${tensor.notChained}` : "chained"]],
  ];
  return make("div", { class: `tensor ${kindOf(tensor.allocation)}` }, make("header", {}, make("span", { class: "soft" }, `${role} tensor ${tensor.number}`), make("span", { class: "mono" }, tensor.type)),
    make("dl", {}, ...rows.flatMap(([name, parts]) => [make("dt", {}, name), make("dd", {}, ...parts)])));
}

// ---- tables ----

/** A table that shows some hundred rows, and more on a click. */
function table(heads, rows, lineOf) {
  const body = make("tbody", {});
  const add = (from, many) => {
    body.append(...rows.slice(from, from + many).map(lineOf));
    const left = rows.length - from - many;
    if (left <= 0) return;
    const more = make("tr", {}, make("td", { colspan: heads.length }, make("button", { class: "link", type: "button", onclick: () => { more.remove(); add(from + many, 5 * FIRST); } }, `Show more: ${count(left, "row")} left`)));
    body.append(more);
  };
  add(0, FIRST);
  const shown = make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...heads.map(([text, right]) => make("th", { scope: "col", class: right ? "right" : "" }, text)))), body);
  return rows.length ? shown : make("p", { class: "empty" }, "Nothing passes these filters.");
}

const right = (number) => make("td", { class: "right mono" }, number ? number.toLocaleString("en") : "\u2013");

function layerTable(shown) {
  const heads = [["layer"], ["kind"], ["where in the model"], ["slots"], ["engine"], ["partition"], ["result"], ["allocation"], ["offset", true], ["bytes", true], ["moved", true], ["operations", true]];
  return table(heads, shown, (layer) => {
    const tensor = layer.makes.length ? tensors[layer.makes[0]] : null;
    const stay = tensor && tensor.stays.find(([partition]) => partition === layer.partition);
    return make("tr", { class: layer.number === state.layer ? "row open" : "row", "data-layer": layer.number, onclick: () => choose(layer.number, true) },
      make("td", {}, make("button", { class: "link", type: "button", "aria-label": `the story of layer ${layer.number}` }, String(layer.number))), make("td", {}, layer.kind),
      make("td", { class: "name" }, layer.name.split(" at ").slice(1).join(" at ")), make("td", { class: "soft" }, layer.slots.map((slot) => slot.replace(/\(.*?mode=(\w+).*\)|\(.*\)/, (_, mode) => (mode ? `(${mode})` : ""))).join(", ")),
      make("td", {}, make("span", { class: `badge ${layer.engine}` }, layer.engine)), make("td", { class: "soft" }, String(layer.partition)),
      make("td", { class: "mono" }, tensor ? tensor.type : ""), make("td", {}, tensor ? make("span", { class: `dot ${kindOf(tensor.allocation)}` }, tensor.allocation) : ""),
      make("td", { class: "right mono" }, stay ? (stay[3] < 0 ? "" : "tile ") + stay[2][0][2].toLocaleString("en") : "\u2013"), right(stay ? stay[1] : 0), right(layer.moved), right(layer.operations));
  });
}

function decisionTable(shown) {
  return table([["phase"], ["stage"], ["node"], ["verdict"], ["reason"], ["source"]], shown, (d) => make("tr", {},
    make("td", { class: "soft" }, d.phase), make("td", { class: "mono" }, d.stage), make("td", { class: "name" }, d.node), make("td", {}, d.verdict), make("td", { class: "reason" }, d.reason), make("td", { class: "soft" }, d.source)));
}

function partitionTable() {
  const heads = [["partition"], ["segment"], ["layers"], ["peak, of the limit"], ["highest offset, of the memory"], ["loaded", true], ["stored", true], ["spills", true], ["weights", true]];
  const gauge = (part, whole) => {
    const bar = make("i", { class: part > whole ? "over" : "area-fill" });
    bar.style.width = `${Math.min((100 * part) / whole, 100)}%`;
    return make("td", {}, make("span", { class: "gauge" }, bar), make("span", { class: "mono" }, `${size(part)}, ${percent(part, whole)}`));
  };
  return table(heads, data.partitions.map((p, i) => ({ ...p, i })), (p) => make("tr", { class: "row", onclick: () => { timeline.look(p.first - 1, p.end + 1); timeline.element.scrollIntoView({ block: "center" }); } },
    make("td", {}, String(p.i)), make("td", { class: "soft" }, String(p.segment)), make("td", {}, p.end - p.first > 1 ? `${p.first} to ${p.end - 1}` : String(p.first)), gauge(p.peak, p.limit), gauge(p.height, p.capacity),
    right(p.loaded), right(p.stored), right(p.spilled), right(p.weights)));
}

function segmentTable() {
  return table([["segment"], ["device"], ["ops", true], ["which"], ["reads of others", true], ["why"]], data.segments.map((s, i) => [i, ...s]), ([i, device, many, which, why, crossing]) => make("tr", {},
    make("td", {}, String(i)), make("td", {}, make("span", { class: `badge ${device}` }, device)), right(many), make("td", { class: "mono" }, which), right(crossing), make("td", {}, why)));
}

const legend = () => make("p", { class: "legend" }, ...[...new Set(rectangles.map((r) => r.kind))].map((kind) => make("span", { class: `dot ${kind}` }, kind.replace("-", " "))),
  rectangles.some((r) => r.spilled) ? make("span", { class: "dot spilled" }, "a tile of a spilled tensor") : null,
  make("span", { class: "key limit" }, "a partition closes here"), make("span", { class: "key capacity" }, "all there is"), make("span", { class: "soft" }, "click a layer or a tensor for all decisions about it"));

// ---- state ----

function draw() {
  const [left, said] = [shownLayers(), shownDecisions()];
  const passing = left.length === layers.length ? null : new Set(left.map((layer) => layer.number));
  timeline.passes = (layer) => passing === null || passing.has(layer);
  timeline.show(state.layer);
  document.getElementById("story").replaceChildren(...(state.layer === null ? [] : [story(layers[state.layer])]));
  document.getElementById("layers").replaceChildren(layerTable(left));
  document.getElementById("decisions").replaceChildren(decisionTable(said));
  const found = (shown, all, name) => (shown === all ? count(all, name) : `${shown.toLocaleString("en")} of ${count(all, name)}`);
  document.getElementById("found").textContent = found(left.length, layers.length, "layer");
  document.getElementById("said").textContent = found(said.length, decisions.length, "decision");
  for (const button of document.querySelectorAll("[data-engine]")) button.setAttribute("aria-pressed", String(state.engine.has(button.dataset.engine)));
  document.getElementById("clear").hidden = !(state.q || state.engine.size || state.segment || state.partition || state.stage);
  for (const name of ["q", "segment", "partition", "stage"]) {
    const field = document.getElementById(name);
    if (field && field.value !== state[name]) field.value = state[name];
  }
}

function choose(layer, scroll = false) {
  change({ layer });
  if (scroll) timeline.element.scrollIntoView({ block: "start" });
}

function change(next) {
  Object.assign(state, next);
  draw();
  const parts = new URLSearchParams();
  for (const name of ["q", "segment", "partition", "stage"]) if (state[name]) parts.set(name, state[name]);
  if (state.engine.size) parts.set("engine", [...state.engine].join(","));
  if (state.layer !== null) parts.set("layer", String(state.layer));
  history.replaceState(null, "", parts.size ? `#${parts}` : location.pathname + location.search);
}

function restore() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (name, end) => (/^\d+$/.test(parts.get(name) || "") && Number(parts.get(name)) < end ? String(Number(parts.get(name))) : "");
  const layer = number("layer", layers.length);
  Object.assign(state, {
    q: parts.get("q") || "", segment: number("segment", data.segments.length), partition: number("partition", data.partitions.length),
    stage: stages.includes(parts.get("stage")) ? parts.get("stage") : "",
    engine: new Set((parts.get("engine") || "").split(",").filter((engine) => engines.includes(engine))), layer: layer === "" ? null : Number(layer),
  });
  draw();
}

document.body.append(make("main", {}, ...[
  head(),
  tools(),
  make("section", {}, make("h2", {}, "Schedule", make("small", {}, "layers from left to right in the order they run")), legend(), make("div", { class: "frame" }, timeline.element), make("div", { id: "story" })),
  make("section", {}, make("h2", {}, "Layers", make("small", { id: "found" })), make("div", { class: "frame", id: "layers" })),
  make("section", {}, make("h2", {}, "Partitions", make("small", {}, "layers whose tensors lie on chip together")), make("div", { class: "frame" }, partitionTable())),
  make("section", {}, make("h2", {}, "Segments", make("small", {}, "parts of the network, each on one device, in the order they run")), make("div", { class: "frame" }, segmentTable())),
  make("section", {}, make("h2", {}, "Decisions", make("small", { id: "said" })), make("div", { class: "frame", id: "decisions" })),
  make("footer", {}, "Made by hexane explain. Everything here comes from the compiled program and the log of its decisions; nothing ran on a chip, and no number here is a time."),
]));
addEventListener("hashchange", restore);
restore();
