/* Draws every figure of the page from the JSON next to it, what is on the screen first and one
   after the other, so that the text can be read at once; nothing is fetched. */
(function () {
  "use strict";
  const waiting = [...document.querySelectorAll(".plot[data-figure]")];
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["resetScale2d"]],
    plotlyServerURL: "",
  };

  /* A packed text, as lab.report.html writes it. */
  window.guardText = async function (id) {
    const text = document.getElementById(id).textContent;
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  };

  /* What a figure looks like: on the page, and in a file as wide as a column of a paper. */
  let look = null;

  async function load() {
    const script = document.createElement("script");
    look = JSON.parse(await window.guardText("plotly-look"));
    script.textContent = await window.guardText("plotly");
    document.body.append(script);
  }

  window.guardReady = load();

  /* Draws a figure under a name, which stands below it with a button that saves it. */
  window.guardDraw = async function (place, { data, layout }, name) {
    layout.template = look.template;
    if (place.clientWidth < 420) layout.font = { ...layout.font, size: 11 };
    await window.Plotly.newPlot(place, data, layout, config);
    const file = { ...look.image, height: layout.height, filename: name };
    const save = document.createElement("button"), line = document.createElement("p");
    Object.assign(save, { type: "button", textContent: "Save SVG" });
    save.onclick = () => window.Plotly.downloadImage(place, file);
    line.className = "figure-name";
    line.append(name + " ", save);
    if (place.nextElementSibling?.className === line.className) place.nextElementSibling.remove();
    place.after(line);
  };

  async function draw(place) {
    const figure = JSON.parse(await window.guardText(place.dataset.figure));
    await window.guardReady;
    await window.guardDraw(place, figure, place.id);
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

  /* Paper cannot be clicked and is narrower than a screen: folded parts are opened, figures get
     the width of a page, and what waits is drawn at once. */
  const PAPER = 680;
  const figures = () => [...document.querySelectorAll(".plot.js-plotly-plot")];
  window.addEventListener("beforeprint", () => {
    waiting.splice(0).forEach(draw);
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
    figures().forEach((place) => window.Plotly.relayout(place, { width: PAPER, autosize: false }));
  });
  window.addEventListener("afterprint", () => {
    figures().forEach((place) => window.Plotly.relayout(place, { width: null, autosize: true }));
  });

  /* Only after the first paint, which holds the summary. */
  window.requestAnimationFrame(() => window.setTimeout(drawAll));
})();
