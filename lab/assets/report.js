/* Draws every figure of the page from the JSON next to it, what is on the screen first and one
   after the other, so that the text can be read at once; nothing is fetched. */
(function () {
  "use strict";
  var config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
    plotlyServerURL: "",
  };
  var waiting = Array.from(document.querySelectorAll(".plot[data-figure]"));

  function fontSize(figure, width) {
    if (width < 420) {
      figure.layout.font = Object.assign({}, figure.layout.font, { size: 11 });
    }
  }

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

  window.guardConfig = config;
  window.guardReady = load();

  async function draw(place) {
    const figure = JSON.parse(await window.guardText(place.dataset.figure));
    await window.guardReady;
    figure.layout.template = window.guardTemplate;
    fontSize(figure, place.clientWidth);
    return window.Plotly.newPlot(place, figure.data, figure.layout, config);
  }

  /* A figure that comes near the screen goes to the head of the queue. */
  var near = new IntersectionObserver(
    function (entries) {
      entries.forEach(function (entry) {
        var index = waiting.indexOf(entry.target);
        if (entry.isIntersecting && index > 0) {
          waiting.unshift(waiting.splice(index, 1)[0]);
        }
      });
    },
    { rootMargin: "300px" }
  );
  waiting.forEach(function (place) {
    near.observe(place);
  });

  function drawNext() {
    var place = waiting.shift();
    if (!place) {
      near.disconnect();
      document.documentElement.dataset.drawn = "all";
      return;
    }
    near.unobserve(place);
    draw(place).then(function () {
      window.setTimeout(drawNext, 0);
    });
  }

  /* Folded parts are opened for print: paper cannot be clicked. What waits is drawn at once. */
  window.addEventListener("beforeprint", function () {
    waiting.splice(0).forEach(draw);
    document.querySelectorAll("details").forEach(function (part) {
      part.open = true;
    });
  });

  /* Only after the first paint, which holds the summary. */
  window.requestAnimationFrame(function () {
    window.setTimeout(() => window.guardReady.then(drawNext), 0);
  });
})();
