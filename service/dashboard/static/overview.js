// Keeps the table of jobs and the figures above it up to date.
import { ask, every, replace } from "./service.js";

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
  const shown = document.getElementById("rate").textContent;
  const ticked = new Set([...document.querySelectorAll("[form=compare]:checked")].map((box) => box.value));
  replace(container, await answer.text());
  for (const box of document.querySelectorAll("[form=compare]")) box.checked = ticked.has(box.value);
  document.getElementById("rate").textContent = shown;
  rate();
}

rate();
every(EVERY_S, refresh);
