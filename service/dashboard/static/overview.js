// Keeps the table of jobs and the figures above it up to date.
import { ask, every } from "./service.js";

const EVERY_S = 2;
const container = document.getElementById("jobs");
let last = null;

// Trials per second, from the number of trials at two polls.
function rate() {
  const trials = Number(document.getElementById("facts").dataset.trials), at = performance.now();
  if (last) {
    const perSecond = 1000 * (trials - last.trials) / (at - last.at);
    document.getElementById("rate").textContent = perSecond.toFixed(perSecond < 10 ? 1 : 0);
  }
  last = { trials, at };
}

async function refresh() {
  const answer = await ask(container.dataset.fragment + location.search);
  if (!answer || !answer.ok) return;
  const shown = document.getElementById("rate").textContent, scrolled = container.querySelector(".scroll")?.scrollLeft ?? 0;
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  container.innerHTML = await answer.text();
  document.getElementById("rate").textContent = shown;
  const table = container.querySelector(".scroll");
  if (table) table.scrollLeft = scrolled;
  if (!focused) return rate();
  const same = [...container.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused.getAttribute("href"));
  (same ?? table)?.focus({ preventScroll: true });
  rate();
}

rate();
every(EVERY_S, refresh);
