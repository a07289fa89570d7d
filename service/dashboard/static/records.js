// Sends a file of records to the service and says what became of it.
import { ask, reason } from "./service.js";

const form = document.getElementById("import"), said = document.getElementById("imported");
const LONGEST_MS = 600000;

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  said.className = "hint";
  said.textContent = "Importing…";
  const answer = await ask(form.dataset.import, {
    method: "POST", body: form.elements.file.files[0], headers: { "Content-Type": "application/jsonl" }, signal: AbortSignal.timeout(LONGEST_MS),
  });
  button.disabled = false;
  if (answer?.ok) {
    const { added, known } = await answer.json();
    said.className = "notice";
    said.textContent = `${added.toLocaleString("en")} records were added, ${known.toLocaleString("en")} were known.`;
  } else {
    said.className = "banner";
    said.textContent = answer ? await reason(answer) : "The service does not answer.";
  }
});
