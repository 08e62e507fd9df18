/* Draws every figure of the page from the JSON next to it, what is on the screen first and one
   after the other, so that the text can be read at once; nothing is fetched. */
(function () {
  "use strict";
  const waiting = [...document.querySelectorAll(".plot[data-figure]")];
  window.guardConfig = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
    plotlyServerURL: "",
  };

  /* A packed text, as lab.report.html writes it. */
  window.guardText = async function (id) {
    const text = document.getElementById(id).textContent;
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  };

  async function load() {
    const script = document.createElement("script");
    window.guardTemplate = JSON.parse(await window.guardText("plotly-template"));
    script.textContent = await window.guardText("plotly");
    document.body.append(script);
  }

  window.guardReady = load();

  async function draw(place) {
    const { data, layout } = JSON.parse(await window.guardText(place.dataset.figure));
    await window.guardReady;
    layout.template = window.guardTemplate;
    if (place.clientWidth < 420) layout.font = { ...layout.font, size: 11 };
    return window.Plotly.newPlot(place, data, layout, window.guardConfig);
  }

  /* A figure that comes near the screen goes to the head of the queue. */
  const near = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      const index = waiting.indexOf(target);
      if (index > 0) waiting.unshift(...waiting.splice(index, 1));
    }
  }, { rootMargin: "300px" });
  waiting.forEach((place) => near.observe(place));

  async function drawAll() {
    await window.guardReady;
    while (waiting.length) {
      const place = waiting.shift();
      near.unobserve(place);
      await draw(place);
      await new Promise((next) => window.setTimeout(next));
    }
    near.disconnect();
    document.documentElement.dataset.drawn = "all";
  }

  /* Folded parts are opened for print: paper cannot be clicked. What waits is drawn at once. */
  window.addEventListener("beforeprint", () => {
    waiting.splice(0).forEach(draw);
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
  });

  /* Only after the first paint, which holds the summary. */
  window.requestAnimationFrame(() => window.setTimeout(drawAll));
})();
