// Every element with data-figure shows a figure of the service, and reloads it when it may have changed.
import { ask, every, root } from "./service.js";

const SHORTEST_MS = 1000;
const touch = !matchMedia("(hover: hover)").matches;
const settings = await (await ask(`${root}/static/figures.json`))?.json();
// Where nothing hovers, the buttons would lie over the legend, and a finger that scrolls the page would draw.
const options = { ...settings?.config, ...(touch ? { displayModeBar: false } : {}) };

// Figures carry no colours of text: those are the page's.
function themed(layout) {
  const copy = structuredClone(layout);
  for (const [path, value] of Object.entries(settings?.[document.documentElement.dataset.theme] ?? {})) {
    const steps = path.split("."), last = steps.pop();
    steps.reduce((node, step) => (node[step] ??= {}), copy)[last] = value;
  }
  return touch ? { ...copy, dragmode: false } : copy;
}

class Figure {
  constructor(element) {
    this.element = element;
    this.visible = this.stale = this.busy = false;
    this.shownAt = -Infinity;
    this.etag = null;
    this.figure = null;
    element.textContent = "Loading…";
    element.classList.add("waiting");
  }

  // Show new records as soon as the figure is visible, at most once a second.
  invalidate() {
    this.stale = true;
    this.refresh();
  }

  async refresh() {
    if (!this.visible || !this.stale || this.busy || document.hidden) return;
    const wait = this.shownAt + SHORTEST_MS - performance.now();
    if (wait > 0) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refresh(), wait);
      return;
    }
    this.busy = true;
    this.stale = false;
    try {
      await this.load();
    } finally {
      this.busy = false;
      this.shownAt = performance.now();
    }
    this.refresh();
  }

  async load() {
    const answer = await ask(this.element.dataset.figure, this.etag ? { headers: { "If-None-Match": this.etag } } : {});
    if (!answer) {
      setTimeout(() => this.invalidate(), 3000);
    } else if (answer.ok) {
      const etag = answer.headers.get("ETag");
      if (etag && etag === this.etag) return;
      this.etag = etag;
      this.figure = await answer.json();
      await this.draw();
    } else if (answer.status !== 304) {
      Plotly.purge(this.element);
      this.etag = this.figure = null;
      this.clicks = false;
      this.element.classList.add("waiting");
      this.element.textContent = "This figure cannot be shown at present.";
    }
  }

  // A figure that has nothing to show is a line that says why.
  saysWhy(reason) {
    const card = this.element.closest("figure, .card");
    card?.classList.toggle("empty-card", Boolean(reason));
    if (!reason && this.element.classList.contains("nothing")) this.element.textContent = "";
    this.element.classList.toggle("nothing", Boolean(reason));
    if (!reason) return false;
    Plotly.purge(this.element);
    this.clicks = false;
    this.element.classList.remove("waiting");
    this.element.textContent = reason;
    this.noteDrawn();
    return true;
  }

  noteDrawn() {
    this.element.dataset.drawn = String(1 + Number(this.element.dataset.drawn || 0));
  }

  async draw() {
    if (!this.figure || this.saysWhy(this.figure.layout.meta?.nothing)) return;
    if (this.element.classList.contains("waiting")) {
      this.element.classList.remove("waiting");
      this.element.textContent = "";
    }
    const layout = themed(this.figure.layout);
    // A zoom that the reader chose stays while the figure grows.
    layout.uirevision = this.element.dataset.figure;
    await Plotly.react(this.element, this.figure.data, layout, options);
    this.noteDrawn();
    if (!this.clicks && this.element.dataset.kernels) {
      this.clicks = true;
      this.element.on("plotly_click", ({ points }) => openKernel(this.element.dataset, points[0]));
    }
  }
}

function openKernel(data, point) {
  const custom = Array.isArray(point.customdata) ? point.customdata[0] : point.customdata;
  const task = new URL(data.figure, location.href).searchParams.get("task") || "0";
  if (/^[0-9a-f]{12}$/.test(custom || "")) location.assign(`${data.kernels}${custom}?task=${task}`);
}

const figures = new Map();

export function invalidateAll() {
  document.dispatchEvent(new CustomEvent("stale"));
  for (const figure of figures.values()) figure.invalidate();
}

function start() {
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = figures.get(entry.target);
      figure.visible = entry.isIntersecting;
      figure.refresh();
    }
  }, { rootMargin: "300px" });
  for (const element of document.querySelectorAll("[data-figure]")) {
    const figure = new Figure(element);
    figures.set(element, figure);
    figure.stale = true;
    watcher.observe(element);
    if (element.dataset.every) every(Number(element.dataset.every), () => figure.invalidate());
  }
  document.addEventListener("visibilitychange", () => { for (const figure of figures.values()) figure.refresh(); });
  document.addEventListener("theme", () => { for (const figure of figures.values()) figure.draw(); });
}

start();
