// Makes the page of `hexane check` from its data. The state of the filters is the part of the address after "#", so
// that a view can be linked to.

const MARKS = { native: "\u2713", decomposed: "\u2248", "made to fit": "\u25a5", oversize: "\u25b2", host: "\u25cb", rejected: "\u2715" };
/** The class of a kind, without spaces. */
const style = (kind) => kind.replaceAll(" ", "-");
const badge = (kind) =>
  make("span", { class: `badge ${style(data.kinds[kind])}`, title: data.kinds[kind] },
    make("span", { "aria-hidden": "true" }, MARKS[data.kinds[kind]]), make("span", { class: "word" }, data.kinds[kind]));

// ---- the state of the view ----

const nodes = data.nodes.map(([op, type, pattern, where], number) => ({
  number, op: data.ops[op], type: data.types[type], pattern, where, text: `${data.ops[op]} ${where}`.toLowerCase(),
}));
const columns = columnsOf(data.chips.map((_, i) => i));
const state = { q: "", op: "", chip: "", verdicts: new Set(), order: false, open: null };

/** Chips that agree about what becomes of every op, and where the network runs, share a column. */
function columnsOf(chips) {
  const found = new Map();
  for (const chip of chips) {
    const group = data.chips[chip].group;
    const key = data.chips[chip].verdict + data.patterns.map((pattern) => data.verdicts[pattern[group]].kind).join("");
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(chip);
  }
  return [...found.values()];
}

const verdictOn = (pattern, chip) => data.patterns[pattern][data.chips[chip].group];
const kindOn = (pattern, chip) => data.verdicts[verdictOn(pattern, chip)].kind;
const shownColumns = () => {
  const chip = data.chips.findIndex(({ name }) => name === state.chip);
  return chip < 0 ? columns : [[chip]];
};

/** The rows that pass the filters: one per node, or one per op and set of verdicts, the worst first. */
function rowsOf(shown) {
  const kinds = data.patterns.map((_, pattern) => shown.map((chips) => kindOn(pattern, chips[0])));
  const wanted = kinds.map((row) => !state.verdicts.size || row.some((kind) => state.verdicts.has(data.kinds[kind])));
  const query = state.q.toLowerCase();
  const left = nodes.filter((n) => wanted[n.pattern] && (!state.op || n.op === state.op) && (!query || n.text.includes(query)));
  if (state.order) return left.map((node) => ({ op: node.op, pattern: node.pattern, kinds: kinds[node.pattern], nodes: [node] }));
  const groups = new Map();
  for (const node of left) {
    const key = `${node.pattern} ${node.op}`;
    if (!groups.has(key)) groups.set(key, { op: node.op, pattern: node.pattern, kinds: kinds[node.pattern], nodes: [] });
    groups.get(key).nodes.push(node);
  }
  return [...groups.values()].sort((a, b) => Math.max(...b.kinds) - Math.max(...a.kinds) || b.nodes.length - a.nodes.length);
}

// ---- the head and the chips ----

