// Makes the page of `hexane doctor --read-report` from its data.

const KIND = { holds: "native", "is otherwise": "rejected", open: "oversize", done: "native", error: "oversize", "no answer": "rejected", crash: "rejected",
  "same bits": "native", host: "host", "another rounding": "decomposed", wrong: "rejected" };

const cell = (text, kind) => make("td", kind && { class: `state ${kind}` }, String(text));
const mark = (word) => cell(word, KIND[word] || "");

function table(head, rows) {
  return make("div", { class: "scroll" }, make("table", null,
    make("thead", null, make("tr", null, ...head.map((text) => make("th", null, text)))),
    make("tbody", null, ...rows.map((cells) => make("tr", null, ...cells)))));
}

const section = (title, note, ...children) => [make("h2", null, title, note && make("small", null, note)), ...children];

function folded(title, text) {
  return make("details", null, make("summary", null, title), make("pre", null, text));
}

function catalogue() {
  const counts = data.outcomes.map((word) => [word, data.catalogue.filter((one) => one.outcome === word).length]);
  const order = (one) => -data.outcomes.indexOf(one.outcome);
  const shown = data.catalogue.filter((one) => one.outcome !== "same bits" && one.outcome !== "host");
  shown.sort((a, b) => order(a) - order(b));
  const said = counts.filter(([, number]) => number).map(([word, number]) => `${number} ${word}`).join(", ");
  return section("Ops of the catalogue", said || "not asked",
    table(["case", "outcome", "error", "programs", "steps on the host", "verdict here"], shown.map((one) =>
      [cell(one.case), mark(one.outcome), cell(one.error), cell(one.programs), cell(one.host), cell(one.verdicts)])));
}

function records() {
  return data.records.map((one) => make("details", null,
    make("summary", { class: KIND[one.outcome] || "" }, `${one.probe}: ${one.case}: ${one.outcome}`),
    make("pre", null, JSON.stringify(one.values || one, null, 1))));
}

document.body.append(make("main", null,
  make("p", { class: "kicker" }, "what this machine does with its Neural Engine"),
  make("h1", null, data.name),
  make("p", { class: "answer" }, data.words),
  data.head.interrupted ? make("p", { class: "soft" }, "The report was interrupted: the last probes did not run.") : null,
  table(["machine", ""], Object.entries(data.machine).map(([name, value]) => [cell(name), cell(value)])),
  ...section("Beliefs", "what Hexane takes for true, and whether this machine agrees",
    table(["belief", "", "found", "decided by", "source", "what changes"], data.beliefs.map((one) =>
      [cell(one.text), mark(one.state), cell(one.found), cell(one.case), cell(one.source), cell(one.otherwise)]))),
  ...catalogue(),
  ...section("Proposed facts", "TOML, to read before it is copied", make("pre", null, data.facts)),
  ...section("Records", count(data.records.length, "case"), ...records()),
  ...section("Logs", count(Object.keys(data.logs).length, "file"), ...Object.entries(data.logs).map(([name, text]) => folded(name, text)))));
