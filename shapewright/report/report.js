"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const themes = read("themes");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hovers = matchMedia("(hover: hover)").matches;
  // On a touch screen the buttons would cover the legend, and a finger on a figure is there to scroll the page.
  const config = hovers ? read("config") : { ...read("config"), displayModeBar: false };
  const theme = () => themes[dark.matches ? "dark" : "light"];

  // "font.color" of the theme becomes {font: {color}} of the layout.
  function themed(layout) {
    for (const [path, value] of Object.entries(theme())) {
      const names = path.split(".");
      const last = names.pop();
      names.reduce((place, name) => (place[name] ??= {}), layout)[last] = value;
    }
    return layout;
  }

  function draw(place) {
    if (place.dataset.drawn) return;
    place.dataset.drawn = "yes";
    const source = document.querySelector(`script[data-figure="${place.id}"]`);
    const figure = JSON.parse(source.textContent);
    if (!hovers) figure.layout.dragmode = false;
    Plotly.newPlot(place, figure.data, themed(figure.layout), config);
  }

  const places = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "600px" },
  );
  places.forEach((place) => watcher.observe(place));
  addEventListener("beforeprint", () => places.forEach(draw));
  dark.addEventListener("change", () => {
    places.filter((place) => place.dataset.drawn).forEach((place) => Plotly.relayout(place, theme()));
  });
})();