function head() {
  const chips = data.chips.length;
  return make("header", {},
    make("p", { class: "kicker" }, "Hexane \u00b7 which chips run it, and why not"),
    make("h1", { class: "name" }, data.model),
    make("p", { class: "answer" }, chips === 1 ? `${data.chips[0].title}: ` : null, make("b", {}, chips === 1 ? data.answer : capital(data.answer)), "."),
    make("p", { class: "soft" }, count(nodes.length, "op"), data.weights ? ` \u00b7 weights: ${data.weights}` : ""));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const RUNS = { whole: ["native", "\u2713 whole"], parts: ["oversize", "in parts"], none: ["rejected", "\u2715 not"] };
const onSome = (chips) => (chips.length < data.chips.length ? ` (${chips.join("; ")})` : "");

/** The changes that bring most: what, where, and the gain. */
function advice() {
  if (!data.advice.length) return null;
  const lines = data.advice.map(({ change, gain, place, source, chips }) =>
    make("li", {}, make("b", {}, change), source ? ` (${source}): ` : ": ", make("span", { class: "name" }, place), make("span", { class: "soft" }, `: ${gain}${onSome(chips)}`)));
  return make("section", { id: "advice" }, make("h2", {}, "What to do"), make("ol", {}, ...lines));
}

/** Known failures of ops of these kinds, and the advised rewrites. */
function known() {
  if (!data.known.length) return null;
  return make("section", { id: "known" }, make("h2", {}, "Known of these ops"),
    make("ul", {}, ...data.known.map(([text, chips]) => make("li", { class: "name" }, text + onSome(chips)))));
}

function chipCards() {
  const tiers = new Map();
  data.chips.forEach((chip) => tiers.set(chip.tier, [...(tiers.get(chip.tier) || []), chip]));
  const rows = [...tiers].map(([tier, chips]) =>
    make("div", { class: "tier" }, make("b", { title: "Chips of one tier have the same capabilities" }, `tier ${tier}`), make("div", { class: "cards" }, ...chips.map(card))));
  return make("section", {}, make("h2", {}, "Chips", make("small", {}, "choose one to see its ops alone")), make("div", { class: "tiers" }, ...rows), ...netplists());
}

/** The chips that no program in MIL reaches, and the compiler's message for one. */
function netplists() {
  const found = new Map();
  for (const chip of data.chips.filter(({ mil }) => mil)) found.set(chip.mil, [...(found.get(chip.mil) || []), chip]);
  return [...found].map(([said, chips]) =>
    make("p", { class: "soft netplists" }, "As a netplist only: ", make("span", { class: "mono" }, chips.map(called).join("; ")),
      `. Of programs in MIL the compiler says \u201c${said}\u201d (${chips[0].mil_source}).`));
}

function card(chip) {
  const [color, runs] = RUNS[chip.runs];
  const bars = chip.counts.map((number, kind) => {
    const bar = make("i", { class: style(data.kinds[kind]), title: `${number} ${data.kinds[kind]}` });
    bar.style.flex = String(number);
    return number ? bar : null;
  });
  return make("button", { class: "card", type: "button", "data-chip": chip.name, title: `${chip.verdict} \u00b7 ${chip.silicon}, family ${chip.family}`, onclick: () => change({ chip: state.chip === chip.name ? "" : chip.name }) },
    make("span", { class: "top" }, make("b", {}, chip.lead),
      make("span", { class: `runs ${color}` }, runs)),
    make("div", { class: "sold" }, [...new Set([chip.name, ...chip.products].filter((name) => !chip.lead.split(", ").includes(name))), ...(chip.mil ? ["as a netplist"] : [])].join(", ")),
    make("div", { class: "bar" }, ...bars));
}

/** A chip's name in lists: the name that the user gave, or the common names, then the chip's own name. */
function called(chip) {
  return chip.lead === chip.name ? chip.name : `${chip.lead} (${chip.name})`;
}

// ---- filters ----

function tools() {
  const names = [...new Set(nodes.map((node) => node.op))].sort();
  const select = (name, label, options) =>
    make("select", { id: name, "aria-label": label, onchange: (event) => change({ [name]: event.target.value }) },
      make("option", { value: "" }, label), ...options.map(([value, text]) => make("option", { value }, text)));
  const uses = data.kinds.map((_, kind) => new Set(data.patterns.flatMap((p, i) => (p.some((v) => data.verdicts[v].kind === kind) ? [i] : []))));
  const toggles = data.kinds.map((kind, i) => {
    const number = nodes.filter((node) => uses[i].has(node.pattern)).length;
    return make("button", { class: `toggle ${style(kind)}`, type: "button", "data-verdict": kind, disabled: !number, title: `${count(number, "op")} ${kind} on some chip`, onclick: () => toggle(kind) },
      make("span", { class: "mark", "aria-hidden": "true" }, MARKS[kind]), `${kind} ${number.toLocaleString("en")}`);
  });
  return make("div", { class: "tools" },
    make("input", { id: "q", type: "search", placeholder: "Find an op or a node\u2019s name", "aria-label": "Find an op or a node\u2019s name", oninput: (event) => change({ q: event.target.value }) }),
    select("op", "All ops", names.map((name) => [name, name])),
    data.chips.length > 1 ? select("chip", "All chips", data.chips.map((chip) => [chip.name, called(chip)])) : null,
    make("div", { class: "toggles" }, ...toggles),
    make("button", { id: "order", class: "toggle", type: "button", title: "One row for each op of the network, from its inputs to its outputs", onclick: () => change({ order: !state.order }) }, "Network order"));
}

function clear() {
  return make("button", { id: "clear", class: "link", type: "button", onclick: () => change({ q: "", op: "", chip: "", verdicts: new Set() }) }, "clear filters");
}

function toggle(kind) {
  const verdicts = new Set(state.verdicts);
  if (!verdicts.delete(kind)) verdicts.add(kind);
  change({ verdicts });
}

// ---- the matrix ----

function headOf(chips) {
  const [first, ...others] = chips.map((chip) => data.chips[chip]);
  const title = [first, ...others].map(called).join("\n");
  if (chips.length === data.chips.length && others.length) return make("th", { scope: "col", class: "cell", title }, make("span", { class: "chip" }, `all ${chips.length}`), make("span", { class: "more" }, "chips"));
  const lead = first.lead.split(", ")[0];
  const more = [lead === first.name ? "" : first.name, others.length ? `+ ${others.length}` : ""].filter(Boolean).join(" ");
  return make("th", { scope: "col", class: "cell", title }, make("span", { class: "chip" }, lead), make("span", { class: "more" }, more || "\u00a0"));
}

function draw() {
  const shown = shownColumns();
  const rows = rowsOf(shown);
  const found = rows.reduce((sum, row) => sum + row.nodes.length, 0);
  const body = make("tbody", {});
  const answers = shown.map((chips) => make("td", { class: "cell", title: data.chips[chips[0]].verdict }, make("span", { class: `runs ${RUNS[data.chips[chips[0]].runs][0]}` }, RUNS[data.chips[chips[0]].runs][1])));
  body.append(make("tr", { class: "runs-row" }, make("td", { class: "op" }, "runs"), make("td", { class: "where" }, ""), ...answers));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, state.order ? "op" : "ops"), make("th", { scope: "col", class: "where" }, "where in the model"), ...shown.map(headOf))), body);
  const opened = rows.findIndex((row) => row.nodes.some((node) => node.number === state.open));
  const from = opened < FIRST ? 0 : opened - FIRST / 2;
  const to = Math.min(rows.length, from + FIRST);
  body.append(...leftOut(rows, shown, 0, from, true), ...linesOf(rows, shown, from, to), ...leftOut(rows, shown, to, rows.length, false));
  const frame = document.getElementById("matrix");
  document.getElementById("divisions").replaceChildren(...segments());
  frame.replaceChildren(table, ...(rows.length ? [] : [make("p", { class: "empty" }, "No op passes these filters.")]));
  document.getElementById("found").textContent = found === nodes.length ? count(found, "op") : `${found.toLocaleString("en")} of ${count(nodes.length, "op")}`;
  for (const button of document.querySelectorAll("[data-chip]")) button.setAttribute("aria-pressed", String(button.dataset.chip === state.chip));
  for (const button of document.querySelectorAll("[data-verdict]")) button.setAttribute("aria-pressed", String(state.verdicts.has(button.dataset.verdict)));
  document.getElementById("order").setAttribute("aria-pressed", String(state.order));
  document.getElementById("clear").hidden = !(state.q || state.op || state.chip || state.verdicts.size);
  for (const name of ["q", "op", "chip"]) {
    const field = document.getElementById(name);
    if (field && field.value !== state[name]) field.value = state[name];
  }
}

