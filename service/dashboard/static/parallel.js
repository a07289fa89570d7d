// Parallel coordinates that can be brushed: a line for each kernel over the axes of its space. Plotly's own kind needs
// WebGL, and a page that may evaluate code.
import { ask, every } from "./service.js";

const SVG = "http://www.w3.org/2000/svg";
const TOP = 54, BOTTOM = 14, HEIGHT = 420, LEAST_WIDTH = 112, SPREAD = 0.55;
// From slow to fast, as in the figures.
const SCALE = [[176, 120, 0], [125, 129, 138], [0, 114, 178]];
const FAINT = 0.06, PLAIN = 0.55, CLEAR = 0.85, FEW = 60;
const EVERY_S = 3;

const colour = (share) => {
  const at = Math.min(1.999, Math.max(0, 2 * share)), low = SCALE[Math.floor(at)], high = SCALE[Math.floor(at) + 1];
  return `rgb(${low.map((value, part) => Math.round(value + (at % 1) * (high[part] - value))).join(" ")})`;
};

function element(parent, name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  parent.append(made);
  return made;
}

class Parallel {
  constructor(container, data) {
    this.container = container;
    this.data = data;
    // By axis the indices of the choices that are let through; an axis that is not in it lets all through.
    this.brushed = new Map();
    this.build();
    this.draw();
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(container);
  }

  stop() { this.watcher.disconnect(); }

  build() {
    this.container.innerHTML = `<p class="hint"></p><div class="scroll" tabindex="0" role="region" aria-label="Kernels over their axes"><div class="lines"><canvas aria-hidden="true"></canvas></div></div><p class="found" role="status"></p><p><button type="button" class="quiet small">Show all again</button></p>`;
    const { measured, kernels, rule } = this.data;
    const some = kernels.length < measured ? `${kernels.length.toLocaleString("en")} of ${measured.toLocaleString("en")} kernels` : `${measured.toLocaleString("en")} kernels`;
    this.container.querySelector(".hint").textContent = `${some} of ${rule}. Drag along an axis, or choose its values, to keep the kernels that have them; the axes that matter most stand first.`;
    this.area = this.container.querySelector(".lines");
    this.canvas = this.container.querySelector("canvas");
    this.overlay = element(this.area, "svg", { role: "group", "aria-label": "Axes" });
    this.found = this.container.querySelector(".found");
    this.container.querySelector("button").addEventListener("click", () => { this.brushed.clear(); this.mark(); });
  }

  x(axis) { return LEAST_WIDTH / 2 + axis * (this.width - LEAST_WIDTH) / Math.max(1, this.data.axes.length - 1); }

  y(axis, choice, order) {
    const band = (HEIGHT - TOP - BOTTOM) / this.data.axes[axis].choices.length;
    return HEIGHT - BOTTOM - band * (choice + 0.5 + SPREAD * (0.5 - order));
  }

  draw() {
    const { axes } = this.data;
    this.width = Math.max(this.container.clientWidth, axes.length * LEAST_WIDTH);
    const ratio = devicePixelRatio || 1;
    this.area.style.width = `${this.width}px`;
    this.canvas.width = this.width * ratio;
    this.canvas.height = HEIGHT * ratio;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    this.overlay.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.overlay.replaceChildren();
    axes.forEach((axis, number) => this.drawAxis(axis, number));
    this.mark();
  }

  drawAxis(axis, number) {
    const x = this.x(number), group = element(this.overlay, "g");
    const head = element(group, "text", { x, y: 16, "text-anchor": "middle", class: "name" }, axis.name);
    element(head, "title", {}, axis.doc);
    element(group, "line", { x1: x, x2: x, y1: TOP - 8, y2: HEIGHT - BOTTOM });
    const zone = element(group, "rect", { x: x - 16, y: TOP - 8, width: 32, height: HEIGHT - TOP - BOTTOM + 16, class: "zone" });
    element(zone, "title", {}, `${axis.name}: ${axis.doc}`);
    const every = Math.ceil(axis.choices.length / 14);
    axis.choices.forEach((value, choice) => {
      if (choice % every && choice !== axis.choices.length - 1) return;
      const y = this.y(number, choice, 0.5);
      const label = element(group, "text", { x: x - 8, y: y + 4, "text-anchor": "end", class: "choice", tabindex: 0, role: "button", "aria-pressed": "false", "aria-label": `${axis.name}=${value}`, "data-axis": number, "data-choice": choice }, value);
      const toggle = () => this.toggle(number, choice);
      label.addEventListener("click", toggle);
      label.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
    });
    this.brushable(zone, number);
  }

