// Follows a job: its events update the numbers at once and invalidate the figures.
import { invalidateAll } from "./figures.js";
import { ask, every, post, reachable, reason, replace, root } from "./service.js";

const job = document.getElementById("job").dataset;
const ENDED = ["COMPLETED", "CANCELLED", "FAILED"];
const MOST_LOGGED = 400;
const show = (id, text) => { document.getElementById(id).textContent = text; };
const number = (value) => value.toLocaleString("en");
let after = Number(job.after), source = null, timer = null, retry_s = 1, progress = null, heard_ms = 0;

// -- events ----------------------------------------------------------------------------------------------------
function follow() {
  source = new EventSource(`${root}/v1/jobs/${job.id}/events?after=${after}`);
  source.onopen = () => { retry_s = 1; reachable(true); };
  // Not left to the browser: it would reconnect to an ended job's stream for ever, and never after one refusal.
  source.onerror = () => {
    leave();
    if (job.ended === "yes") return;
    timer = setTimeout(check, 1000 * retry_s);
    retry_s = Math.min(15, 2 * retry_s);
  };
  for (const [kind, apply] of Object.entries(kinds)) {
    source.addEventListener(kind, (message) => {
      after = Number(message.lastEventId);
      const event = JSON.parse(message.data);
      if ((event.data.position ?? Number(job.task)) === Number(job.task) || kind === "state") apply(event);
    });
  }
}

// A browser opens six connections to a service: streams of hidden pages would use them up.
function leave() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

// The job's current state; a page that shows another one is reloaded.
async function check() {
  if (source || document.hidden) return;
  const answer = await ask(`${root}/v1/jobs/${job.id}`);
  if (answer && answer.ok) {
    const { state } = await answer.json();
    if (ENDED.includes(state) !== (job.ended === "yes")) return location.reload();
    if (job.ended === "no") follow();
  } else {
    timer = setTimeout(check, 1000 * retry_s);
    retry_s = Math.min(15, 2 * retry_s);
  }
}

const kinds = {
  progress(event) {
    progress = event.data;
    heard_ms = performance.now();
    showProgress(progress);
    invalidateAll();
  },
  trials() { instancesStale = true; invalidateAll(); },
  baselines(event) { log(event, "baselines measured"); invalidateAll(); },
  importance() { invalidateAll(); },
  log(event) { log(event, event.data.message); },
  library(event) {
    log(event, `library ${event.data.digest.slice(0, 12)} is built`);
    // The library, its kernels and its dispatcher are there now: the page has more parts.
    if (event.data.search_task_id === Number(job.row)) setTimeout(() => location.reload(), 300);
  },
  state(event) {
    showState(event.data.state);
    log(event, event.data.state.toLowerCase() + (event.data.error ? `: ${event.data.error}` : ""));
    if (["COMPLETED", "FAILED"].includes(event.data.state)) setTimeout(() => location.reload(), 300);
  },
};

// -- what is shown --------------------------------------------------------------------------------------------------
function showProgress(data) {
  show("trials", number(data.trials) + (data.trials_budget ? ` of ${number(data.trials_budget)}` : ""));
  show("failed", number(data.failed));
  show("coverage", data.interval_coverage === undefined ? "–" : `${Math.round(100 * data.interval_coverage)} %`);
  show("round", number(data.round));
  // Events of earlier versions do not say it in words.
  show("phase", data.activity ?? data.phase);
  // Events of earlier versions have no ratios.
  const { label, ratios = [], cautions = [] } = data.outcome ?? {};
  const shown = ratios.map(({ figure: value, rival }, index) =>
    figure(value, index === ratios.length - 1 ? `${rival} (${label})` : rival));
  if (shown.length) document.getElementById("headline").replaceChildren(...shown);
  const warned = document.getElementById("cautions");
  warned.hidden = !cautions.length;
  warned.textContent = cautions.join("; ");
  showTime();
}

function figure(value, what) {
  const whole = document.createElement("span"), strong = document.createElement("strong");
  strong.textContent = value;
  whole.append(strong, ` ${what}`);
  return whole;
}