/** The rows of a range, as elements. */
function linesOf(rows, shown, from, to) {
  return rows.slice(from, to).flatMap((row) => {
    const open = row.nodes.some((node) => node.number === state.open);
    return open ? [rowOf(row, shown, open), detail(row, shown)] : [rowOf(row, shown, open)];
  });
}

/** A row with a button in place of the rows `from` to `to`. A click shows the nearest of these rows. */
function leftOut(rows, shown, from, to, before) {
  if (from >= to) return [];
  const next = () => {
    const place = before ? Math.max(from, to - 5 * FIRST) : Math.min(to, from + 5 * FIRST);
    const lines = before ? linesOf(rows, shown, place, to) : linesOf(rows, shown, from, place);
    line.replaceWith(...(before ? [...leftOut(rows, shown, from, place, before), ...lines] : [...lines, ...leftOut(rows, shown, place, to, before)]));
  };
  const text = `Show more: ${count(to - from, "row")} ${before ? "before" : "left"}`;
  const line = make("tr", {}, make("td", { class: "op" }, make("button", { class: "link", type: "button", onclick: next }, text)),
    make("td", { class: "where" }), ...shown.map(() => make("td", {})));
  return [line];
}

function rowOf(row, shown, open) {
  const first = row.nodes[0];
  const others = row.nodes.length - 1;
  const flip = () => {
    const next = line.classList.toggle("open");
    line.querySelector("button").setAttribute("aria-expanded", String(next));
    if (next) line.after(detail(row, shown));
    else line.nextElementSibling.remove();
    state.open = next ? first.number : null;
    remember();
  };
  const line = make("tr", { class: open ? "row open" : "row", "data-node": first.number, onclick: flip },
    make("td", { class: "op" },
      make("button", { type: "button", "aria-expanded": String(open), "aria-label": `why: ${row.op}` }, "\u25b8"),
      make("span", { class: "name", title: row.op }, row.op), others ? make("span", { class: "times" }, `\u00d7 ${row.nodes.length.toLocaleString("en")}`) : null),
    make("td", { class: "where name", title: first.where }, first.where + (others ? ` and ${others.toLocaleString("en")} more` : "")),
    ...row.kinds.map((kind) => make("td", { class: "cell" }, badge(kind))));
  return line;
}

