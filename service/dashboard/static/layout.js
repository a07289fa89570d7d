// What every page has: cards that are packed, tables that stack on phones, times in words, ids that can be copied.
const UNIT_PX = 1, GAP_PX = 20;
const UNITS = [["year", 31557600], ["month", 2629800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const spoken = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

// -- cards ------------------------------------------------------------------------------------------------------------
// A grid of rows of one pixel, of which a card takes as many as it is high: no card waits for its neighbour's end.
const sizes = new ResizeObserver((entries) => { for (const { target } of entries) pack(target); });

function pack(card) {
  const height = card.getBoundingClientRect().height;
  card.style.gridRowEnd = height ? `span ${Math.ceil((height + GAP_PX) / UNIT_PX)}` : "";
}

for (const cards of document.querySelectorAll(".cards")) {
  cards.classList.add("packed");
  for (const card of cards.children) {
    pack(card);
    sizes.observe(card);
  }
}

// -- tables -----------------------------------------------------------------------------------------------------------
// On a phone a row stands as a block, each value beside the name of its column.
function label(table) {
  const names = [...table.querySelectorAll("thead th, thead td")].map((cell) => cell.textContent.replace(/[▾▴]/g, "").trim());
  for (const row of table.tBodies[0]?.rows ?? []) {
    [...row.cells].forEach((cell, index) => { if (cell.dataset.label === undefined) cell.dataset.label = names[index] ?? ""; });
  }
}

// -- times ------------------------------------------------------------------------------------------------------------
function tell(time) {
  const at = new Date(time.getAttribute("datetime")), ago_s = (Date.now() - at) / 1000;
  const [unit, length_s] = UNITS.find(([, size]) => Math.abs(ago_s) >= size) ?? UNITS.at(-1);
  time.title = at.toLocaleString();
  time.textContent = spoken.format(-Math.trunc(ago_s / length_s), unit);
}

function refresh() {
  document.querySelectorAll("time.ago").forEach(tell);
  document.querySelectorAll("table.stack").forEach(label);
}

refresh();
setInterval(() => document.querySelectorAll("time.ago").forEach(tell), 20000);
document.addEventListener("times", refresh);

// -- copying ----------------------------------------------------------------------------------------------------------
async function copy(text) {
  // The clipboard's own interface is there only over https and on this very machine.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const place = document.createElement("textarea");
  place.value = text;
  document.body.append(place);
  place.select();
  document.execCommand("copy");
  place.remove();
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy], [data-copy-from]");
  if (button) {
    await copy(button.dataset.copy ?? document.querySelector(button.dataset.copyFrom).textContent);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  }
});
document.querySelector("[data-back]")?.addEventListener("click", (event) => {
  if (history.length < 2) return;
  event.preventDefault();
  history.back();
});

// -- keyboard ---------------------------------------------------------------------------------------------------------
// "/" goes to the page's search, as on the sites that people come from.
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector('input[type="search"]');
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

// On a narrow screen the navigation scrolls: the current place is in view.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// -- forms ------------------------------------------------------------------------------------------------------------
// Asked first where something cannot be undone; sent once, however often one clicks.
document.addEventListener("submit", (event) => {
  const form = event.target, question = form.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
  else if (form.method === "post") setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
});
