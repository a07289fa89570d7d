// Runs before the page is painted: the colours that were chosen, or the system's.
(() => {
  const chosen = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const dark = matchMedia("(prefers-color-scheme: dark)");

  function apply() {
    const theme = chosen() || (dark.matches ? "dark" : "light");
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("theme", { detail: theme }));
  }

  function label(button) {
    button.setAttribute("aria-label", `Colours: ${chosen() || "system"}`);
    button.title = button.getAttribute("aria-label");
  }

  // What only scripts can do is shown only where they run.
  document.documentElement.classList.add("scripted");
  apply();
  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    label(button);
    button.addEventListener("click", () => {
      const next = { null: "light", light: "dark", dark: null }[chosen()];
      if (next) localStorage.setItem("theme", next);
      else localStorage.removeItem("theme");
      apply();
      label(button);
    });
    localTimes();
  });
  // Told by scripts that put other times onto the page.
  document.addEventListener("times", localTimes);

  function localTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) localTime(time);
  }

  // Times are the database's, in UTC; people live in zones.
  function localTime(time) {
    if (!/UTC$/.test(time.textContent)) return;
    time.title = time.textContent;
    time.textContent = new Date(time.getAttribute("datetime")).toLocaleString();
  }
})();
