"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
function tag(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function short(value, asPower = false) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (!asPower && size >= 1e-3 && size < 1e6) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0*e/, "e").replace("+", "");
}

// Numbers of one column have one form, so that they can be compared at a glance.
const powers = new Set(data.params.filter((name) => data.trials.some((trial) => {
  const value = trial.params[name];
  return typeof value === "number" && value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6) && !Number.isInteger(value);
})));

function trials() {
  const table = document.querySelector("#trials table");
  const withSd = data.trials.some((trial) => trial.sd !== null), withError = data.trials.some((trial) => trial.error);
  const columns = [
    ["trial", (trial) => trial.number], ["state", (trial) => trial.state], [data.metric, (trial) => trial.value],
    ...(withSd ? [["sd", (trial) => trial.sd]] : []),
    ["examples", (trial) => trial.examples], ["wall", (trial) => trial.wall_s, (trial) => trial.wall],
    ...(data.quantities ?? []).map((name) => [name, (trial) => trial.measured[name] ?? null]),
    ...(data.front?.length ? [["front", (trial) => data.front.includes(trial.number) ? "front" : null]] : []),
    ...(data.trials.some((trial) => trial.broken?.length) ? [["breaks", (trial) => trial.broken.join(", ") || null]] : []),
    ...data.params.map((name) => [name, (trial) => trial.params[name] ?? null, (trial) => short(trial.params[name], powers.has(name))]),
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
      return tag("tr", { "data-trial": trial.number, class: trial.number === data.best || data.front?.includes(trial.number) ? "is-best" : "" }, ...cells);
    }));
  }

  function cellText(value, name) {
    if (name === "error") return value ?? "";
    return name === data.metric && typeof value === "number" && Math.abs(value) < 1000 ? value.toFixed(4) : short(value);
  }

  const ranks = ["complete", "paused", "pruned", "failed", "running", "waiting"];
  const place = (trial) => data.front?.includes(trial.number) ? 0 : trial.broken?.length ? 2 : 1;
  fill((a, b) => ranks.indexOf(a.state) - ranks.indexOf(b.state) || place(a) - place(b) || compare(a.value, b.value, data.maximize ? -1 : 1));
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
    document.querySelectorAll(`[data-trial="${number}"]`).forEach((each) => each.classList.add("on"));
    const trial = data.trials.find((each) => each.number === Number(number));
    const lines = [`${data.metric} ${short(trial.value)}${trial.sd === null ? "" : ` (sd ${short(trial.sd)})`}`,
      `${short(trial.examples)} examples, ${trial.wall}`,
      ...(data.quantities ?? []).map((name) => `${name} ${short(trial.measured[name])}`),
      trial.broken?.length ? `breaks ${trial.broken.join(", ")}` : "",
      ...Object.entries(trial.params).map(([name, value]) => `${name} = ${short(value, powers.has(name))}`), trial.error];
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

trials();
hovering();