/** Why: each verdict once, with the chips that give it. Verdicts that differ only in their source are merged, with all sources. */
function detail(row, shown) {
  const found = new Map();
  for (const chip of shown.flat().sort((a, b) => a - b)) {
    const verdict = data.verdicts[verdictOn(row.pattern, chip)];
    const key = JSON.stringify({ ...verdict, source: "" });
    if (!found.has(key)) found.set(key, { verdict, chips: [], sources: new Map() });
    const { chips, sources } = found.get(key);
    chips.push(called(data.chips[chip]));
    sources.set(verdict.source, [...(sources.get(verdict.source) || []), called(data.chips[chip])]);
  }
  const worstFirst = [...found.values()].sort((a, b) => b.verdict.kind - a.verdict.kind);
  return make("tr", { class: "detail" }, make("td", { colspan: shown.length + 2 },
    make("div", { class: "inside" }, ...worstFirst.map(reasons), nodeList(row.nodes))));
}

function reasons({ verdict, chips, sources }) {
  const kind = data.kinds[verdict.kind];
  const everywhere = chips.length === data.chips.length && chips.length > 1;
  const title = make("header", {}, badge(verdict.kind), make("span", { class: "on" }, everywhere ? `all ${chips.length} chips` : chips.join("; ")));
  const said = [...sources].map(([source, names]) => (sources.size > 1 ? `${source} (${names.join("; ")})` : source));
  if (kind === "native" && !verdict.claims.length) {
    title.append(make("span", { class: "soft" }, `${verdict.reason} \u2014 ${[...sources.keys()].join("; ")}`));
    return make("article", { class: `verdict ${style(kind)}` }, title);
  }
  const facts = [
    ["rule", verdict.rule],
    ...said.map((source, i) => [i ? "" : "source", source]),
    ...verdict.claims.map((claim, i) => [i ? "" : "claims", claim]),
  ];
  const quoted = verdict.reject && verdict.reason.includes(verdict.reject);
  return make("article", { class: `verdict ${style(kind)}` }, title,
    quoted ? null : make("p", { class: "why" }, verdict.reason),
    verdict.reject ? make("blockquote", {}, make("span", {}, verdict.published ? "The compiler says, word for word" : "The compiler says, in our words"), verdict.reject) : null,
    make("dl", {},
      ...(verdict.form ? [make("dt", {}, "compiled as"), make("dd", {}, verdict.form)] : []),
      ...(verdict.change ? [make("dt", {}, "what to change"), make("dd", { class: "change" }, verdict.change)] : []),
      ...facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])));
}

function nodeList(list) {
  const lines = (from, to) => list.slice(from, to).map((node) =>
    make("li", {}, make("span", {}, String(node.number)), make("span", { class: "name" }, node.where), make("span", { class: "mono" }, node.type)));
  const items = make("ol", {}, ...lines(0, FIRST));
  const rest = list.length - FIRST;
  if (rest > 0) {
    const more = make("li", {}, make("button", { class: "link", type: "button", onclick: () => { more.remove(); items.append(...lines(FIRST)); } }, `Show ${count(rest, "more", "more")}`));
    items.append(more);
  }
  return make("div", { class: "nodes" }, make("b", {}, list.length > 1 ? `${list.length.toLocaleString("en")} nodes` : "Node"), items);
}

// ---- segments ----

/** How the network is divided between engine and host: each division once, with the chips that get it. */
function segments() {
  const chosen = data.chips.filter(({ name }) => !state.chip || name === state.chip);
  const found = new Map();
  for (const chip of chosen) found.set(chip.division, [...(found.get(chip.division) || []), called(chip)]);
  return [...found].map(([division, names]) => divided(data.divisions[division], names));
}

