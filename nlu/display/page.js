"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 580, HEIGHT = 320, LEFT = 58, RIGHT = 16, TOP = 14, BOTTOM = 40;
const valued = data.trials.filter((trial) => trial.value !== null);

function element(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function tag(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function short(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2).replace("+", "");
}

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++)
    found.push(Number((index * step).toPrecision(12)));
  return found;
}

function span(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const pad = high > low ? (high - low) * 0.07 : Math.abs(high) * 0.05 || 1;
  return [low - pad, high + pad];
}

function classes(trial, kind) {
  return `${kind} ${trial.state}${trial.number === data.best ? " best" : ""}`;
}

function chart(id, xs, ys, xlabel) {
  const x = (value) => LEFT + (WIDTH - LEFT - RIGHT) * (value - xs[0]) / (xs[1] - xs[0]);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - ys[0]) / (ys[1] - ys[0]);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  for (const mark of ticks(...ys, 5))
    svg.append(
      element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(mark), y2: y(mark) }),
      element("text", { x: LEFT - 8, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  for (const mark of ticks(...xs, 6).filter((mark) => mark >= 0 && Number.isInteger(mark)))
    svg.append(element("text", { x: x(mark), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, short(mark)));
  svg.append(
    element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
    element("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, xlabel));
  document.getElementById(id).append(svg);
  return { svg, x, y };
}

function legend(id, states) {
  const line = tag("p", { class: "legend" });
  for (const state of states) {
    const colour = state === "best" || state === "best so far" ? "best" : state === "waiting" ? "running" : state;
    line.append(tag("span", {}, tag("i", { style: `color: var(--${colour})` }), state));
  }
  document.getElementById(id).append(line);
}

function nothing(id, sentence) {
  document.getElementById(id).append(tag("p", { class: "remark" }, sentence));
}

function statesOf(trials) {
  return ["complete", "pruned", "running", "waiting", "failed"].filter(
    (state) => trials.some((trial) => trial.state === state));
}

function history() {
  if (!valued.length) return nothing("history", "No trial has reported a value.");
  legend("history", [...statesOf(data.trials), ...(data.best === null ? [] : ["best so far"])]);
  const last = Math.max(...data.trials.map((trial) => trial.number));
  const { svg, x, y } = chart("history", [-0.5, last + 0.5], span(valued.map((trial) => trial.value)), "trial");
  let best = null, path = "";
  for (const trial of valued.filter((each) => each.state === "complete")) {
    const better = best === null || (data.maximize ? trial.value > best : trial.value < best);
    if (better) {
      path += best === null ? `M${x(trial.number)} ${y(trial.value)}` : `H${x(trial.number)}V${y(trial.value)}`;
      best = trial.value;
    }
  }
  if (path) svg.append(element("path", { class: "so-far", d: `${path}H${x(last)}` }));
  for (const trial of valued)
    svg.append(element("circle", { class: classes(trial, "dot"), "data-trial": trial.number,
      cx: x(trial.number), cy: y(trial.value), r: trial.number === data.best ? 6 : 4.5 }));
  for (const trial of data.trials.filter((each) => each.state === "failed")) {
    const cx = x(trial.number), cy = HEIGHT - BOTTOM - 8;
    svg.append(element("path", { class: "dot failed", "data-trial": trial.number,
      d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8` }));
  }
}

function intermediate() {
  const shown = data.trials.filter((trial) => trial.steps.length && trial.state !== "failed");
  if (!shown.length) return nothing("intermediate", "No trial has reported a value.");
  legend("intermediate", [...statesOf(shown), ...(data.best === null ? [] : ["best"])]);
  const points = shown.flatMap((trial) => trial.steps);
  const most = Math.max(...points.map((point) => point[0]));
  const { svg, x, y } = chart("intermediate", [0, most * 1.03], span(points.map((point) => point[1])), "examples seen");
  const order = { pruned: 0, running: 1, waiting: 1, complete: 2 };
  shown.sort((a, b) => (a.number === data.best) - (b.number === data.best) || order[a.state] - order[b.state]);
  for (const trial of shown) {
    const path = "M" + trial.steps.map(([step, value]) => `${x(step)} ${y(value)}`).join("L");
    const [step, value] = trial.steps.at(-1);
    svg.append(
      element("path", { class: classes(trial, "curve"), d: path, "data-trial": trial.number }),
      element("circle", { class: classes(trial, "dot"), cx: x(step), cy: y(value), r: 3.5, "data-trial": trial.number }),
      element("path", { class: "hit", d: path, "data-trial": trial.number }));
  }
}

function parallel() {
  if (!valued.length || !data.params.length) return nothing("parallel", "There is no trial with parameters and a value.");
  const axes = [...data.params, { name: data.metric, ticks: [] }];
  const width = Math.max(1180, axes.length * 150), height = 380, top = 44, foot = 44, side = 30, end = 90;
  const x = (place) => side + (width - side - end) * place / (axes.length - 1);
  const y = (share) => height - foot - (height - foot - top) * share;
  const values = valued.map((trial) => trial.value), low = Math.min(...values), high = Math.max(...values);
  const share = (value) => high > low ? (value - low) / (high - low) : 0.5;
  axes.at(-1).ticks = high > low ? ticks(low, high, 5).map((mark) => [share(mark), short(mark)]) : [[0.5, short(low)]];
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: `min-width: ${axes.length * 130}px` });
  const sorted = [...valued].sort((a, b) => (a.state === "complete") - (b.state === "complete") || goodness(a) - goodness(b));
  function goodness(trial) { return data.maximize ? share(trial.value) : 1 - share(trial.value); }
  for (const trial of sorted) {
    const heights = [...trial.places, share(trial.value)];
    const path = "M" + heights.map((height, place) => `${x(place)} ${y(height)}`).join("L");
    const mix = `color-mix(in srgb, rgb(var(--high)) ${Math.round(100 * goodness(trial))}%, rgb(var(--low)))`;
    const drawn = element("path", { class: classes(trial, "curve"), d: path, "data-trial": trial.number });
    if (trial.number !== data.best) drawn.style.stroke = mix;
    if (trial.state !== "complete") drawn.style.strokeDasharray = "5 4";
    svg.append(drawn, element("path", { class: "hit", d: path, "data-trial": trial.number }));
  }
  axes.forEach((axis, place) => {
    svg.append(element("line", { class: "axis", x1: x(place), x2: x(place), y1: y(0), y2: y(1), "stroke-width": 1.5 }));
    const anchor = place === 0 ? "start" : place === axes.length - 1 ? "end" : "middle";
    const shift = place === 0 ? -side + 4 : place === axes.length - 1 ? end - 4 : 0;
    svg.append(element("text", { class: "name", x: x(place) + shift, y: 20, "text-anchor": anchor }, axis.name));
    const absent = place < data.params.length && valued.some((trial) => trial.places[place] < 0);
    for (const [height, text] of [...axis.ticks, ...(absent ? [[-0.1, "not set"]] : [])])
      svg.append(element("text", { class: "halo", x: x(place) + 6, y: y(height) + 4 }, text.length > 18 ? `${text.slice(0, 15)}...` : text));
  });
  document.getElementById("parallel").append(tag("div", { class: "scroll" }, svg));
  nothing("parallel", "The stronger the colour, the better; the best trial is red, dashed ones are not complete.");
}

function importances() {
  const section = document.getElementById("importances");
  if (!data.importances.length) return;
  const shown = data.importances.slice(0, 20), most = shown[0][1], row = 28, names = 260, width = 1180;
  const svg = element("svg", { viewBox: `0 0 ${width} ${shown.length * row + 6}`, role: "img" });
  shown.forEach(([name, value], place) => {
    const y = place * row + 4, length = (width - names - 60) * value / most;
    svg.append(
      element("text", { class: "name", x: names - 10, y: y + 15, "text-anchor": "end" }, name),
      element("rect", { class: "bar", x: names, y, width: Math.max(length, 1), height: row - 8, rx: 3 }),
      element("text", { x: names + length + 8, y: y + 15 }, value.toFixed(2)));
  });
  svg.style.minWidth = "620px";
  section.append(tag("div", { class: "scroll" }, svg));
}

function trials() {
  const table = document.querySelector("#trials table");
  const withSd = data.trials.some((trial) => trial.sd !== null), withError = data.trials.some((trial) => trial.error);
  const columns = [
    ["trial", (trial) => trial.number], ["state", (trial) => trial.state], [data.metric, (trial) => trial.value],
    ...(withSd ? [["sd", (trial) => trial.sd]] : []),
    ["examples", (trial) => trial.examples], ["wall", (trial) => trial.wall_s, (trial) => trial.wall],
    ...data.params.map(({ name }) => [name, (trial) => trial.params[name] ?? null]),
    ...(withError ? [["error", (trial) => trial.error || null]] : [])];
  const isText = columns.map(([, read]) => data.trials.some((trial) => typeof read(trial) === "string"));
  const head = tag("tr"), body = tag("tbody");
  columns.forEach(([name, read], place) => {
    const button = tag("button", { type: "button" }, name), cell = tag("th", isText[place] ? { class: "text" } : {}, button);
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "ascending";
      head.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      fill((a, b) => compare(read(a), read(b), down ? -1 : 1));
    });
    head.append(cell);
  });
  table.append(tag("thead", {}, head), body);

  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  }

  function fill(order) {
    body.replaceChildren(...[...data.trials].sort(order).map((trial) => {
      const cells = columns.map(([name, read, show], place) => tag("td",
        { class: name === "error" ? "text error" : isText[place] ? "text" : "" }, show ? show(trial) : cellText(read(trial), name)));
      return tag("tr", { "data-trial": trial.number, class: trial.number === data.best ? "is-best" : "" }, ...cells);
    }));
  }

  function cellText(value, name) {
    if (name === "error") return value ?? "";
    return name === data.metric && typeof value === "number" && Math.abs(value) < 1000 ? value.toFixed(4) : short(value);
  }

  const ranks = ["complete", "pruned", "running", "waiting", "failed"];
  fill((a, b) => ranks.indexOf(a.state) - ranks.indexOf(b.state) || compare(a.value, b.value, data.maximize ? -1 : 1));
}

function hovering() {
  const tip = document.getElementById("tip");
  let current = null;
  function show(number) {
    if (number === current) return;
    document.querySelectorAll(".on").forEach((each) => each.classList.remove("on"));
    document.querySelectorAll("svg").forEach((svg) => svg.classList.toggle("dim", number !== null));
    current = number;
    tip.hidden = number === null;
    if (number === null) return;
    document.querySelectorAll(`[data-trial="${number}"]:not(.hit)`).forEach((each) => each.classList.add("on"));
    const trial = data.trials.find((each) => each.number === Number(number));
    const lines = [`${data.metric} ${short(trial.value)}${trial.sd === null ? "" : ` (sd ${short(trial.sd)})`}`,
      `${short(trial.examples)} examples, ${trial.wall}`,
      ...Object.entries(trial.params).map(([name, value]) => `${name} = ${short(value)}`), trial.error];
    tip.replaceChildren(tag("b", {}, `trial ${trial.number}, ${trial.state}`),
      ...lines.filter(Boolean).map((line) => tag("div", {}, line)));
  }
  document.addEventListener("mousemove", (event) => {
    const found = event.target.closest("[data-trial]");
    show(found ? found.getAttribute("data-trial") : null);
    if (!found) return;
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    const top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.max(top, 4)}px`;
  });
  document.documentElement.addEventListener("mouseleave", () => show(null));
}

// Many curves on one another must still show where they are dense.
document.documentElement.style.setProperty("--strength", Math.min(0.7, Math.max(0.18, 25 / data.trials.length)));
history();
intermediate();
parallel();
importances();
trials();
hovering();
