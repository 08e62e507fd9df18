/* Draws every figure of the page from the JSON beside it, one after the other, so that the text
   can be read at once; nothing is fetched. */
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

  function drawNext() {
    var place = waiting.shift();
    if (!place) {
      document.documentElement.dataset.drawn = "all";
      return;
    }
    var source = document.getElementById(place.dataset.figure);
    var figure = JSON.parse(source.textContent);
    fontSize(figure, place.clientWidth);
    window.Plotly.newPlot(place, figure.data, figure.layout, config).then(function () {
      window.setTimeout(drawNext, 0);
    });
  }

  /* Folded parts are opened for print: paper cannot be clicked. */
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (part) {
      part.open = true;
    });
  });

  drawNext();
})();
