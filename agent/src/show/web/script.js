// The page of `plimsoll web`. Whatever comes from the agent is shown as text, never as markup: names of pods are strangers' words.
"use strict";

const POLL_MS = 1000;
const NODES_MS = 5000;
// Ten minutes of a running agent.
const POINTS_MAX = 600;
const WIDTH = 1000, HEIGHT = 220;

const STATUS = { running: "running", notRunning: "not running", evicted: "evicted, leaving", ending: "ending", stuck: "stuck" };

const at = (id) => document.getElementById(id);
const make = (name, text, className) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};

let timeline = null;
// In a cluster: the node that is shown.
let node = null;
let points = [];
let shownAt = null;
let latest = 0;

function bytes(value) {
  if (value === null || value === undefined) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const share = (value) => value === null || value === undefined ? "" : `${value.toFixed(1)} %`;
const cores = (milli) => milli === null || milli === undefined ? "" : (milli / 1000).toFixed(2);
const seconds = (ns) => `${(ns / 1e9).toFixed(3)} s`;

function problem(text) {
  at("problem").hidden = !text;
  at("problem").textContent = text;
}

async function load(path) {
  const response = await fetch(path);
  const text = await response.text();
  if (!response.ok) throw new Error(text.trim());
  return JSON.parse(text);
}

function path(points, key, x, y) {
  let text = "", isDown = false;
  for (const point of points) {
    if (point[key] === null || point[key] === undefined) { isDown = false; continue; }
    text += `${isDown ? "L" : "M"}${x(point.atNs).toFixed(1)} ${y(point[key]).toFixed(1)}`;
    isDown = true;
  }
  return text;
}

function drawCurve() {
  const curve = at("curve");
  curve.replaceChildren();
  const known = points.filter((point) => point.availableBytes !== null);
  if (known.length === 0) return;
  const begin = known[0].atNs, end = Math.max(points[points.length - 1].atNs, begin + 1);
  const top = Math.max(1, ...points.flatMap((point) => [point.availableBytes ?? 0, (point.thresholdBytes ?? 0) * 1.1]));
  const x = (ns) => (ns - begin) / (end - begin) * WIDTH;
  const y = (value) => HEIGHT - value / top * (HEIGHT - 6) - 1;
  const draw = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    curve.append(element);
  };
  draw("path", { class: "threshold", d: path(points, "thresholdBytes", x, y) });
  draw("path", { class: "available", d: path(points, "availableBytes", x, y) });
  for (const decision of timeline ? timeline.decisions : []) {
    if (decision.severity === "critical") {
      const where = x(decision.atNs).toFixed(1);
      draw("line", { class: "eviction", x1: where, x2: where, y1: 0, y2: HEIGHT });
    }
  }
  if (timeline && shownAt !== null) {
    const where = x(shownAt).toFixed(1);
    draw("line", { class: "cursor", x1: where, x2: where, y1: 0, y2: HEIGHT });
  }
  at("from").textContent = timeline ? seconds(begin) : `${((end - begin) / 1e9).toFixed(0)} s ago`;
  at("to").textContent = timeline ? seconds(end) : "now";
  at("scale").textContent = `0 to ${bytes(top)}; dashed: the hard threshold`;
}

function memoryCell(pod, most) {
  const cell = make("td", undefined, "memory");
  const used = pod.memory.workingSetBytes ?? pod.memory.usageBytes;
  const bar = make("span", undefined, "bar");
  bar.style.width = `${Math.min(100, (used ?? 0) / most * 100)}%`;
  cell.append(bar, make("span", bytes(used)));
  if (pod.memory.requestBytes > 0) {
    const mark = make("span", undefined, "request");
    mark.style.left = `${pod.memory.requestBytes / most * 100}%`;
    mark.title = `requests ${bytes(pod.memory.requestBytes)}`;
    cell.append(mark);
  }
  return cell;
}

