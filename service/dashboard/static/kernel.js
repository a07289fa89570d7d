// The times of a kernel beside the best ones: to know these, a long search is read as a whole.
import { ask, replace } from "./service.js";

const times = document.getElementById("times");
const answer = await ask(times.dataset.fragment);
if (answer?.ok) replace(times, await answer.text());