  // Dragging along an axis lets through the choices that it passes.
  brushable(zone, number) {
    let from = null;
    const at = (event) => event.offsetY ?? event.clientY - this.overlay.getBoundingClientRect().top;
    zone.addEventListener("pointerdown", (event) => { from = at(event); zone.setPointerCapture(event.pointerId); event.preventDefault(); });
    zone.addEventListener("pointermove", (event) => { if (from !== null) this.brush(number, from, at(event)); });
    zone.addEventListener("pointerup", (event) => {
      // A click without a way lets all through again.
      if (from !== null && Math.abs(at(event) - from) < 4) { this.brushed.delete(number); this.mark(); }
      from = null;
    });
  }

  brush(number, from, to) {
    const [low, high] = [Math.min(from, to), Math.max(from, to)], half = (HEIGHT - TOP - BOTTOM) / this.data.axes[number].choices.length / 2;
    const kept = this.data.axes[number].choices.map((_, choice) => choice).filter((choice) => {
      const y = this.y(number, choice, 0.5);
      return y + half > low && y - half < high;
    });
    this.brushed.set(number, new Set(kept));
    this.mark();
  }

  toggle(number, choice) {
    const kept = new Set(this.brushed.get(number) ?? []);
    if (!kept.delete(choice)) kept.add(choice);
    if (kept.size) this.brushed.set(number, kept);
    else this.brushed.delete(number);
    this.mark();
  }

  kept(kernel) {
    for (const [axis, choices] of this.brushed) if (!choices.has(kernel.choices[axis])) return false;
    return true;
  }

  mark() {
    for (const label of this.overlay.querySelectorAll(".choice")) {
      const kept = this.brushed.get(Number(label.dataset.axis)), chosen = Boolean(kept?.has(Number(label.dataset.choice)));
      label.setAttribute("aria-pressed", String(chosen));
      label.classList.toggle("left-out", Boolean(kept) && !chosen);
    }
    this.paint();
    const kept = this.data.kernels.filter((kernel) => this.kept(kernel)), best = kept.slice(0, 5);
    this.found.replaceChildren(`${kept.length.toLocaleString("en")} of ${this.data.kernels.length.toLocaleString("en")} kernels${best.length ? "; the fastest: " : ""}`);
    best.forEach((kernel, index) => {
      const link = document.createElement("a");
      link.href = `${this.container.dataset.kernels}${kernel.id}?task=${this.container.dataset.task}`;
      link.textContent = kernel.label;
      this.found.append(index ? ", " : "", link, ` (${(100 * kernel.speed).toFixed(0)} %)`);
    });
  }

  paint() {
    const context = this.canvas.getContext("2d"), ratio = devicePixelRatio || 1, { kernels } = this.data;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, HEIGHT);
    // The slow ones first, so that the fast ones lie on top.
    for (const [passes, alpha] of [[false, FAINT], [true, kernels.length > FEW ? PLAIN : CLEAR]]) {
      for (let index = kernels.length - 1; index >= 0; index -= 1) {
        const kernel = kernels[index];
        if (this.kept(kernel) !== passes) continue;
        context.globalAlpha = alpha;
        context.strokeStyle = colour(kernel.speed);
        context.lineWidth = kernel.speed > 0.95 ? 2.2 : 1;
        context.beginPath();
        kernel.choices.forEach((choice, axis) => {
          context[axis ? "lineTo" : "moveTo"](this.x(axis), this.y(axis, choice, index / Math.max(1, kernels.length - 1)));
        });
        context.stroke();
      }
    }
  }
}

// One element with its data: asked for when it is seen, and again when a search has measured more, unless somebody has
// brushed lines.
class Place {
  constructor(container) {
    this.container = container;
    this.visible = false;
    this.stale = true;
    this.shown = null;
    container.textContent = "Loading…";
  }

  async refresh() {
    if (!this.visible || !this.stale || this.shown?.brushed.size) return;
    this.stale = false;
    const answer = await ask(this.container.dataset.coordinates);
    if (!answer) this.stale = true;
    else if (!answer.ok) this.container.textContent = "This figure cannot be shown at present.";
    else this.show(await answer.json());
  }

  show(data) {
    this.shown?.stop();
    this.shown = data.axes.length ? new Parallel(this.container, data) : null;
    if (!this.shown) this.container.textContent = "No kernels to compare: two that differ must have been measured.";
    this.container.closest("figure")?.classList.toggle("empty-card", !this.shown);
    this.container.dataset.drawn = String(1 + Number(this.container.dataset.drawn || 0));
  }
}

const places = new Map([...document.querySelectorAll("[data-coordinates]")].map((container) => [container, new Place(container)]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const place = places.get(entry.target);
    place.visible = entry.isIntersecting;
    place.refresh();
  }
}, { rootMargin: "300px" });
for (const container of places.keys()) watcher.observe(container);
document.addEventListener("stale", () => { for (const place of places.values()) place.stale = true; });
every(EVERY_S, async () => { for (const place of places.values()) await place.refresh(); });
