// Requests to the service: its prefix, its errors, and the banner that it cannot be reached.
export const root = document.body.dataset.root;
const banner = document.getElementById("lost");

export function reachable(yes) {
  banner.hidden = yes;
}

// The answer, or null if the service cannot be reached; a session that has ended leads to the sign-in page.
export async function ask(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", signal: AbortSignal.timeout(30000), ...options });
  } catch {
    reachable(false);
    return null;
  }
  reachable(answer.status !== 503);
  if (answer.status === 401) location.assign(`${root}/login?next=${encodeURIComponent(location.pathname.slice(root.length) + location.search)}`);
  return answer.status === 503 ? null : answer;
}

export function post(url, body, type = "application/json") {
  return ask(url, { method: "POST", body, headers: { "Content-Type": type } });
}

// The detail of a problem document, in one line.
export async function reason(answer) {
  const problem = await answer.json().catch(() => ({}));
  return problem.detail || problem.title || `the service answered ${answer.status}`;
}

// Shows new content in a part of the page; what has the focus, and how far its table was scrolled, stays.
export function replace(container, html) {
  const scrolled = container.querySelector(".scroll")?.scrollLeft ?? 0;
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  container.innerHTML = html;
  const table = container.querySelector(".scroll");
  if (table) table.scrollLeft = scrolled;
  document.dispatchEvent(new CustomEvent("times"));
  if (!focused) return;
  const same = [...container.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused.getAttribute("href"));
  (same ?? table)?.focus({ preventScroll: true });
}

// Calls work() every so many seconds while the page is visible, one call at a time.
export function every(seconds, work) {
  let busy = false;
  const once = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      await work();
    } finally {
      busy = false;
    }
  };
  setInterval(once, 1000 * seconds);
  document.addEventListener("visibilitychange", once);
}
