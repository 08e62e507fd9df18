// Draws the figures of a notebook's page from the data next to their placeholders.
for (const box of document.querySelectorAll(".nb-figure")) {
  const figure = JSON.parse(box.querySelector("script").textContent);
  const settings = { responsive: true, displaylogo: false, displayModeBar: false };
  Plotly.newPlot(box.firstElementChild, figure.data, figure.layout, settings);
}
