// Every element with data-figure shows a figure of the service, made anew when it may have changed.
import { ask, every, root } from "./service.js";

const SHORTEST_MS = 1000;
const touch = !matchMedia("(hover: hover)").matches;
const looks = await (await ask(`${root}/static/figures.json`))?.json();
// Where nothing hovers, the buttons would lie over the legend, and a finger that scrolls the page would draw.
const options = { ...looks?.config, ...(touch ? { displayModeBar: false } : {}) };

// Figures carry no colours of text: those are the page's.
function themed(layout) {
  const found = structuredClone(layout);
  for (const [path, value] of Object.entries(looks?.[document.documentElement.dataset.theme] ?? {})) {
    const steps = path.split("."), last = steps.pop();
    steps.reduce((place, step) => (place[step] ??= {}), found)[last] = value;
  }
  return touch ? { ...found, dragmode: false } : found;
}

class Figure {
  constructor(place) {
    this.place = place;
    this.visible = this.stale = this.busy = false;
    this.shownAt = -Infinity;
    this.etag = null;
    this.figure = null;
    place.textContent = "Loading…";
    place.classList.add("waiting");
  }

  // Something new is stored: show it as soon as the figure is looked at, at most once a second.
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
    const answer = await ask(this.place.dataset.figure, this.etag ? { headers: { "If-None-Match": this.etag } } : {});
    if (!answer) {
      setTimeout(() => this.invalidate(), 3000);
    } else if (answer.ok) {
      const etag = answer.headers.get("ETag");
      if (etag && etag === this.etag) return;
      this.etag = etag;
      this.figure = await answer.json();
      await this.draw();
    } else if (answer.status !== 304) {
      Plotly.purge(this.place);
      this.etag = this.figure = null;
      this.clicks = false;
      this.place.classList.add("waiting");
      this.place.textContent = "This figure cannot be shown at present.";
    }
  }

  async draw() {
    if (!this.figure) return;
    if (this.place.classList.contains("waiting")) {
      this.place.classList.remove("waiting");
      this.place.textContent = "";
    }
    const layout = themed(this.figure.layout);
    // A zoom that the reader chose stays while the figure grows.
    layout.uirevision = this.place.dataset.figure;
    await Plotly.react(this.place, this.figure.data, layout, options);
    this.place.dataset.drawn = String(1 + Number(this.place.dataset.drawn || 0));
    if (!this.clicks && this.place.dataset.kernels) {
      this.clicks = true;
      this.place.on("plotly_click", ({ points }) => openKernel(this.place.dataset, points[0]));
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
  for (const place of document.querySelectorAll("[data-figure]")) {
    const figure = new Figure(place);
    figures.set(place, figure);
    figure.stale = true;
    watcher.observe(place);
    if (place.dataset.every) every(Number(place.dataset.every), () => figure.invalidate());
  }
  document.addEventListener("visibilitychange", () => { for (const figure of figures.values()) figure.refresh(); });
  document.addEventListener("theme", () => { for (const figure of figures.values()) figure.draw(); });
}

start();
