/* A problem's life: read from the packed text next to it (layout: lab/report/packing.py), filled
   into the figure that lab.figures.life drew as a template. Nothing is read before it is asked
   for, and nothing is fetched. */
(function () {
  "use strict";
  const ARRAYS = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array };
  const blocks = new Map();
  let templates = null;

  async function unpack(id) {
    const text = document.getElementById(id).textContent.trim();
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const whole = await new Response(inflated).arrayBuffer();
    let end = 4 + new DataView(whole).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, end - 4)));
    const columns = {};
    for (const [name, type, length, nValues] of head) {
      if (type === "json") {
        columns[name] = JSON.parse(new TextDecoder().decode(whole.slice(end, (end += length))));
        continue;
      }
      const take = (Kind, n) => new Kind(whole.slice(end, (end += n * Kind.BYTES_PER_ELEMENT)));
      const values = take(Float64Array, nValues);
      const codes = take(ARRAYS[type], length);
      columns[name] = nValues ? Float64Array.from(codes, (code) => values[code]) : codes;
    }
    return columns;
  }

  function block(id) {
    if (!blocks.has(id)) blocks.set(id, unpack(id));
    return blocks.get(id);
  }

  /* Plotly reads a subset of HTML in its labels, as lab.figures.style.safe knows. */
  function safe(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  /* One problem's visits out of a block, or null if it has none there. */
  function life(columns, problem) {
    const place = columns.problem.indexOf(problem);
    if (place < 0) return null;
    let start = 0;
    for (let i = 0; i < place; i++) start += columns.length[i];
    const end = start + columns.length[place];
    const visits = {};
    for (const name of Object.keys(columns)) {
      const column = columns[name];
      visits[name] = ofLife(name) ? column[place] : Array.from(column.subarray(start, end));
    }
    let visit = -1;
    visits.visit = visits.step.map((step) => (visit += step));
    return visits;
  }

  function ofLife(name) {
    return ["problem", "length", "correct", "texts"].includes(name) || name.startsWith("answer_");
  }

  /* The text of an answer where it is known, else its id; escaped. */
  function nameOf(own, answer) {
    const text = own.texts && own.texts[answer];
    return text ? safe(text) : "answer " + answer;
  }

  /* The areas of lab.life.vote_areas, from the bottom up: what they are, name, shares. */
  function areas(own) {
    const n = own.n_votes.map((count) => Math.max(count, 1));
    const unparseable = own.n_unparseable.map((count, i) => count / n[i]);
    const found = [];
    if ("votes_0" in own) {
      for (let k = 0; "votes_" + k in own; k++) {
        if (!own["answer_" + k]) break;
        const kind = k === 0 && own.correct ? "correct" : "answer";
        const share = own["votes_" + k].map((count, i) => count / n[i]);
        found.push({ kind, name: nameOf(own, own["answer_" + k] - 1), share });
      }
    } else {
      const right = own.label_accuracy.map((share) => share || 0);
      const wrong = own.match_rate.map((share, i) => (own.label_correct[i] ? 0 : share || 0));
      found.push({ kind: "correct", share: right }, { kind: "label", share: wrong });
    }
    const left = unparseable.map((share, i) =>
      found.reduce((rest, area) => rest - area.share[i], 1 - share));
    found.push({ kind: "other", share: left.map((share) => (share > 1e-9 ? share : 0)) });
    found.push({ kind: "unparseable", share: unparseable });
    return found.filter((area) => area.share.some((share) => share > 0));
  }

  function areaTraces(styles, own) {
    const fixed = ["correct", "other", "unparseable"];
    const spare = styles.filter((style) => !fixed.includes(style.meta));
    return areas(own).map((area) => {
      const known = fixed.includes(area.kind);
      const style = known ? styles.find((each) => each.meta === area.kind) : spare.shift();
      const name = area.name ? style.name.replace(/\{\}\d*/, () => area.name) : style.name;
      return { ...style, name, x: own.visit, y: area.share.map((share) => 100 * share) };
    });
  }

  /* One of the marks and lines under the areas; null where the life has none of them. */
  function markTrace(style, own) {
    if (style.mode === "lines") {
      const values = own[style.meta].map((value, i) => (own.visit[i] > 0 ? value : null));
      return { ...style, x: own.visit, y: values };
    }
    const route = style.meta.startsWith("route ") ? Number(style.meta.slice(6)) : null;
    const chosen = {
      right: (i) => own.label_correct[i],
      wrong: (i) => !own.label_correct[i] && own.label[i] > 0,
      changed: (i) => own.flipped[i],
    }[style.meta] || ((i) => own.visit[i] > 0 && own.route[i] === route);
    const places = own.visit.map((_, i) => i).filter(chosen);
    if (!places.length) return null;
    const shown = route === null ? own.label.map((label) => nameOf(own, label - 1)) : own.weight;
    return {
      ...style,
      x: places.map((i) => own.visit[i]),
      y: places.map(() => 0),
      customdata: places.map((i) => shown[i]),
    };
  }

  function figure(own) {
    templates = templates || JSON.parse(document.getElementById("life-templates").textContent);
    const template = templates["votes_0" in own ? "votes" : "shares"];
    const filled = template.data.filter((style) => style.stackgroup);
    const marks = template.data.filter((style) => !style.stackgroup);
    const layout = structuredClone(template.layout);
    const last = own.visit[own.visit.length - 1];
    for (const axis of Object.keys(layout).filter((key) => key.startsWith("xaxis"))) {
      layout[axis].range = [-0.5, last + 0.5];
    }
    const under = marks.map((style) => markTrace(style, own)).filter((trace) => trace);
    return { data: [...areaTraces(filled, own), ...under], layout };
  }

  window.guardLives = { unpack, block, life, figure };
})();