function drawPods(state) {
  const pods = [...state.overview.pods];
  const rank = (pod) => pod.ranked ? pod.ranked.rank : Infinity;
  pods.sort((a, b) => rank(a) - rank(b) || a.pod.localeCompare(b.pod));
  const most = Math.max(1, ...pods.flatMap((pod) => [pod.memory.workingSetBytes ?? pod.memory.usageBytes ?? 0, pod.memory.requestBytes]));
  const rows = pods.map((pod) => {
    const row = make("tr");
    const standing = pod.ranked ? pod.ranked.standing : "";
    if (standing === "next" || standing === "skipped") row.className = standing;
    row.title = state.reasons[pod.uid] ?? "";
    row.append(
      make("td", pod.ranked ? String(pod.ranked.rank) : "", "number"),
      make("td", pod.pod),
      make("td", pod.qosClass),
      make("td", String(pod.priority), "number"),
      memoryCell(pod, most),
      make("td", pod.memory.requestBytes > 0 ? bytes(pod.memory.requestBytes) : "", "number"),
      make("td", pod.memory.limitBytes === null ? "" : bytes(pod.memory.limitBytes), "number"),
      make("td", cores(pod.cpu.usedMilli), "number"),
      make("td", share(pod.pressure.cpu), "number"),
      make("td", share(pod.pressure.memory), "number"),
      make("td", share(pod.pressure.io), "number"),
      make("td", STATUS[pod.status] ?? pod.status),
    );
    return row;
  });
  at("pods").tBodies[0].replaceChildren(...rows);
}

function drawDecisions(state) {
  const list = at("decisions");
  if (!timeline) {
    list.replaceChildren(...[...state.overview.recentLines].reverse().map((line) => make("li", line.text, line.severity)));
    return;
  }
  let now = null;
  for (const item of list.children) {
    item.classList.remove("now");
    if (Number(item.dataset.at) <= shownAt) now = item;
  }
  if (now) {
    now.classList.add("now");
    // The list alone, not the page.
    list.scrollTop = now.offsetTop - list.offsetTop - list.clientHeight / 2;
  }
}

function draw(state) {
  const { overview } = state;
  at("node").textContent = overview.node.name ?? "";
  at("feed").textContent = timeline ? `journal, at ${seconds(overview.nowNs)}` : `live, agent ${overview.pid ?? "?"}, version ${overview.plimsoll}`;
  at("conditions").replaceChildren(...overview.conditions.filter((it) => it.status).map((it) => make("li", it.condition)));
  at("signals").textContent = state.signals.join("\n");
  const named = new Map(overview.pods.map((pod) => [pod.uid, pod.pod]));
  const candidates = state.candidates.slice(0, 3).map((uid) => make("li", `${named.get(uid)}: ${state.reasons[uid]}`));
  at("candidates").replaceChildren(...(candidates.length ? candidates : [make("li", "no pod can be evicted")]));
  drawPods(state);
  drawDecisions(state);
  drawCurve();
}

function point(state) {
  const memory = state.overview.signals.find((it) => it.signal === "memory.available");
  const hard = memory ? memory.thresholds.filter((it) => it.hard && it.value !== null) : [];
  return {
    atNs: state.overview.nowNs,
    availableBytes: memory ? memory.observed : null,
    thresholdBytes: hard.length ? Math.max(...hard.map((it) => it.value)) : null,
  };
}

function choose(name) {
  if (name === node) return;
  node = name;
  points = [];
  location.hash = encodeURIComponent(name);
  for (const row of at("nodes").querySelectorAll("tbody tr")) row.classList.toggle("now", row.dataset.node === node);
}

