"use strict";
// Shared by the pages: their data, elements made from it, and words for numbers.

const data = JSON.parse(document.getElementById("data").textContent);
const FIRST = 200; // rows and nodes shown before a click on "more"

/** An element. Texts only become text nodes, so a name from a model is never read as markup. */
function make(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const count = (number, one, many = one + "s") => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1000 && unit < 3) [bytes, unit] = [bytes / 1024, unit + 1];
  return `${unit ? bytes.toPrecision(3) : bytes} ${units[unit]}`;
}
