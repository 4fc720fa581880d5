"use strict";

const SHOWN_LABELS = 12;
const HUES = [210, 35, 140, 320, 90, 265, 0, 180, 60, 295, 120, 240];
const byId = (id) => document.getElementById(id);

let served = null; // what GET /labels says of the run
let runs = null; // what it says of each run, where there are several
let roles = []; // the fields of a row, as they are typed
let asked = null; // the row that was asked about last
let turn = 0; // so that a late answer does not replace a newer one

function element(tag, properties = {}, ...children) {
  const { style = {}, ...others } = properties;
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(others)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  Object.assign(made.style, style);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function show(id, ...children) {
  byId(id).replaceChildren(...children);
  byId(id).hidden = children.length === 0;
}

function fail(sentence) {
  show("error", ...(sentence ? [sentence] : []));
}

async function send(path, asked) {
  const body = asked && runs ? { run: byId("runs").value, ...asked } : asked;
  const token = sessionStorage.getItem("token");
  const headers = { ...(body ? { "Content-Type": "application/json" } : {}) };
  if (token) headers.Authorization = `Bearer ${token}`;
  const options = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (response.status === 401) byId("token").hidden = false;
  const found = await response.json();
  if (!response.ok) throw new Error(found.detail ?? `status ${response.status}`);
  return found;
}

// What is typed: the fields of a row; where pairs are only ranked, a query and many candidates.

function fieldsOf(about) {
  return about.fields.find((names) => !names.includes("tokens")) ?? about.fields[0];
}

function drawFields() {
  const ranks = served.kind === "similarity";
  byId("fields").replaceChildren(...roles.flatMap((role, place) => {
    const isMany = ranks && place === 1;
    const own = served.columns[role];
    const name = isMany ? `${role}: candidates, one a line` : role;
    return [
      element("label", { htmlFor: role }, own && own !== role ? `${name} (${own})` : name),
      element("textarea", { id: role, rows: isMany ? 5 : 2, required: true, spellcheck: false }),
    ];
  }));
  byId(roles[0]).focus();
}

function typedRows() {
  const row = Object.fromEntries(roles.map((role) => [role, byId(role).value]));
  if (served.kind !== "similarity") return [row];
  const candidates = row[roles[1]].split("\n").filter((line) => line.trim());
  return candidates.map((line) => ({ ...row, [roles[1]]: line }));
}

// What was predicted.

function bars(row, found) {
  // After a reload there may be other labels than the page knows.
  const scores = served.labels.map((label) => [label, found[`probability_${label}`] ?? 0]);
  scores.sort((one, other) => other[1] - one[1]);
  const predicted = [found.prediction].flat();
  const line = ([label, value]) => element("li", { className: predicted.includes(label) ? "is-predicted" : "" },
    element("button", {
      type: "button", "aria-pressed": "false", title: `What speaks for ${label}?`,
      onclick: (event) => explain(row, { label }, event.currentTarget),
    },
    element("span", { className: "name" }, label),
    element("span", { className: "track" }, element("span", { className: "bar", style: { width: `${value * 100}%` } })),
    element("span", { className: "value" }, value.toFixed(4))));
  const list = element("ul", { className: "bars" }, ...scores.slice(0, SHOWN_LABELS).map(line));
  const rest = scores.slice(SHOWN_LABELS);
  if (!rest.length) return [list];
  const more = element("button", { type: "button", className: "more" }, `${rest.length} more labels`);
  more.onclick = () => { list.append(...rest.map(line)); more.remove(); };
  return [list, more];
}

function colourOf(type) {
  const hue = HUES[served.labels.indexOf(type) % HUES.length];
  return `hsl(${hue} 75% 55% / .32)`;
}

function spans(row, found) {
  const characters = Array.from(row[roles[0]]);
  const text = element("p", { className: "text" });
  let end = 0;
  for (const span of found.prediction) {
    text.append(characters.slice(end, span.first).join(""));
    end = span.last + 1;
    text.append(element("button", {
      type: "button", className: "span", "aria-pressed": "false", style: { background: colourOf(span.type) },
      title: `What speaks for this ${span.type}?`,
      onclick: (event) => explain(row, { span: [span.first, span.last] }, event.currentTarget),
    }, characters.slice(span.first, end).join(""), element("small", {}, span.type)));
  }
  text.append(characters.slice(end).join(""));
  const types = [...new Set(found.prediction.map((span) => span.type))];
  const legend = element("p", { className: "legend" }, ...types.map((type) => element("span", {},
    element("span", { className: "swatch", style: { background: colourOf(type) } }), type)));
  return types.length ? [text, legend] : [text, element("p", { className: "soft" }, "No span was found.")];
}

function ranked(rows, answers) {
  const order = answers.map((found, place) => [found.prediction, rows[place]]);
  order.sort((one, other) => other[0] - one[0]);
  return [element("ol", { className: "bars" }, ...order.map(([cosine, row]) => element("li", {}, element("button", {
    type: "button", "aria-pressed": "false", title: "What brings these texts together?",
    onclick: (event) => explain(row, {}, event.currentTarget),
  },
  element("span", { className: "name" }, row[roles[1]]),
  element("span", { className: "track" },
    element("span", { className: "bar", style: { width: `${Math.max(0, cosine) * 100}%` } })),
  element("span", { className: "value" }, cosine.toFixed(4))))))];
}

function drawFound(rows, answers) {
  const [row, found] = [rows[0], answers[0]];
  const title = element("h2", {}, "Prediction");
  if (served.kind === "similarity") return show("found", element("h2", {}, "Ranked"), ...ranked(rows, answers));
  if (served.kind === "spans") return show("found", title, ...spans(row, found));
  const said = [found.prediction].flat().map((one) => (typeof one === "number" ? String(Number(one.toPrecision(6))) : one));
  const answer = element("p", { className: "answer" }, said.join(", ") || "no label");
  if (!served.scores && !("similarity" in found)) return show("found", title, answer);
  if ("similarity" in found) {
    return show("found", title, answer, element("p", { className: "soft" }, `cosine ${found.similarity.toFixed(4)}`));
  }
  return show("found", title, answer, ...bars(row, found));
}

async function similar() {
  const candidates = byId("candidates").value.split("\n").filter((line) => line.trim());
  if (!candidates.length) return;
  const own = turn;
  fail("");
  try {
    const { found } = await send("similar", { query: byId("query").value, candidates });
    if (own !== turn) return;
    show("nearest", element("h2", {}, "Cosines"), element("ol", { className: "bars" }, ...found.map(({ text, score }) =>
      element("li", { className: "cosine" }, element("span", { className: "name" }, text),
        element("span", { className: "track" },
          element("span", { className: "bar", style: { width: `${Math.max(0, score) * 100}%` } })),
        element("span", { className: "value" }, score.toFixed(4))))));
  } catch (error) {
    if (own === turn) fail(error.message);
  }
}

// Why.

function highlighted(row, marks, role) {
  const characters = Array.from(row[role]);
  const strongest = Math.max(...marks.map((mark) => Math.abs(mark.attribution)), 1e-12);
  const text = element("p", { className: "text", id: `why-${role}` });
  let end = 0;
  for (const mark of marks.filter((one) => one.field === role)) {
    if (mark.end <= end) continue;
    text.append(characters.slice(end, mark.start).join(""));
    end = mark.end;
    const strength = (Math.abs(mark.attribution) / strongest) * 0.75;
    const side = mark.attribution < 0 ? "--against" : "--for";
    text.append(element("mark", {
      title: mark.attribution.toFixed(3), style: { background: `rgb(var(${side}) / ${strength.toFixed(3)})` },
    }, characters.slice(mark.start, end).join("")));
  }
  text.append(characters.slice(end).join(""));
  return text;
}

function swatch(side, text) {
  return element("span", {},
    element("span", { className: "swatch", style: { background: `rgb(var(${side}) / .75)` } }), text);
}

function drawWhy(row, why) {
  const sum = why.marks.reduce((total, mark) => total + mark.attribution, 0);
  show("why", element("h2", {}, `What speaks for it: ${why.score_of}`),
    ...roles.flatMap((role) => [
      roles.length > 1 ? element("p", { className: "role" }, role) : null, highlighted(row, why.marks, role),
    ]).filter((child) => child !== null),
    element("p", { className: "legend" }, swatch("--for", "for it"), swatch("--against", "against it"),
      element("span", { id: "sum" }, `${why.score.toFixed(3)} with these words, ${why.baseline.toFixed(3)} without them; `
        + `the highlights add up to ${sum.toFixed(3)}`)));
}

async function explain(row, what, button) {
  const own = turn;
  for (const other of document.querySelectorAll("[aria-pressed]")) other.setAttribute("aria-pressed", other === button);
  try {
    const why = await send("explain", { row, ...what });
    if (own !== turn || (button && button.getAttribute("aria-pressed") !== "true")) return;
    drawWhy(row, why);
  } catch (error) {
    if (own === turn) fail(error.message);
  }
}

async function predict() {
  const button = byId("ask").querySelector("button");
  if (!served || button.disabled) return;
  const own = ++turn;
  const rows = typedRows();
  if (!rows.length) return;
  button.disabled = true;
  byId("state").textContent = "";
  fail("");
  const began = performance.now();
  try {
    const { rows: answers } = await send("predict", { rows, scores: served.scores });
    if (own !== turn) return;
    byId("state").textContent = `${Math.round(performance.now() - began)} ms`;
    drawFound(rows, answers);
    asked = rows[0];
    show("why");
    if (served.kind === "spans" && !answers[0].prediction.length) return;
    const best = document.querySelector(".is-predicted button, .span, .bars button");
    explain(served.kind === "similarity" ? bestOf(rows, answers) : asked, {}, best);
  } catch (error) {
    if (own === turn) fail(error.message);
  } finally {
    button.disabled = false;
  }
}

function bestOf(rows, answers) {
  return rows[answers.reduce((best, found, place) => (found.prediction > answers[best].prediction ? place : best), 0)];
}

async function begin() {
  fail("");
  let about;
  try {
    about = await send("labels");
  } catch (error) {
    return fail(error.message);
  }
  byId("token").hidden = true;
  if (about.runs) {
    runs = about.runs;
    show("runs", ...Object.keys(runs).map((name) => element("option", { value: name }, name)));
  }
  return choose(runs ? runs[byId("runs").value] : about);
}

function choose(about) {
  turn += 1;
  for (const part of ["error", "found", "why", "nearest"]) show(part);
  // A run that only ranks does so in the first form.
  byId("similar").hidden = !about.compares || about.kind === "similarity";
  served = about;
  roles = fieldsOf(served);
  byId("run").textContent = served.run;
  const labels = served.labels.length ? `${served.labels.length} ${served.kind === "spans" ? "types" : "labels"}, ` : "";
  byId("about").textContent = `${served.checkpoint}, ${labels}texts are cut to ${served.max_len} tokens`;
  document.title = `${served.run} - nlu`;
  return drawFields();
}

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); predict(); });
byId("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); byId("ask").requestSubmit(); }
});
byId("similar").addEventListener("submit", (event) => { event.preventDefault(); similar(); });
byId("runs").addEventListener("change", () => choose(runs[byId("runs").value]));
byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("secret").value);
  begin();
});
begin();