function drawNodes(rows) {
  const known = rows.map((row) => row.node);
  const wanted = decodeURIComponent(location.hash.slice(1));
  // Who is short comes first to the eye.
  const short = rows.find((row) => !row.problem && row.conditions !== "-");
  if (!known.includes(node)) choose(known.includes(wanted) ? wanted : (short ?? rows[0]).node);
  at("nodes").querySelector("tbody").replaceChildren(...rows.map((row) => {
    const line = make("tr", undefined, row.node === node ? "now" : "");
    line.dataset.node = row.node;
    const name = make("button", row.node);
    name.type = "button";
    const cell = make("td");
    cell.append(name);
    const rest = row.problem
      ? [make("td", ""), make("td", ""), make("td", ""), make("td", "?"), make("td", row.problem, "problem")]
      : [make("td", row.pods, "number"), make("td", row.available, "number"), make("td", row.of, "number"),
         make("td", row.conditions, row.conditions === "-" ? "" : "problem"), make("td", row.next)];
    line.append(cell, ...rest);
    line.addEventListener("click", () => choose(row.node));
    return line;
  }));
}

async function nodes() {
  try {
    drawNodes(await load("nodes.json"));
  } catch (error) {
    problem(error.message);
  }
  setTimeout(nodes, NODES_MS);
}

async function live() {
  const asked = node;
  try {
    const state = await load(asked === null ? "state.json" : `state.json?node=${asked}`);
    // Another one was chosen meanwhile.
    if (asked !== node) return setTimeout(live, 0);
    problem("");
    if (!points.length || points[points.length - 1].atNs < state.overview.nowNs) points.push(point(state));
    if (points.length > POINTS_MAX) points.shift();
    draw(state);
  } catch (error) {
    problem(error.message);
  }
  setTimeout(live, POLL_MS);
}

async function show(ns) {
  shownAt = ns;
  latest += 1;
  const mine = latest;
  at("time").textContent = seconds(ns);
  at("position").value = String(Math.round((ns - timeline.beginNs) / Math.max(1, timeline.endNs - timeline.beginNs) * 1000));
  try {
    const state = await load(`state.json?at=${ns}`);
    // An answer that was overtaken is not shown.
    if (mine !== latest) return;
    problem(timeline.remark ?? "");
    draw(state);
  } catch (error) {
    problem(error.message);
  }
}

function step(isForward) {
  const times = timeline.decisions.map((decision) => decision.atNs);
  const next = isForward ? times.find((ns) => ns > shownAt) : times.findLast((ns) => ns < shownAt);
  show(next ?? (isForward ? timeline.endNs : timeline.beginNs));
}

function replay() {
  points = timeline.points;
  // A journal begins before the first sample.
  timeline.beginNs = (points.find((point) => point.availableBytes !== null) ?? timeline).atNs ?? timeline.beginNs;
  at("player").hidden = false;
  at("decisions").classList.add("seekable");
  const items = timeline.decisions.map((decision) => {
    const item = make("li", decision.text, decision.severity);
    item.dataset.at = String(decision.atNs);
    item.addEventListener("click", () => show(decision.atNs));
    return item;
  });
  if (timeline.decisionsLeftOut > 0) items.push(make("li", `${timeline.decisionsLeftOut} more are left out`));
  at("decisions").replaceChildren(...items);
  at("position").addEventListener("input", () => {
    show(Math.round(timeline.beginNs + Number(at("position").value) / 1000 * (timeline.endNs - timeline.beginNs)));
  });
  at("previous").addEventListener("click", () => step(false));
  at("following").addEventListener("click", () => step(true));
  document.addEventListener("keydown", (event) => {
    if (event.target === at("position")) return;
    if (event.key === "ArrowLeft") step(false);
    if (event.key === "ArrowRight") step(true);
  });
  show(timeline.endNs);
}

(async () => {
  try {
    timeline = await load("timeline.json");
    const rows = timeline ? null : await load("nodes.json");
    if (rows) {
      at("nodes").hidden = false;
      drawNodes(rows);
      setTimeout(nodes, NODES_MS);
    }
  } catch (error) {
    problem(error.message);
    return;
  }
  if (timeline) replay(); else live();
})();
