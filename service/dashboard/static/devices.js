// Keeps the devices up to date, filters them as one types, quarantines and releases them.
import { ask, every, post, reason, root } from "./service.js";

const EVERY_S = 5, TYPING_MS = 250;
const live = document.getElementById("live"), refused = document.getElementById("refused");
const form = document.getElementById("filter");
let asked = 0, typing = null;

// What has the focus, by something that is the same in the next version of the page.
const mark = (element) => element?.dataset?.device ? `button[data-device="${CSS.escape(element.dataset.device)}"]`
  : element?.getAttribute?.("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]`
  : element?.getAttribute?.("aria-label") ? `[aria-label="${CSS.escape(element.getAttribute("aria-label"))}"]` : null;

async function refresh() {
  const turn = ++asked;
  const answer = await ask(live.dataset.fragment + location.search);
  // An older question may be answered after a newer one.
  if (!answer?.ok || turn !== asked) return;
  const focused = live.contains(document.activeElement) ? mark(document.activeElement) : null;
  const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  live.innerHTML = await answer.text();
  live.querySelectorAll(".scroll").forEach((each, index) => {
    [each.scrollLeft, each.scrollTop] = scrolled[index] ?? [0, 0];
  });
  if (focused) live.querySelector(focused)?.focus({ preventScroll: true });
  document.dispatchEvent(new CustomEvent("times"));
}

async function act(button) {
  const { device, action } = button.dataset;
  button.disabled = true;
  const answer = await post(`${root}/v1/devices/${encodeURIComponent(device)}/${action}`);
  button.disabled = false;
  refused.hidden = Boolean(answer?.ok);
  if (answer?.ok) return refresh();
  refused.textContent = answer ? await reason(answer) : "The service does not answer.";
}

function choose() {
  const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  history.replaceState(null, "", `${location.pathname}?${chosen}`);
  refresh();
}

if (live) {
  live.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-device]");
    if (button) act(button);
  });
  every(EVERY_S, refresh);
}
if (form) {
  form.addEventListener("submit", (event) => { event.preventDefault(); choose(); });
  form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(choose, TYPING_MS); });
}
