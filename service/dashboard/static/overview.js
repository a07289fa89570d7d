// Keeps the table of jobs and the figures above it up to date.
import { ask, every, reason, replace, root } from "./service.js";

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

// -- saved searches -------------------------------------------------------------------------------------------------
async function change(name, options) {
  const answer = await ask(`${root}/v1/filters/${encodeURIComponent(name)}`, options);
  if (answer?.ok) return location.reload();
  const unsaved = document.getElementById("unsaved");
  unsaved.hidden = false;
  unsaved.textContent = answer ? await reason(answer) : "The service does not answer.";
}

document.getElementById("save")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams(location.search).get("q");
  change(event.target.elements.name.value, { method: "PUT", body: JSON.stringify({ query }), headers: { "Content-Type": "application/json" } });
});
for (const button of document.querySelectorAll("[data-forget]")) {
  button.addEventListener("click", () => change(button.dataset.forget, { method: "DELETE" }));
}
