// Quarantines and releases devices.
import { post, reason, root } from "./service.js";

const refused = document.getElementById("refused");

async function act(button) {
  const { device, action } = button.dataset;
  button.disabled = true;
  const answer = await post(`${root}/v1/devices/${encodeURIComponent(device)}/${action}`);
  button.disabled = false;
  if (answer && answer.ok) return location.reload();
  refused.hidden = false;
  refused.textContent = answer ? await reason(answer) : "The service does not answer.";
}

for (const button of document.querySelectorAll("[data-device]")) button.addEventListener("click", () => act(button));
