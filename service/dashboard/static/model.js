// Keeps the layers of a model up to date until the job has ended.
import { ask, every, replace } from "./service.js";

const EVERY_S = 2, ENDED_EVERY_S = 15;
const model = document.getElementById("model");
const ended = () => document.getElementById("standing").dataset.ended === "yes";

async function refresh() {
  const answer = await ask(model.dataset.fragment + location.search);
  if (answer?.ok) replace(model, await answer.text());
}

every(EVERY_S, async () => { if (!ended()) await refresh(); });
// Somebody may resume it.
every(ENDED_EVERY_S, async () => { if (ended()) await refresh(); });