function showTime() {
  if (!progress || progress.phase === "done" || job.ended === "yes") return;
  const elapsed_s = progress.elapsed_s + (performance.now() - heard_ms) / 1000;
  show("elapsed", duration(elapsed_s));
  const shares = [[progress.trials, progress.trials_budget], [elapsed_s, progress.seconds_budget]].filter(([, all]) => all);
  const share = Math.min(1, Math.max(0, ...shares.map(([done, all]) => done / all)));
  document.getElementById("progress").value = share;
  const byTrials = progress.trials_budget && progress.trials ? progress.elapsed_s * (progress.trials_budget / progress.trials - 1) : Infinity;
  const bySeconds = progress.seconds_budget ? progress.seconds_budget - elapsed_s : Infinity;
  const left_s = Math.max(0, Math.min(byTrials, bySeconds));
  show("left", Number.isFinite(left_s) ? `about ${duration(left_s)} left` : "");
}

function duration(seconds) {
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function showState(state) {
  const badge = document.getElementById("state"), ended = ENDED.includes(state);
  badge.textContent = state.toLowerCase();
  badge.className = `state ${state.toLowerCase()}`;
  job.ended = ended ? "yes" : "no";
  button("cancel").hidden = ended || state === "CANCELLING";
  button("resume").hidden = !["CANCELLED", "FAILED"].includes(state);
  document.getElementById("bar").hidden = ended;
}

function log(event, text) {
  const line = document.createElement("li"), time = document.createElement("time"), kind = document.createElement("span");
  time.dateTime = event.created_at;
  time.textContent = new Date(event.created_at).toLocaleString();
  kind.className = "kind";
  kind.textContent = event.kind;
  line.append(time, " ", kind, ` ${text}`);
  const list = document.getElementById("log");
  list.append(line);
  while (list.children.length > MOST_LOGGED) list.firstElementChild.remove();
  list.parentElement.scrollTop = list.parentElement.scrollHeight;
}

// Every instance with its kernel and its times, anew when there may be other times.
const instances = document.getElementById("instances");
let instancesStale = true;

async function refreshInstances() {
  if (!instancesStale) return;
  instancesStale = false;
  const answer = await ask(instances.dataset.fragment);
  if (answer?.ok) replace(instances, await answer.text());
  else instancesStale = !answer;
}

// -- what can be done -------------------------------------------------------------------------------------------------
const button = (action) => document.querySelector(`[data-action="${action}"]`);

async function act(action) {
  const refused = document.getElementById("refused");
  button(action).disabled = true;
  const answer = await post(`${root}/v1/jobs/${job.id}/${action}`);
  button(action).disabled = false;
  refused.hidden = Boolean(answer && answer.ok);
  if (!answer) refused.textContent = `The job could not be asked to ${action}: the service does not answer.`;
  else if (!answer.ok) refused.textContent = await reason(answer);
  else {
    showState((await answer.json()).state);
    if (action === "resume") location.reload();
  }
}

document.getElementById("notes").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { tags, note } = event.target.elements, refused = document.getElementById("refused");
  const body = JSON.stringify({ tags: tags.value.split(/[\s,]+/).filter(Boolean), note: note.value });
  const answer = await ask(`${root}/v1/jobs/${job.id}`, { method: "PATCH", body, headers: { "Content-Type": "application/json" } });
  if (answer?.ok) return location.reload();
  refused.hidden = false;
  refused.textContent = answer ? await reason(answer) : "The note could not be saved: the service does not answer.";
});
for (const action of ["cancel", "resume"]) button(action).addEventListener("click", () => act(action));
document.querySelector(".log").scrollTop = document.querySelector(".log").scrollHeight;
if (job.ended === "no") follow();
document.addEventListener("visibilitychange", () => (document.hidden ? leave() : check()));
every(1, async () => showTime());
every(3, refreshInstances);
refreshInstances();
// Somebody may resume it elsewhere.
every(10, async () => { if (job.ended === "yes" && document.getElementById("state").textContent !== "completed") await check(); });
