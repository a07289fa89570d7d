// The job form: checked by the service as it is written, submitted as it stands.
import { ask, post } from "./service.js";

const form = document.getElementById("job-form"), file = document.getElementById("file");
const said = document.getElementById("said"), example = document.getElementById("example");
const YAML = "application/yaml", PAUSE_MS = 350;
// Not randomUUID: that is there only over https and on this very machine.
const fresh = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
let asked = 0, timer = null, key = fresh();

// The line of the file that a field such as workload.args.m stands in; null if it cannot be told.
function lineOf(field) {
  const lines = file.value.split("\n");
  let at = 0;
  for (const name of field.split(/[.[\]]+/).filter((part) => part && !/^\d+$/.test(part))) {
    const next = lines.findIndex((line, index) => index >= at && new RegExp(`(^|[\\s{,-])["']?${name.replace(/\W/g, "\\$&")}["']?\\s*:`).test(line));
    if (next < 0) return at || null;
    at = next;
  }
  return at + 1;
}

function say(kind, ...parts) {
  said.className = `said ${kind}`;
  said.replaceChildren(...parts);
  file.setAttribute("aria-invalid", String(kind === "wrong"));
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

async function sayProblem(answer) {
  const problem = await answer.json().catch(() => ({}));
  if (!problem.field) return say("wrong", problem.detail || `the service answered ${answer.status}`);
  const line = lineOf(problem.field), where = line ? ` (line ${line})` : "";
  say("wrong", element("strong", problem.field + where), `: ${problem.problem}. `, element("em", `Remedy: ${problem.remedy}.`));
}

async function check() {
  const turn = ++asked;
  const answer = await post(form.dataset.check, file.value, YAML);
  if (turn !== asked || !answer) return;
  if (!answer.ok) return sayProblem(answer);
  const { tasks, task_count } = await answer.json();
  const list = document.createElement("ul");
  list.append(...tasks.map((task) => element("li", `${task.workload}: ${task.shapes} shapes, ${task.instances} of them measured, ${task.axes} axes with ${task.size} points, rule ${task.rule}`)));
  if (task_count > tasks.length) list.append(element("li", `and ${task_count - tasks.length} more`));
  say("right", element("strong", "This job can be submitted."), list);
}

async function submit(event) {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  // The same key for the same file: a click too many submits nothing twice.
  const answer = await ask(form.dataset.submit, {
    method: "POST", body: file.value, headers: { "Content-Type": YAML, "Idempotency-Key": key },
  });
  button.disabled = false;
  if (!answer) return say("wrong", "The service does not answer; nothing was submitted. Try again.");
  if (!answer.ok) return sayProblem(answer);
  location.assign(form.dataset.page + (await answer.json()).id);
}

file.addEventListener("input", () => {
  key = fresh();
  clearTimeout(timer);
  timer = setTimeout(check, PAUSE_MS);
});
file.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
example.addEventListener("change", () => {
  if (!example.value) return;
  file.value = example.value;
  file.dispatchEvent(new Event("input"));
});
form.addEventListener("submit", submit);
check();
