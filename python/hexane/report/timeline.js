
// ---- the timeline ----
// Layers in order, in panels over one axis: who reads whom, on which engine, the bytes on chip, and where each tensor
// lies. Only the visible part of the timeline is drawn, in few long paths, and the item at the pointer is computed, so
// ten thousand layers are no more work than fifty.

const GUTTER = 76;
const PANELS = { head: [0, 40], arcs: [44, 62], lanes: [108, 84], occupancy: [222, 116], offsets: [378, 270] }; // [top, height]
const HEIGHT = 674;
const LANES = ["NE", "PE", "DMA"];
const CROWDED = 2.5; // If a layer has fewer pixels, only the edges of the chosen layer are drawn.
const CHARACTER = 6.4; // The width of a character in pixels.

const svg = (tag, attributes, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** capacity, limit: of on-chip memory; rectangles: { tensor, first, last, offset, bytes, kind, spilled }. */
class Timeline {
  constructor(layers, edges, rectangles, limit, capacity, choose) {
    Object.assign(this, { layers, edges, rectangles, limit, capacity, choose });
    this.from = 0;
    this.to = layers.length <= 140 ? layers.length : 80;
    this.highest = rectangles.reduce((most, r) => Math.max(most, r.offset + r.bytes), 1);
    this.scale(this.highest < capacity / 4);
    this.chosen = null;
    this.passes = () => true;
    this.tip = make("div", { class: "tip", role: "status" });
    this.plot = make("div", { class: "plot" });
    this.overview = make("div", { class: "overview", title: "The whole program: bytes on chip. Click to move the view." });
    const button = (text, title, act) => make("button", { type: "button", class: "toggle", title, onclick: act }, text);
    this.controls = make("div", { class: "controls" },
      button("\u2212", "Show more layers", () => this.zoom(2)), button("+", "Show fewer layers", () => this.zoom(0.5)),
      button("\u2190", "Earlier layers", () => this.move(-0.5)), button("\u2192", "Later layers", () => this.move(0.5)),
      button("All", "The whole program", () => this.look(0, layers.length)),
      make("button", { type: "button", class: "toggle", id: "fit", title: "Draw what is in use as high as the panels are", onclick: () => { this.scale(!this.fits); this.draw(); } }, "Fit height"), make("span", { class: "soft", id: "range" }));
    this.element = make("div", { class: "timeline" }, this.controls, this.overview, this.plot, this.tip);
    this.plot.addEventListener("pointermove", (event) => this.hover(event));
    this.plot.addEventListener("pointerleave", () => this.tip.classList.remove("shown"));
    this.plot.addEventListener("click", (event) => this.click(event));
    this.overview.addEventListener("pointerdown", (event) => this.pan(event));
    this.overview.addEventListener("pointermove", (event) => event.buttons && this.pan(event));
    addEventListener("resize", () => this.draw());
  }

  // ---- the visible part ----

  /** The value at the top of the panels: the capacity on chip, or the highest byte in use. */
  scale(fits) {
    this.fits = fits;
    this.top = fits ? this.highest * 1.04 : Math.max(this.capacity, this.highest);
  }

  look(from, to) {
    const count = this.layers.length;
    const width = Math.min(Math.max(Math.round(to - from), Math.min(8, count)), count);
    this.from = Math.min(Math.max(Math.round(from), 0), count - width);
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor) {
    const inView = this.chosen !== null && this.chosen >= this.from && this.chosen < this.to;
    const middle = inView ? this.chosen : (this.from + this.to) / 2;
    const half = ((this.to - this.from) * factor) / 2;
    this.look(middle - half, middle + half);
  }

  move(part) {
    const by = (this.to - this.from) * part;
    this.look(this.from + by, this.to + by);
  }

  show(layer) {
    this.chosen = layer;
    if (layer !== null && (layer < this.from || layer >= this.to)) this.look(layer - (this.to - this.from) / 2, layer + (this.to - this.from) / 2);
    else this.draw();
  }

  pan(event) {
    const box = this.overview.getBoundingClientRect();
    const middle = ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * this.layers.length;
    this.look(middle - (this.to - this.from) / 2, middle + (this.to - this.from) / 2);
  }

  // ---- drawing ----

  draw() {
    this.width = Math.max(this.plot.clientWidth - GUTTER, 60);
    this.step = this.width / (this.to - this.from);
    const picture = svg("svg", { width: this.width + GUTTER, height: HEIGHT, role: "img", "aria-label": "Layers, bytes on chip and offsets in the order layers run" });
    const inside = svg("svg", { x: GUTTER, width: this.width, height: HEIGHT }); // This element clips the hidden part.
    inside.append(...this.grounds(), ...this.arcs(), ...this.lanes(), ...this.areas(), ...this.places(), ...this.axis());
    picture.append(inside, ...this.labels());
    this.plot.replaceChildren(picture);
    this.drawOverview();
    this.controls.querySelector("#fit").setAttribute("aria-pressed", String(this.fits));
    this.controls.querySelector("#range").textContent = `layers ${this.from} to ${this.to - 1} of ${this.layers.length.toLocaleString("en")}`;
  }

  x(layer) {
    return (layer - this.from) * this.step;
  }

  y(panel, bytes) {
    const [top, height] = PANELS[panel];
    return top + height - (height * bytes) / this.top;
  }

  /** Bands of segments and partitions over all panels, and the band of the chosen layer. */
  grounds() {
    const made = [];
    const band = (name, first, end, top, height, text) => {
      if (end <= this.from || first >= this.to) return;
      const [left, right] = [Math.max(this.x(first), 0), Math.min(this.x(end), this.width)];
      made.push(svg("rect", { class: name, x: left, y: top, width: Math.max(right - left - 1, 0.5), height }));
      const words = shortened(text, right - left - 8);
      if (words) made.push(svg("text", { class: "band-text", x: left + 5, y: top + 13 }, words));
    };
    data.partitions.forEach((p, i) => {
      if (i % 2) band("stripe", p.first, p.end, PANELS.arcs[0], HEIGHT - PANELS.arcs[0] - 26, "");
      band("partition", p.first, p.end, 20, 18, `partition ${i}: ${size(p.height)}`);
    });
    for (const s of this.segments()) band(`segment ${s.device}`, s.first, s.end, 0, 18, s.text);
    if (this.chosen !== null) made.push(svg("rect", { class: "chosen-band", x: this.x(this.chosen), y: 40, width: Math.max(this.step, 1), height: HEIGHT - 62 }));
    return made;
  }

  /** Segments of the engine as ranges of layers; segments of the host have none and are named in the next one. */
  segments() {
    const found = [];
    let host = "";
    data.segments.forEach(([device, ops, which], i) => {
      const mine = data.partitions.filter((p) => p.segment === i);
      if (device === "CPU" || !mine.length) host += `segment ${i}: CPU: ${which} \u25b8 `;
      else {
        found.push({ device, first: mine[0].first, end: mine[mine.length - 1].end, text: `${host}segment ${i}: engine, ${count(ops, "op")}` });
        host = "";
      }
    });
    if (host && found.length) found[found.length - 1].text += ` \u25b8 ${host}`;
    return found;
  }

  arcs() {
    const base = PANELS.arcs[0] + PANELS.arcs[1];
    const arc = ([from, to]) => {
      const [left, right] = [this.x(from) + this.step / 2, this.x(to) + this.step / 2];
      const high = Math.min(PANELS.arcs[1] - 4, 5 + (right - left) * 0.22);
      return `M${left.toFixed(1)} ${base}C${left.toFixed(1)} ${base - high * 1.33} ${right.toFixed(1)} ${base - high * 1.33} ${right.toFixed(1)} ${base}`;
    };
    const inView = this.edges.filter(([from, to]) => to >= this.from && from < this.to);
    const path = (name, edges) => (edges.length ? [svg("path", { class: name, d: edges.map(arc).join("") })] : []);
    return [
      ...(this.step >= CROWDED ? path("arc", inView) : []),
      ...path("arc from", inView.filter(([, to]) => to === this.chosen)), ...path("arc to", inView.filter(([from]) => from === this.chosen)),
    ];
  }

  lanes() {
    const [top, height] = PANELS.lanes;
    const each = height / LANES.length;
    const paths = new Map();
    const texts = [];
    const gap = this.step > 6 ? 1.5 : 0;
    for (let i = this.from; i < this.to; i++) {
      const layer = this.layers[i];
      const lane = LANES.indexOf(layer.engine);
      const name = `box ${layer.engine}${this.passes(i) ? "" : " dim"}`;
      const [left, wide] = [this.x(i) + gap / 2, Math.max(this.step - gap, 0.6)];
      const box = `M${left.toFixed(2)} ${top + lane * each + 3}h${wide.toFixed(2)}v${each - 6}h${-wide.toFixed(2)}z`;
      paths.set(name, (paths.get(name) || "") + box);
      const words = shortened(layer.kind, wide - 4, 4);
      if (words) texts.push(svg("text", { class: "box-text", x: left + wide / 2, y: top + lane * each + each / 2 + 4 }, words));
    }
    return [...[...paths].map(([name, d]) => svg("path", { class: name, d })), ...texts];
  }

  /** Bytes on chip, with the lines of limit and capacity. Where a pixel has several layers it shows the largest. */
  areas() {
    const at = (i) => this.y("occupancy", this.layers[i].onChip).toFixed(1);
    const zero = this.y("occupancy", 0);
    let d = `M0 ${zero}`;
    if (this.step >= 1) for (let i = this.from; i < this.to; i++) d += `V${at(i)}H${this.x(i + 1).toFixed(1)}`;
    else
      for (let pixel = 0; pixel < this.width; pixel++) {
        const most = this.most(this.from + Math.floor(pixel / this.step), this.from + Math.ceil((pixel + 1) / this.step));
        d += `V${this.y("occupancy", most).toFixed(1)}H${pixel + 1}`;
      }
    return [svg("path", { class: "area", d: `${d}V${zero}z` }), ...this.lines("occupancy")];
  }

  most(from, to) {
    let most = 0;
    for (let i = from; i < Math.min(to, this.layers.length); i++) most = Math.max(most, this.layers[i].onChip);
    return most;
  }

  lines(panel) {
    const line = (name, bytes) => svg("line", { class: `line ${name}`, x1: 0, x2: this.width, y1: this.y(panel, bytes), y2: this.y(panel, bytes) });
    return [line("base", 0), ...[["limit", this.limit], ["capacity", this.capacity]].filter(([, bytes]) => bytes <= this.top).map(([name, bytes]) => line(name, bytes))];
  }

  /** The allocator's picture: a rectangle for each stay of a tensor on chip. */
  places() {
    const paths = new Map();
    const texts = [];
    const [reads, makes] = this.chosen === null ? [[], []] : [this.layers[this.chosen].reads, this.layers[this.chosen].makes];
    for (const r of this.rectangles) {
      if (r.last < this.from || r.first >= this.to) continue;
      const [left, right] = [this.x(r.first), this.x(r.last + 1)];
      const [top, bottom] = [this.y("offsets", r.offset + r.bytes), this.y("offsets", r.offset)];
      const gap = right - left > 4 ? 0.5 : 0;
      const mark = makes.includes(r.tensor) ? " made" : reads.includes(r.tensor) ? " read" : this.passes(r.owner) ? "" : " dim";
      const name = `place ${r.kind}${r.spilled ? " spilled" : ""}${mark}`;
      const box = `M${(left + gap).toFixed(1)} ${top.toFixed(1)}H${(right - gap).toFixed(1)}V${bottom.toFixed(1)}H${(left + gap).toFixed(1)}z`;
      paths.set(name, (paths.get(name) || "") + box);
      const words = bottom - top > 13 ? shortened(r.label, Math.min(right, this.width) - Math.max(left, 0) - 10, 5) : "";
      if (words) texts.push(svg("text", { class: "place-text", x: Math.max(left, 0) + 5, y: (top + bottom) / 2 + 4 }, words));
    }
    const order = (name) => (name.endsWith("made") ? 2 : name.endsWith("read") ? 1 : 0);
    const drawn = [...paths].sort(([a], [b]) => order(a) - order(b)).map(([name, d]) => svg("path", { class: name, d }));
    return [...drawn, ...texts, ...this.lines("offsets")];
  }

  axis() {
    const every = niceStep(((this.to - this.from) * 60) / this.width);
    const bottom = PANELS.offsets[0] + PANELS.offsets[1];
    const made = [];
    for (let i = Math.ceil(this.from / every) * every; i < this.to; i += every)
      made.push(svg("text", { class: "tick", x: this.x(i) + this.step / 2, y: bottom + 18, "text-anchor": "middle" }, String(i)));
    return made;
  }

  /** The labels left of the panels. */
  labels() {
    const made = [];
    const say = (y, text, name = "tick") => made.push(svg("text", { class: name, x: GUTTER - 8, y, "text-anchor": "end" }, text));
    say(84, "reads", "panel");
    LANES.forEach((lane, i) => say(PANELS.lanes[0] + (PANELS.lanes[1] / LANES.length) * (i + 0.5) + 4, lane, "panel"));
    for (const panel of ["occupancy", "offsets"]) {
      made.push(svg("text", { class: "panel", x: 0, y: PANELS[panel][0] - 14 }, panel === "occupancy" ? "Bytes on chip" : "Offsets on chip"));
      const [top, height] = PANELS[panel];
      if (this.capacity <= this.top) say(this.y(panel, this.capacity) + 4, size(this.capacity), "tick capacity");
      if (this.limit <= this.top) say(this.y(panel, this.limit) + (this.capacity - this.limit < this.top / 9 ? 15 : 4), size(this.limit), "tick limit");
      for (const part of height > 150 ? [0.25, 0.5, 0.75] : [0.5]) say(top + height - height * part + 4, size(this.fits ? Math.round(this.top * part) : this.top * part));
      if (this.limit > this.top) say(top + 8, size(Math.round(this.top)));
      say(top + height + 4, "0");
    }
    say(PANELS.offsets[0] + PANELS.offsets[1] + 18, "layer");
    return made;
  }

  drawOverview() {
    const whole = this.from === 0 && this.to === this.layers.length;
    this.overview.hidden = whole;
    if (whole) return;
    const wide = this.width, high = 40, each = this.layers.length / wide;
    let d = `M0 ${high}`;
    for (let pixel = 0; pixel < wide; pixel++) d += `V${(high - (high * this.most(Math.floor(pixel * each), Math.max(Math.ceil((pixel + 1) * each), Math.floor(pixel * each) + 1))) / this.top).toFixed(1)}H${pixel + 1}`;
    const inside = svg("svg", { x: GUTTER, width: wide, height: high }, svg("path", { class: "area", d: `${d}V${high}z` }),
      svg("rect", { class: "window", x: this.from / each, y: 0.5, width: Math.max((this.to - this.from) / each, 3), height: high - 1 }));
    this.overview.replaceChildren(svg("svg", { width: wide + GUTTER, height: high }, inside, svg("text", { class: "panel", x: GUTTER - 8, y: 24, "text-anchor": "end" }, "all")));
  }

  // ---- the pointer ----

  /** The layer and the rectangle at the pointer. */
  at(event) {
    const box = this.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - GUTTER, event.clientY - box.top];
    const layer = this.from + Math.floor(x / this.step);
    if (x < 0 || layer >= this.to) return null;
    const offset = ((PANELS.offsets[0] + PANELS.offsets[1] - y) / PANELS.offsets[1]) * this.top;
    const place = this.rectangles.find((r) => r.first <= layer && layer <= r.last && r.offset <= offset && offset < r.offset + r.bytes);
    return { layer, place: y > PANELS.offsets[0] - 8 ? place : undefined, x: event.clientX - box.left, y };
  }

  hover(event) {
    const found = this.at(event);
    this.tip.classList.toggle("shown", found !== null);
    if (!found) return;
    this.tip.replaceChildren(...this.said(found).map((line, i) => make("div", { class: i ? "soft" : "name" }, line)));
    const room = this.plot.clientWidth - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(Math.min(found.x + 14, room), 0)}px`;
    this.tip.style.top = `${this.plot.offsetTop + found.y + 16}px`;
  }

  /** The item at the pointer, in lines. */
  said({ layer, place, y }) {
    const it = this.layers[layer];
    if (y < PANELS.head[1]) {
      const { first, end } = data.partitions[it.partition];
      return [this.segments().find((s) => s.first <= layer && layer < s.end).text, `partition ${it.partition}: layers ${first} to ${end - 1}`];
    }
    if (!place) return [`${layer}: ${it.name}`, [it.kind, ...it.slots].join(", "), `${it.engine}, ${size(it.onChip)} on chip, ${size(it.moved)} moved`];
    const bytes = `${place.bytes.toLocaleString("en")} bytes at ${place.offset.toLocaleString("en")}`;
    const when = place.first === place.last ? `at layer ${place.first}` : `layers ${place.first} to ${place.last}`;
    return [place.label, `${place.kind}${place.spilled ? ", spilled: a tile" : ""}: ${bytes}`, when];
  }

  click(event) {
    const found = this.at(event);
    if (found) this.choose(found.place ? found.place.owner : found.layer);
  }
}

/** The part of a text that fits into the given pixels; empty if that is less than `least` characters. */
function shortened(text, pixels, least = 3) {
  const fits = Math.floor(pixels / CHARACTER);
  if (text.length <= fits) return text;
  return fits < least ? "" : `${text.slice(0, fits - 1)}\u2026`;
}

/** 1, 2 or 5 times a power of ten, at least this. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return power * [1, 2, 5, 10].find((step) => step * power >= least);
}
