// Forms that call the API: the fields become JSON, and the page is loaded again once the service has agreed.
import { post, reason } from "./service.js";

const refused = document.getElementById("refused");

// "{name}" in the address is a field of the form; an option may bring a query of its own.
function address(form) {
  let result = form.dataset.api;
  for (const field of form.querySelectorAll("[data-path]")) result = result.replace(`{${field.dataset.path}}`, encodeURIComponent(field.value));
  const query = form.querySelector("select")?.selectedOptions[0]?.dataset.query;
  return query ? `${result}?${query}` : result;
}

function fields(form) {
  const named = [...form.elements].filter((field) => field.name && field.value);
  return Object.fromEntries(named.map((field) => [field.name, field.type === "number" ? Number(field.value) : field.value]));
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.api || event.defaultPrevented) return;
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  const answer = await post(address(form), JSON.stringify(fields(form)));
  button.disabled = false;
  if (answer?.ok) return location.reload();
  refused.hidden = false;
  refused.textContent = answer ? await reason(answer) : "The service does not answer.";
  refused.scrollIntoView({ block: "nearest" });
});
