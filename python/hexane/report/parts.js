// Shared by the pages of fit and estimate: sections, figures, tables, elements of drawings.

const SVG = "http://www.w3.org/2000/svg";
const draw = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
const exact = (number) => number.toLocaleString("en");
const name = (text) => make("span", { class: "name" }, text || "(no name)");

function section(title, note, ...children) {
  return [make("h2", null, title, note && make("small", null, note)), ...children];
}

const figure = (value, words) => make("div", { class: "figure" }, make("b", null, value), make("span", null, words));

function table(heads, rows) {
  return make("div", { class: "frame sticky-off" }, make("table", { class: "plain" },
    make("thead", null, make("tr", null, ...heads.map(([head, number]) => make("th", { class: number ? "number" : false }, head)))), make("tbody", null, ...rows)));
}

function meter(share) {
  const bar = make("i", null);
  bar.style.width = `${Math.min(100, 100 * share)}%`;
  return make("span", { class: "meter" }, bar);
}
