// The page of the API: operations are found by text, links open what they lead to, and requests are tried.
import { root } from "./service.js";

const MOST = 200000, LONGEST_MS = 8000;
const operations = [...document.querySelectorAll(".operation")];

document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const each of operations) {
    const text = each.querySelector("summary").textContent.toLowerCase() + (each.querySelector("p")?.textContent.toLowerCase() ?? "");
    each.hidden = !words.every((word) => text.includes(word));
  }
  for (const section of document.querySelectorAll(".api")) {
    section.hidden = ![...section.querySelectorAll(".operation")].some((each) => !each.hidden);
  }
});

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.matches("details")) {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", openTarget);
openTarget();

// What the form asks for: the address, and the options of the request.
function request(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams(), headers = {};
  for (const field of form.querySelectorAll("[data-in]")) {
    const { in: place, name } = field.dataset, value = field.value.trim();
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value && place === "header") headers[name] = value;
    // Several values of one name stand between spaces.
    else if (value) for (const part of name === "job" ? value.split(/\s+/) : [value]) query.append(name, part);
  }
  const body = form.querySelector("textarea");
  if (body) headers["Content-Type"] = body.dataset.type;
  const address = `${root}${path}${query.size ? `?${query}` : ""}`;
  return [address, { method: form.dataset.method, headers, body: body?.value, credentials: "same-origin" }];
}

// A stream of events does not end by itself: what has come after some seconds is shown.
async function read(answer, aborter) {
  const reader = answer.body?.getReader(), decoder = new TextDecoder();
  let text = "";
  const late = setTimeout(() => aborter.abort(), LONGEST_MS);
  try {
    while (reader && text.length < MOST) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
    }
    reader?.cancel();
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
  clearTimeout(late);
  return text.length < MOST ? text : `${text.slice(0, MOST)}\n…`;
}

function readable(text, type) {
  if (!/json/.test(type)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

for (const form of document.querySelectorAll(".try")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.querySelector(".answer"), status = shown.querySelector("[role=status]"), content = shown.querySelector("pre");
    const [address, options] = request(form), began = performance.now(), aborter = new AbortController();
    shown.hidden = false;
    content.hidden = true;
    status.textContent = `${options.method} ${address} …`;
    try {
      const answer = await fetch(address, { ...options, signal: aborter.signal });
      const text = await read(answer, aborter);
      status.textContent = `${options.method} ${address}: ${answer.status} ${answer.statusText}, ${Math.round(performance.now() - began)} ms`;
      content.textContent = readable(text, answer.headers.get("Content-Type") ?? "");
      content.hidden = !text;
    } catch {
      status.textContent = `${options.method} ${address}: the service does not answer`;
    }
  });
}