function divided(list, names) {
  const crossing = list.reduce(([values, bytes], segment) => [values + segment[3], bytes + segment[4]], [0, 0]);
  const told = crossing[0] ? `${count(list.length, "segment")}, ${count(crossing[0], "value")} of ${size(crossing[1])} cross` : count(list.length, "segment");
  const strip = list.slice(0, FIRST).map(([device, ops, which]) => {
    const block = make("i", { class: device, title: `${device}: ${count(ops, "op")}: ${which}` });
    block.style.flex = String(ops);
    return block;
  });
  const rows = (from, to) => list.slice(from, to).map(([device, ops, which, values, bytes, why], i) => make("tr", {},
    make("td", { class: "soft" }, String(from + i)), make("td", {}, make("span", { class: `badge ${device}` }, device)),
    make("td", { class: "cell" }, ops.toLocaleString("en")), make("td", { class: "mono" }, which),
    make("td", { class: "soft size" }, values ? `${count(values, "value")}, ${size(bytes)}` : ""), make("td", {}, why)));
  const body = make("tbody", {}, ...rows(0, FIRST));
  if (list.length > FIRST) {
    const more = make("tr", {}, make("td", { colspan: 6 }, make("button", { class: "link", type: "button", onclick: () => { more.remove(); body.append(...rows(FIRST)); } }, `Show ${count(list.length - FIRST, "more", "more")}`)));
    body.append(more);
  }
  const heads = ["", "device", "ops", "which", "reads of others", "why"].map((name) => make("th", { scope: "col" }, name));
  const everywhere = names.length === data.chips.length && names.length > 1;
  return make("details", { class: "division" },
    make("summary", {}, make("b", {}, told), make("span", { class: "on" }, everywhere ? `all ${names.length} chips` : names.join("; ")), make("span", { class: "strip" }, ...strip)),
    make("div", { class: "frame" }, make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...heads)), body)));
}

// ---- weights ----

function streams() {
  const encodings = [...new Set(data.chips.flatMap((chip) => chip.streams))];
  if (!data.weights || !encodings.length) return null;
  const groups = new Map();
  for (const chip of data.chips) {
    const key = chip.streams.join() + "\n" + chip.streams_source;
    groups.set(key, [...(groups.get(key) || []), chip]);
  }
  const rows = [...groups.values()].map((chips) => make("tr", {},
    make("td", { class: "mono" }, chips.map(called).join("; ")),
    ...encodings.map((name) => make("td", {}, chips[0].streams.includes(name) ? make("span", { class: "yes" }, "streams") : make("span", { class: "no" }, "unpacked"))),
    make("td", { class: "soft" }, chips[0].streams_source)));
  return make("section", {}, make("h2", {}, "Weights", make("small", {}, data.weights)),
    make("p", { class: "soft" }, "An encoding that streams stays compressed until the engine reads it, and saves bandwidth. An encoding that is unpacked only makes files smaller."),
    make("div", { class: "frame" }, make("table", { class: "plain" },
      make("thead", {}, make("tr", {}, make("th", {}, "chips"), ...encodings.map((name) => make("th", {}, name)), make("th", {}, "source"))), make("tbody", {}, ...rows))));
}

// ---- state ----

function change(next) {
  Object.assign(state, next);
  draw();
  remember();
}

function remember() {
  const parts = new URLSearchParams();
  for (const name of ["q", "op", "chip"]) if (state[name]) parts.set(name, state[name]);
  if (state.verdicts.size) parts.set("verdict", [...state.verdicts].join(","));
  if (state.order) parts.set("order", "network");
  if (state.open !== null) parts.set("open", String(state.open));
  history.replaceState(null, "", parts.size ? `#${parts}` : location.pathname + location.search);
}

function restore() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const open = parts.get("open");
  Object.assign(state, {
    q: parts.get("q") || "",
    op: data.ops.includes(parts.get("op")) ? parts.get("op") : "",
    chip: data.chips.some(({ name }) => name === parts.get("chip")) ? parts.get("chip") : "",
    verdicts: new Set((parts.get("verdict") || "").split(",").filter((kind) => data.kinds.includes(kind))),
    order: parts.get("order") === "network",
    open: open !== null && /^\d+$/.test(open) ? Number(open) : null,
  });
  draw();
  const row = document.querySelector("tr.row.open");
  if (row) row.scrollIntoView({ block: "center" });
}

document.body.append(make("main", {}, ...[
  head(),
  advice(),
  data.chips.length > 1 ? chipCards() : null,
  make("section", {}, make("h2", {}, "Ops", make("small", { id: "found" }), clear()), tools(), make("div", { class: "frame", id: "matrix" })),
  make("section", {}, make("h2", {}, "Segments", make("small", {}, "parts of the network, each on one device, in the order they run, and the values that cross between them")), make("div", { id: "divisions" })),
  known(),
  streams(),
  make("footer", {}, "Made by hexane check. These verdicts are computed from the graph alone, by rules with their sources; nothing ran on a chip."),
].filter(Boolean)));
addEventListener("hashchange", restore);
restore();
