// The page of the node. Whatever comes from pods is set as text, never as markup.

const ROWS_BEYOND = 6; // rows in the DOM above and below what is seen
const SILENCE = 15000; // ms without a message after which the connection counts as lost
const PAUSES = [500, 1000, 2000, 4000, 8000];
const MINUTES = 5;
const NAME_END = 6; // characters: what a ReplicaSet adds, or the ordinal of a StatefulSet
const HEALTH = [["good", "running"], ["busy", "on their way"], ["bad", "in trouble"], ["over", "completed"]];

const $ = (id) => document.getElementById(id);

function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(made.dataset, value);
    else if (name.startsWith("aria-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// As replaceChildren; but what is as before stays, for in it may be the focus or a selection.
function settle(place, nodes) {
  nodes.forEach((node, at) => {
    const old = place.childNodes[at];
    if (!old) place.append(node);
    else if (old.isEqualNode(node)) return;
    else if (!old.cloneNode(false).isEqualNode(node.cloneNode(false))) {
      if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) old.data = node.data;
      else old.replaceWith(node);
    } else settle(old, [...node.childNodes]);
  });
  while (place.childNodes.length > nodes.length) place.lastChild.remove();
}

// ---- What is known ------------------------------------------------------------------------------------------

const known = { life: "", number: -1, node: {}, pods: new Map(), events: [], points: [], use: new Map(), skew: 0 };
const view = {
  query: "", health: "", sort: "name", up: true, opened: new Set(), active: "", uid: "", tab: "story", at: -1, order: "",
  container: "", previous: false, opener: document.body, detail: null, story: null, log: null, // null: not told yet
  row: null, // the last that was known of the pod
};

function take(message) {
  if (message.life !== undefined) {
    known.life = message.life;
    known.node = message.node;
    known.pods = new Map(Object.entries(message.pods));
    known.use = new Map(Object.entries(message.use || {}));
    known.events = [];
    message.events.forEach(hear);
    known.points = message.points;
    // The last one is ten seconds old at most; else the clocks are not the same.
    const last = known.points.length ? now() - known.points[known.points.length - 1].at : 0;
    if (last < -2000 || last > 12000) known.skew += last;
  } else if (message.n !== undefined) {
    for (const [uid, row] of Object.entries(message.pods || {})) known.pods.set(uid, row);
    for (const uid of message.gone || []) { known.pods.delete(uid); known.use.delete(uid); }
    (message.events || []).forEach(hear);
    known.events.splice(0, known.events.length - 300);
    for (const point of message.points || []) {
      known.points.push(point);
      known.skew = Date.now() - point.at;
    }
    known.points.splice(0, known.points.length - 300);
    for (const [uid, use] of Object.entries(message.use || {})) known.use.set(uid, use);
  }
  if (message.n !== undefined) known.number = message.n;
  if (view.uid && !view.container && known.pods.has(view.uid)) { // it was not known when it was opened
    choose("", known.pods.get(view.uid));
    askLog();
  }
  if (message.detail && message.detail.uid === view.uid) view.detail = message.detail;
  if (message.story && message.story.uid === view.uid) view.story = message.story.entries;
  const { log } = message;
  if (log && log.uid === view.uid && log.container === view.container && log.previous === view.previous) {
    if (log.text || known.pods.has(view.uid)) view.log = log.text; // what is left of a pod that is gone stays
  }
  draw(message);
}

function hear(event) { // one that comes again is one entry with a count
  if (event.count > 1) known.events = known.events.filter((other) => !sameEvent(other, event));
  known.events.push(event);
}

function sameEvent(a, b) {
  return ["uid", "container", "type", "reason", "message"].every((name) => a[name] === b[name]);
}

const now = () => Date.now() - known.skew;

// ---- The connection -----------------------------------------------------------------------------------------

const link = { edition: null, socket: null, attempt: 0, failures: 0, heard: 0, due: 0, timer: 0 };

async function connect() {
  clearTimeout(link.timer);
  hangUp();
  const attempt = (link.attempt += 1); // a later one takes the place of one under way
  link.due = 0;
  sayLink("connecting");
  let socket;
  try {
    const answer = await fetch("word", { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(SILENCE) });
    if (!answer.ok) throw new Error(await refusal(answer));
    const edition = answer.headers.get("page-edition");
    link.edition ??= edition;
    $("newer").hidden = edition === link.edition;
    const address = new URL(`live/${encodeURIComponent(await answer.text())}`, location.href);
    if (attempt !== link.attempt) return;
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(address);
  } catch (error) {
    if (attempt === link.attempt) lost(error.name === "TimeoutError" ? "no answer" : String(error.message || error));
    return;
  }
  link.heard = Date.now();
  socket.binaryType = "arraybuffer";
  link.socket = socket;
  const text = new TextDecoder();
  socket.onopen = () => {
    link.heard = Date.now();
    tell({ from: known.number, life: known.life, ...seen(), open: opened() });
  };
  socket.onmessage = (event) => {
    link.heard = Date.now();
    if (link.failures || document.documentElement.dataset.link !== "live") { link.failures = 0; sayLink("live"); }
    take(JSON.parse(typeof event.data === "string" ? event.data : text.decode(event.data)));
  };
  socket.onclose = () => lost("the connection ended");
}

async function refusal(answer) { // in the words of the node, of its proxy, or of the API server
  const kind = answer.headers.get("content-type") || "", text = await answer.text();
  let words = kind.startsWith("text/plain") ? text : "";
  if (kind.startsWith("application/json")) try { words = JSON.parse(text).message; } catch { /* the number has to do */ }
  return [`${answer.status} ${answer.statusText}`.trim(), String(words || "").trim().slice(0, 300)].filter(Boolean).join(": ");
}

function hangUp() { // what still arrives of it does not count
  if (!link.socket) return;
  link.socket.onopen = link.socket.onmessage = link.socket.onclose = null;
  link.socket.close();
  link.socket = null;
}

function lost(why) {
  hangUp();
  const pause = PAUSES[Math.min(link.failures, PAUSES.length - 1)] * (0.75 + Math.random() / 2);
  link.failures += 1;
  link.due = performance.now() + pause; // a clock that is set makes it no longer
  clearTimeout(link.timer);
  link.timer = setTimeout(connect, pause);
  link.why = why;
  sayLink("lost");
}

function tell(what) {
  if (link.socket && link.socket.readyState === WebSocket.OPEN) link.socket.send(JSON.stringify(what));
}

function sayLink(is) {
  document.documentElement.dataset.link = is;
  $("link").dataset.is = is;
  put($("link-text"), is === "live" || !link.failures ? is : "not connected");
  drawTitle();
  // While it tries again the last words stay: a banner that flickers says nothing.
  $("lost").hidden = is === "live" || (is === "connecting" && !link.failures);
  const left = Math.max(0, Math.ceil((link.due - performance.now()) / 1000));
  // What counts down is apart: the rest is read out, once.
  put($("lost-text"), `Not connected to the node (${(link.why || "no answer").replace(/\.$/, "")}). What is shown may be old.`);
  put($("lost-next"), link.due && left ? `Trying again in ${left} s.` : "Trying again.");
}

$("again").onclick = connect;
$("reload").onclick = () => location.reload();
addEventListener("online", () => { if (!link.socket) connect(); });

// ---- Words --------------------------------------------------------------------------------------------------

function span(ms) { // as kubectl prints ages
  const total = Math.max(0, Math.floor(ms / 1000));
  if (total < 120) return `${total}s`;
  const minutes = Math.floor(total / 60);
  if (minutes < 10) return total % 60 ? `${minutes}m${total % 60}s` : `${minutes}m`;
  if (minutes < 180) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 8) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
  if (hours < 48) return `${hours}h`;
  const days = Math.floor(hours / 24), years = Math.floor(days / 365);
  if (days < 8) return hours % 24 ? `${days}d${hours % 24}h` : `${days}d`;
  if (years < 2) return `${days}d`;
  return years < 8 && days % 365 ? `${years}y${days % 365}d` : `${years}y`;
}

const age = (since) => (since ? span(now() - since) : "");

function bytes(amount) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return `${amount < 10 && unit !== "B" ? amount.toFixed(1) : Math.round(amount)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

const cores = (milli) => (milli < 1000 ? `${milli}m` : `${(milli / 1000).toFixed(milli < 10000 ? 1 : 0)}`);

function figure(value) {
  if (value === undefined) return "–";
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

function waiting(wait, named) {
  const who = named && wait.container ? `${wait.container}: ` : "";
  const until = wait.until && wait.until > now() ? `, again in ${span(wait.until - now() + 999)}` : "";
  const since = wait.since ? ` (${age(wait.since)})` : "";
  if (wait.what === "back-off") return `${who}${wait.text || "back-off"}${until}`;
  if (wait.what === "node" || (wait.what === "volume" && !wait.since)) return `${who}${wait.text}${until}`;
  return `${who}waits for ${wait.text}${since}`;
}

function brief(wait, named) { // for a narrow column that is headed "waiting for"
  const who = named && wait.container ? `${wait.container}: ` : "";
  const until = wait.until && wait.until > now() ? `in ${span(wait.until - now() + 999)}` : "";
  if (until) return `${who}${until} · ${wait.text}`;
  return `${who}${wait.text}${wait.since ? ` (${age(wait.since)})` : ""}`;
}

function containerHealth(row) {
  if (row.running) return row.ready || row.kind === "init" || row.kind === "ephemeral" ? "good" : "busy";
  if (row.state === "Completed") return "over";
  return /^(Waiting|ContainerCreating|PodInitializing)$/.test(row.state) ? "busy" : "bad";
}

// ---- The list: only what is seen is in the DOM ----------------------------------------------------------------

const COLUMNS = [
  ["name", "Name"], ["state", "State"], ["ready", "Ready"], ["restarts", "Restarts", "end", "↻"], ["age", "Age", "end"],
  ["cpu", "CPU", "end"], ["memory", "Memory", "end"], ["wait", "Waiting for"],
];
const MOST_FIRST = ["restarts", "cpu", "memory", "wait"];
const ORDER = { bad: 0, busy: 1, good: 2, over: 3 };

let items = [];
let pool = new Map();

function matches(row) {
  if (view.health && row.health !== view.health) return false;
  if (!view.query) return true;
  const words = [`${row.namespace}/${row.name}`, row.state, row.ip || "", ...(row.containers || []).flatMap((c) => [c.name, c.image || ""])];
  return words.join("\n").toLowerCase().includes(view.query);
}

function sumUse(uid, what) {
  let sum = 0;
  for (const use of Object.values(known.use.get(uid) || {})) sum += use[what] || 0;
  return sum;
}

function compare([uidA, a], [uidB, b]) {
  const byName = () => a.namespace.localeCompare(b.namespace) || a.name.localeCompare(b.name) || (uidA < uidB ? -1 : 1);
  let order = 0;
  if (view.sort === "state") order = ORDER[a.health] - ORDER[b.health] || a.state.localeCompare(b.state);
  else if (view.sort === "restarts") order = (b.restarts || 0) - (a.restarts || 0);
  else if (view.sort === "ready") order = (a.ready || 0) / (a.total || 1) - (b.ready || 0) / (b.total || 1);
  else if (view.sort === "age") order = (b.began || 0) - (a.began || 0);
  else if (byUse()) order = sumUse(uidB, view.sort) - sumUse(uidA, view.sort);
  else if (view.sort === "wait") order = (b.waits || []).length - (a.waits || []).length;
  else return view.up ? byName() : -byName();
  return (view.up ? order : -order) || byName();
}

function arrange() {
  const before = items, list = $("list"), height = rowHeight(), top = Math.floor(list.scrollTop / height);
  const rows = [...known.pods].filter(([, row]) => matches(row)).sort(compare);
  items = [];
  for (const [uid, row] of rows) {
    items.push({ key: uid, uid, row });
    if (!view.opened.has(uid)) continue;
    for (const c of row.containers || []) items.push({ key: `${uid}/${c.kind || ""}/${c.name}`, uid, row, c });
    if (row.more_containers) items.push({ key: `${uid}//`, uid, row, c: { more: row.more_containers } });
  }
  $("space").style.height = `${items.length * height}px`;
  const places = new Map(items.map((item, index) => [item.key, index]));
  const order = [view.sort, view.up, view.query, view.health].join("\n"), isSame = order === view.order;
  view.order = order;
  view.at = places.get(view.active) ?? (isSame ? view.at : -1);
  if (isSame && top > 0 && /^(name|age)$/.test(view.sort)) { // what is read stays where it is
    const first = before.findIndex((item, index) => index >= top && places.has(item.key));
    if (first >= 0) list.scrollTop += (places.get(before[first].key) - first) * height;
  }
  list.setAttribute("aria-rowcount", items.length + 1);
  $("none").hidden = items.length > 0;
  if (!items.length) {
    $("none").textContent = known.pods.size ? "No pod fits." : known.number < 0 ? "…" : "This node has no pods.";
  }
}

let measured = 36;
const rowHeight = () => measured;
function measure() { measured = parseInt(getComputedStyle(document.documentElement).getPropertyValue("--row"), 10) || 36; }

const seenHeight = () => $("list").clientHeight - $("columns").offsetHeight;

function range() {
  const list = $("list"), height = rowHeight();
  const first = Math.max(0, Math.floor(list.scrollTop / height) - ROWS_BEYOND);
  const last = Math.min(items.length, Math.ceil((list.scrollTop + seenHeight()) / height) + ROWS_BEYOND);
  return [first, last];
}

const byUse = () => view.sort === "cpu" || view.sort === "memory"; // then the use of all counts, not of those in view

function seen() {
  const [first, last] = range();
  const uids = new Set(items.slice(first, last).map((item) => item.uid));
  if (view.uid) uids.add(view.uid);
  return { see: [...uids].slice(0, 80), compare: byUse() };
}

let printed = false; // then all rows are there
function drawList() {
  const [first, last] = printed ? [0, items.length] : range(), height = rowHeight(), kept = new Map();
  for (let index = first; index < last; index += 1) {
    const item = items[index];
    let row = pool.get(item.key);
    if (!row) row = makeRow(item);
    pool.delete(item.key);
    kept.set(item.key, row);
    row.node.style.transform = `translateY(${index * height}px)`;
    row.node.setAttribute("aria-rowindex", index + 2);
    fillRow(row, item);
  }
  for (const row of pool.values()) row.node.remove();
  pool = kept;
  let at = 0; // in the order in which they are read
  for (const { node } of kept.values()) {
    const there = $("space").children[at];
    if (there !== node) $("space").insertBefore(node, there || null);
    at += 1;
  }
  const active = kept.get(view.active);
  if (active) $("list").setAttribute("aria-activedescendant", active.node.id);
  else $("list").removeAttribute("aria-activedescendant");
  tellSeen();
}

let toldSeen = "", seenTimer = 0;
function tellSeen() {
  clearTimeout(seenTimer);
  seenTimer = setTimeout(() => {
    const what = seen(), text = JSON.stringify(what);
    if (text !== toldSeen) { toldSeen = text; tell(what); }
  }, 150);
}

let numbers = 0;
function makeRow(item) {
  const cells = {};
  const twist = el("button", { type: "button", className: "twist", tabIndex: -1, "aria-label": "Containers" });
  // Names that controllers make differ in their end: where there is no room, the middle is left out.
  cells.start = el("span");
  cells.end = el("span");
  cells.b = el("b", {}, cells.start, cells.end);
  cells.i = el("i");
  cells.stateText = el("span");
  const place = (name) => String(COLUMNS.findIndex(([key]) => key === name) + 1); // some cells may not be there
  const cell = (name, className, ...inside) =>
    (cells[name] = el("div", { className, role: "gridcell", "aria-colindex": place(name) }, ...inside));
  const node = el("div", { className: item.c ? "row cells container" : "row cells", role: "row", id: `row-${(numbers += 1)}`,
    "aria-level": item.c ? "2" : "1" },
    cell("name", "name", twist, cells.b, cells.i),
    cell("state", "state", el("span", { className: "dot" }), cells.stateText),
    cell("ready", "ready num"), cell("restarts", "restarts end num"), cell("age", "age end num"),
    cell("cpu", "meter end num"), cell("memory", "meter end num"), cell("wait", "wait"));
  twist.onclick = (event) => { event.stopPropagation(); toggle(item.uid); };
  node.onclick = () => { view.active = item.key; open(item.uid, item.c && item.c.name); };
  return { node, cells, twist };
}

function putName({ b, start, end }, name) {
  if (b.textContent === name) return;
  const at = Math.max(0, name.length - NAME_END);
  start.textContent = name.slice(0, at);
  end.textContent = name.slice(at);
}

function put(node, text) { if (node.textContent !== text) node.textContent = text; }

function fillRow({ node, cells, twist }, { key, uid, row, c }) {
  const health = !c ? row.health : c.more ? "over" : containerHealth(c);
  if (node.dataset.health !== health) node.dataset.health = health;
  node.classList.toggle("active", key === view.active);
  node.setAttribute("aria-selected", key === view.active || (!c && uid === view.uid));
  const use = known.use.get(uid) || {};
  cells.name.title = c ? c.name || "" : `${row.namespace}/${row.name}`;
  cells.name.setAttribute("aria-label", c && c.more ? `and ${c.more} more` : cells.name.title); // in one piece
  if (c && c.more) {
    node.classList.add("more");
    putName(cells, `and ${c.more} more`);
    return;
  }
  if (c) {
    putName(cells, c.name);
    put(cells.i, c.kind || "");
    put(cells.stateText, c.state || "Waiting");
    put(cells.ready, c.running ? (c.ready ? "ready" : "not ready") : "");
    put(cells.age, age(c.since));
    put(cells.restarts, String(c.restarts || 0));
    const own = use[c.name] || {};
    fillMeter(cells.cpu, c.running ? own.cpu : undefined, c.cpu_limit, cores);
    fillMeter(cells.memory, c.running ? own.memory : undefined, c.memory_limit, bytes);
    put(cells.wait, (row.waits || []).filter((wait) => wait.container === c.name).map((wait) => brief(wait)).join("; ") || c.detail || "");
  } else {
    put(twist, (row.containers || []).length ? (view.opened.has(uid) ? "▾" : "▸") : "");
    node.setAttribute("aria-expanded", view.opened.has(uid));
    putName(cells, row.name);
    put(cells.i, row.namespace === "default" ? "" : row.namespace);
    put(cells.stateText, row.state);
    put(cells.ready, `${row.ready || 0}/${row.total || 0}`);
    put(cells.age, age(row.began));
    put(cells.restarts, String(row.restarts || 0));
    const containers = (row.containers || []).filter((each) => each.running);
    const known_ = containers.length > 0 && Object.keys(use).length > 0;
    const limit = (name) => (!row.more_containers && containers.every((each) => each[name]) ? containers.reduce((sum, each) => sum + each[name], 0) : 0);
    const cpu = containers.some((each) => (use[each.name] || {}).cpu !== undefined) ? sumUse(uid, "cpu") : undefined;
    fillMeter(cells.cpu, known_ ? cpu : undefined, limit("cpu_limit"), cores);
    fillMeter(cells.memory, known_ ? sumUse(uid, "memory") : undefined, limit("memory_limit"), bytes);
    const wait = (row.waits || [])[0];
    put(cells.wait, wait ? brief(wait, (row.containers || []).length > 1) : row.message || "");
  }
  cells.restarts.classList.toggle("zero", cells.restarts.textContent === "0");
  cells.wait.title = cells.wait.textContent;
}

function fillMeter(node, value, limit, words) {
  const text = value === undefined || value === null ? "" : words(value);
  const title = text && (limit ? `${text} of ${words(limit)}` : `${text}, no limit`);
  if (node.dataset.shown === title) return;
  node.dataset.shown = title;
  node.title = title;
  node.textContent = text;
  node.classList.toggle("limited", Boolean(text && limit));
  if (text && limit) {
    const bar = el("i", { className: value / limit > 0.9 ? "high" : "" });
    bar.style.width = `${Math.min(100, (value / limit) * 100)}%`;
    node.append(bar);
  }
}

function toggle(uid, wanted) {
  if (wanted === undefined ? view.opened.has(uid) : !wanted) view.opened.delete(uid);
  else view.opened.add(uid);
  redraw("list");
}

function move(step) {
  if (!items.length) return;
  const at = items.findIndex((item) => item.key === view.active);
  // Where the row has gone, its place counts; where there was none, one comes from beyond the end.
  const from = at >= 0 ? at : view.at >= 0 ? view.at - (step > 0) : step < 0 ? items.length : -1;
  const next = Math.max(0, Math.min(items.length - 1, from + step));
  view.active = items[next].key;
  const list = $("list"), height = rowHeight(), top = next * height;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + height > list.scrollTop + seenHeight()) list.scrollTop = top + height - seenHeight();
  if (document.activeElement === document.body) list.focus({ preventScroll: true });
  if (view.uid) open(items[next].uid, items[next].c && items[next].c.name, true);
  redraw("rows");
}

// ---- Head and side --------------------------------------------------------------------------------------------

const chips = new Map();
for (const [health, word] of HEALTH) {
  const count = el("span", { className: "num" });
  const chip = el("button", { type: "button", title: `Show only pods that are ${word}`, data: { health }, "aria-pressed": "false" },
    el("span", { className: "dot" }), count, el("span", { className: "word" }, word));
  chip.onclick = () => { view.health = view.health === health ? "" : health; redraw("list"); };
  chips.set(health, { chip, count });
  $("health").append(chip);
}

for (const [key, word, align, short] of COLUMNS) {
  const button = el("button", { type: "button", title: `Sort by ${word.toLowerCase()}` }, short || word);
  if (short) button.setAttribute("aria-label", word);
  button.onclick = () => sortBy(key, view.sort === key ? !view.up : true);
  $("sort").append(el("option", { value: key }, word)); // where there are no columns
  $("columns").append(el("div", { className: align || "", role: "columnheader", "aria-colindex": String($("columns").children.length + 1), data: { key } }, button));
}

$("sort").onchange = (event) => sortBy(event.target.value, true);

function sortBy(key, up) {
  view.sort = $("sort").value = key;
  view.up = up;
  redraw("list");
}

function drawHead() {
  const counts = { good: 0, busy: 0, bad: 0, over: 0 };
  for (const row of known.pods.values()) counts[row.health] += 1;
  for (const [health, { chip, count }] of chips) {
    put(count, String(counts[health]));
    chip.toggleAttribute("data-none", counts[health] === 0);
    chip.setAttribute("aria-pressed", view.health === health);
  }
  for (const column of $("columns").children) {
    const rises = view.up !== MOST_FIRST.includes(view.sort);
    if (column.dataset.key === view.sort) column.setAttribute("aria-sort", rises ? "ascending" : "descending");
    else column.removeAttribute("aria-sort");
  }
  if (known.number < 0) return;
  const { name = "node", runtime = "", version = "" } = known.node;
  put($("node"), name);
  const pods = known.pods.size === 1 ? "1 pod" : `${known.pods.size} pods`;
  put($("about"), [pods, runtime, version].filter(Boolean).join(" · "));
  drawTitle();
}

function drawTitle() { // all that is seen of a tab in the background
  const { name = "node" } = known.node, bad = [...known.pods.values()].filter((row) => row.health === "bad").length;
  document.title = `${link.failures ? "not connected: " : ""}${bad ? `(${bad}) ` : ""}${name}`;
}

function drawWaits() {
  const all = [];
  let count = 0;
  for (const [uid, row] of known.pods) {
    for (const wait of row.waits || []) all.push([uid, row, wait]);
    count += row.more_waits || 0;
  }
  count += all.length;
  all.sort((a, b) => (a[2].until || Infinity) - (b[2].until || Infinity) || (a[2].since || 0) - (b[2].since || 0));
  put($("waits-count"), count ? String(count) : "");
  const shown = all.slice(0, 60).map(([uid, row, wait]) => el("li", { data: { what: wait.what } }, podButton(uid, row),
    el("div", { className: "dim" }, waiting(wait, true))));
  if (!all.length) shown.push(el("li", { className: "empty" }, "Nothing waits."));
  else if (count > shown.length) shown.push(el("li", { className: "empty" }, `and ${count - shown.length} more`));
  keepFocus($("waits-list"), () => settle($("waits-list"), shown));
}

function podButton(uid, row) {
  return el("button", { type: "button", data: { pod: uid } }, row.namespace === "default" ? row.name : `${row.namespace}/${row.name}`);
}
$("side").addEventListener("click", (event) => {
  const button = event.target.closest("[data-pod]");
  if (button) open(button.dataset.pod);
});

const eventNodes = new Map();
function drawEvents() { // each entry stays as long as its event does: somebody may read it, or have the focus in it
  const list = $("events-list"), shown = new Set(known.events.slice(-100));
  for (const [event, { node }] of eventNodes) if (!shown.has(event)) { node.remove(); eventNodes.delete(event); }
  for (const event of shown) {
    if (!eventNodes.has(event)) {
      const made = eventNode(event);
      eventNodes.set(event, made);
      list.prepend(made.node);
    }
    const { place, time } = eventNodes.get(event);
    put(time, age(event.at));
    const about = known.pods.get(event.uid);
    settle(place, [about ? podButton(event.uid, about) : el("span", { className: "dim" }, event.pod || "node")]);
  }
  if (!shown.size && !list.childElementCount) list.append(el("li", { className: "empty" }, "No events yet."));
  else if (shown.size) list.querySelectorAll(".empty").forEach((node) => node.remove());
}

function eventNode(event) {
  const place = el("span", { className: "place" }), time = el("span", { className: "dim num" });
  const node = el("li", { className: event.type === "Warning" ? "warning" : "" },
    el("div", { className: "top" }, el("b", {}, event.reason), place,
      event.count > 1 ? el("span", { className: "dim num" }, `×${event.count}`) : null, time),
    el("div", { className: "dim" }, event.message));
  return { node, place, time };
}

// The focus stays with a pod whose entry is made anew or has another place.
function keepFocus(list, draw) {
  const { pod } = list.contains(document.activeElement) ? document.activeElement.dataset : {};
  draw();
  if (pod === undefined || list.contains(document.activeElement)) return;
  const button = [...list.querySelectorAll("[data-pod]")].find((each) => each.dataset.pod === pod);
  if (button) button.focus({ preventScroll: true });
}

// ---- Charts: a line of milliseconds, bars of how often ---------------------------------------------------------

const CHARTS = [
  { title: "Relist", line: "relist_ms", rate: "look", words: (p, ms) => `${ms} · ${figure(p.look || 0)} looks/s` },
  { title: "Event latency", line: "event_ms", rate: "event", words: (p, ms) => `${ms} · ${figure(p.event || 0)}/s` },
  { title: "Loop turns", line: "longest", rate: "turn", words: (p, ms) => `longest ${ms}` },
  { title: "Runtime calls", line: "runtime_ms", rate: "runtime", words: (p, ms) => `${ms} · ${figure(p.runtime || 0)}/s` },
  { title: "API calls", line: "api_ms", rate: "api", words: (p, ms) => `${ms} · ${figure(p.api || 0)}/s` },
];
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

for (const chart of CHARTS) {
  chart.text = el("p", { className: "num" });
  chart.rates = svg("path", { class: "rate" });
  chart.fill = svg("path", { class: "fill" });
  chart.path = svg("path", { class: "line" });
  chart.mark = svg("path", { class: "mark", d: "" });
  chart.svg = svg("svg", { viewBox: "0 0 300 40", preserveAspectRatio: "none", role: "img", "aria-label": `${chart.title}, the last minutes` });
  chart.svg.append(svg("path", { class: "base", d: "M0 39.5H300" }), chart.rates, chart.fill, chart.path, chart.mark);
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    chart.hover = (event.clientX - box.left) / box.width;
    drawCharts();
  });
  chart.svg.addEventListener("pointerleave", () => { chart.hover = undefined; drawCharts(); });
  $("cards").append(el("div", { className: "card" }, el("div", {}, el("h3", {}, chart.title), chart.text), chart.svg));
}

function drawCharts() {
  const end = now(), points = known.points.filter((point) => point.at > end - MINUTES * 60000 - 10000);
  const width = Math.min(MINUTES * 60000, Math.max(60000, points.length ? end - points[0].at : 0));
  const x = (point) => (300 * (point.at - end + width)) / width;
  for (const chart of CHARTS) {
    const values = points.filter((point) => point[chart.line] !== undefined);
    const top = Math.max(1, ...values.map((point) => point[chart.line])) * 1.1;
    const most = Math.max(0.5, ...points.map((point) => point[chart.rate] || 0)) * 1.1;
    const y = (value) => (39 - (36 * value) / top).toFixed(1);
    const line = values.map((point) => `${x(point).toFixed(1)} ${y(point[chart.line])}`);
    chart.path.setAttribute("d", line.length ? `M${line.join("L")}` : "");
    chart.fill.setAttribute("d", line.length > 1 ? `M${x(values[0]).toFixed(1)} 39L${line.join("L")}L${x(values[values.length - 1]).toFixed(1)} 39Z` : "");
    const bars = points.filter((point) => point[chart.rate])
      .map((point) => `M${(x(point) - 1).toFixed(1)} 39V${(39 - (30 * point[chart.rate]) / most).toFixed(1)}h1.6V39Z`);
    chart.rates.setAttribute("d", bars.join(""));
    let shown = points[points.length - 1];
    if (chart.hover !== undefined && points.length) {
      const at = end - width + chart.hover * width;
      shown = points.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best));
      chart.mark.setAttribute("d", `M${x(shown).toFixed(1)} 0V39`);
    } else chart.mark.setAttribute("d", "");
    // Nothing happened in this moment: then how long it took the last time.
    const last = shown && values.filter((point) => point.at <= shown.at).pop();
    put(chart.text, shown ? chart.words(shown, last ? `${figure(last[chart.line])} ms` : "–") : "–");
  }
}

// ---- One pod ----------------------------------------------------------------------------------------------------

const opened = () => (view.uid ? { uid: view.uid, container: view.tab === "log" ? view.container : "", previous: view.previous } : null);

function open(uid, container, replace) {
  if (!uid) return;
  const row = known.pods.get(uid) || {}; // it may be gone: a link is older
  const other = view.uid !== uid;
  const first = !view.uid;
  if (first) view.opener = document.activeElement;
  view.uid = uid;
  if (!view.active.startsWith(uid)) view.active = uid;
  if (other) { view.row = view.detail = view.story = view.log = null; view.previous = false; view.container = ""; }
  choose(container, row);
  const hash = `#pod=${encodeURIComponent(uid)}`;
  // At most one entry of the history is the page's own, however many pods are looked into.
  const own = replace || history.state;
  if (location.hash !== hash) history[own ? "replaceState" : "pushState"](own ? history.state : { own: true }, "", hash);
  tell({ open: opened(), ...seen() });
  redraw("all");
  if (first) {
    drawWanted(); // the focus can only go where something is shown
    if (!$("list").offsetParent) $("close").focus();
  }
}

function choose(container, row) { // whose log is shown
  const names = containerNames(row), first = (row.containers || []).find((c) => !c.kind);
  const chosen = container || (names.includes(view.container) ? view.container : first ? first.name : names[0] || "");
  if (chosen !== view.container) forgetLog();
  view.container = chosen;
}

function forgetLog() { view.log = null; drawLog.shown = false; }

function close() {
  if (!view.uid) return;
  view.uid = "";
  if (location.hash) history.replaceState(history.state, "", location.pathname + location.search);
  tell({ open: null });
  redraw("all");
  drawWanted();
  const opener = view.opener.closest("#side") && view.opener.offsetParent ? view.opener : $("list");
  opener.focus({ preventScroll: true });
}

function uidInAddress() {
  // A longer one is no pod's, and would be no message that a node takes.
  try { return decodeURIComponent((/^#pod=(.{1,1000})$/.exec(location.hash) || [])[1] || ""); } catch { return ""; }
}

addEventListener("popstate", () => {
  const uid = uidInAddress();
  if (uid) open(uid, "", true);
  else if (view.uid) close();
});

function drawDetail() {
  const article = $("detail"), there = known.pods.get(view.uid), row = there || view.row || {};
  view.row = there || view.row;
  $("main").classList.toggle("open", Boolean(view.uid));
  article.hidden = !view.uid;
  if (!view.uid) return;
  const told = known.events.find((event) => event.uid === view.uid);
  put($("detail-name"), row.name ? `${row.namespace}/${row.name}` : told ? told.pod : "An unknown pod");
  const ready = row.total ? `${row.ready || 0}/${row.total} ready` : "";
  const facts = [row.state, ready, row.ip, row.qos, row.began && `${age(row.began)} old`, row.message];
  put($("detail-facts"), there ? facts.filter(Boolean).join(" · ") : "This pod is gone: it is no longer on this node.");
  const heir = there ? undefined : [...known.pods].find(([, { namespace, name }]) => namespace === row.namespace && name === row.name);
  $("heir").hidden = !heir;
  if (heir) $("heir").lastElementChild.onclick = () => { open(heir[0]); $("panel").focus(); };
  const waits = ((there && row.waits) || []).map((wait) => el("li", {}, waiting(wait, true)));
  if (there && row.more_waits) waits.push(el("li", {}, `and ${row.more_waits} more`));
  settle($("detail-waits"), waits);
  if (there || !row.name) drawContainers(row); // else as they were
  for (const button of $("tabs").children) {
    button.setAttribute("aria-selected", button.dataset.tab === view.tab);
    button.tabIndex = button.dataset.tab === view.tab ? 0 : -1;
  }
  $("panel").setAttribute("aria-labelledby", `tab-${view.tab}`);
  for (const panel of $("panel").children) panel.hidden = panel.dataset.of !== view.tab;
  if (view.tab === "story") drawStory();
  else if (view.tab === "log") drawLog(row);
  else drawTexts();
}

function drawContainers(row) {
  const use = known.use.get(view.uid) || {};
  const boxes = (row.containers || []).map((c) => {
    const own = c.running ? use[c.name] || {} : {};
    const cpu = el("div", { className: "meter num" }), memory = el("div", { className: "meter num" });
    meterOf(cpu, own.cpu, c.cpu_limit, c.cpu_request, cores);
    meterOf(memory, own.memory, c.memory_limit, c.memory_request, bytes);
    const chips_ = (c.probes || []).map(([kind, verdict]) => el("span", { className: "chip", title: verdict || "not probed yet", role: "img", "aria-label": `${kind}: ${verdict || "not probed yet"}` },
      el("span", { className: "dot", data: { health: { success: "good", failure: "bad" }[verdict] || "over" } }), kind));
    const words = [c.since && `${c.running ? "for" : ""} ${age(c.since)}${c.running ? "" : " ago"}`.trim(),
      c.restarts ? `${c.restarts} restart${c.restarts === 1 ? "" : "s"}` : "",
      c.last && `before: ${c.last}${c.last_at ? `, ${age(c.last_at)} ago` : ""}`].filter(Boolean).join(" · ");
    return el("div", { className: "box", data: { health: containerHealth(c), container: c.name } },
      el("div", { className: "head" }, el("span", { className: "dot" }), el("b", {}, c.name),
        c.kind ? el("span", { className: "dim" }, c.kind) : null, el("span", {}, c.state), ...chips_),
      cpu, memory,
      el("div", { className: "more" }, words, words && c.detail ? el("br") : null, c.detail || ""));
  });
  if (row.more_containers) boxes.push(el("div", { className: "dim" }, `and ${row.more_containers} more containers`));
  settle($("detail-containers"), boxes);
}

function meterOf(node, value, limit, request, words) {
  fillMeter(node, value === undefined || value === null ? undefined : value, limit, words);
  if (!node.textContent && (limit || request)) node.append(limit ? `≤ ${words(limit)}` : request ? `≥ ${words(request)}` : "");
  else if (limit) node.firstChild.textContent = `${words(value)} / ${words(limit)}`;
}

function drawStory() {
  if (!view.story) return settle($("story"), [el("li", { className: "empty" }, "…")]);
  const nodes = view.story.map((entry) => el("li", {}, el("span", { className: "dim num", title: new Date(entry.at).toLocaleString() }, `${age(entry.at)}`),
    el("span", { className: "dim" }, entry.cause), el("span", {}, entry.count > 1 ? `${entry.text} (×${entry.count})` : entry.text)));
  return settle($("story"), nodes.length ? nodes.reverse() : [el("li", { className: "empty" }, "Nothing is remembered of this pod.")]);
}

function containerNames(row) { // a row has the first ones only
  const { spec = {} } = (view.detail && view.detail.manifest) || {};
  const all = ["initContainers", "containers", "ephemeralContainers"].flatMap((kind) => spec[kind] || []);
  return (all.length ? all : row.containers || []).map((c) => c.name);
}

function drawLog(row) {
  const names = containerNames(row), select = $("log-container");
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
  }
  select.value = view.container;
  $("log-previous").checked = view.previous;
  const panel = $("panel"), atEnd = panel.scrollHeight - panel.scrollTop - panel.clientHeight < 30;
  const none = !known.pods.has(view.uid) ? "Its output is gone, too." : view.log === null ? "…" : "No output yet.";
  const text = view.log || none;
  if ($("log").textContent === text) return;
  $("log").textContent = text;
  if (atEnd || !drawLog.shown) panel.scrollTop = panel.scrollHeight;
  drawLog.shown = true;
}

let drawnDetail;
function drawTexts() {
  if (view.detail && drawnDetail === view.detail) return;
  drawnDetail = view.detail;
  const { manifest, configs, notes = [] } = view.detail || {};
  const none = view.detail ? notes.join("\n") : known.pods.has(view.uid) ? "…" : "It is not known any more.";
  put($("manifest"), manifest ? yaml(manifest) : none);
  put($("configs"), configs ? yaml(configs) : view.detail ? "" : none);
  $("notes").replaceChildren(...notes.map((note) => el("li", {}, note)));
}

function yaml(value, indent = "") { // enough of YAML to be read
  const quoted = (one) => JSON.stringify(one).replace(/\p{Bidi_Control}/gu, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const scalar = (one) => (typeof one === "string" && /^[A-Za-z/][\w ./-]*$/.test(one) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(one) ? one : quoted(one));
  const key = (name) => (/^[\w./-]+$/.test(name) ? name : quoted(name));
  if (Array.isArray(value)) {
    return value.map((one) => {
      if (one === null || typeof one !== "object" || !Object.keys(one).length) return `${indent}- ${scalar(one)}\n`;
      return `${indent}- ${yaml(one, `${indent}  `).slice(indent.length + 2)}`;
    }).join("");
  }
  return Object.entries(value).map(([name, one]) => {
    if (one === null || typeof one !== "object" || !Object.keys(one).length) return `${indent}${key(name)}: ${scalar(one)}\n`;
    return `${indent}${key(name)}:\n${yaml(one, Array.isArray(one) ? indent : `${indent}  `)}`;
  }).join("");
}

for (const button of $("tabs").children) {
  button.onclick = () => { view.tab = button.dataset.tab; drawLog.shown = false; $("panel").scrollTop = 0; tell({ open: opened() }); redraw("detail"); };
}
$("log-container").onchange = (event) => { choose(event.target.value, {}); askLog(); };
$("log-previous").onchange = (event) => { view.previous = event.target.checked; forgetLog(); askLog(); };
function askLog() { tell({ open: opened() }); redraw("detail"); }
$("close").onclick = close;

// ---- Keyboard ---------------------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return; // a key of an input method is not the page's
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing) { $("search").focus(); $("search").select(); }
  else if (event.key === "Escape") {
    if (event.target === $("search") && (view.query || !view.uid)) { $("search").value = view.query = ""; $("list").focus({ preventScroll: true }); redraw("list"); }
    else close();
  } else if (event.target === $("search") && (event.key === "ArrowDown" || event.key === "Enter")) { $("list").focus({ preventScroll: true }); move(view.active && items.some((item) => item.key === view.active) ? 0 : 1); if (event.key === "Enter") openActive(); }
  else if (typing) return;
  else if (event.target.closest("[role=tablist]") && /^Arrow(Left|Right)$/.test(event.key)) {
    const all = [...$("tabs").children], at = all.indexOf(event.target);
    const next = all[(at + (event.key === "ArrowRight" ? 1 : -1) + all.length) % all.length];
    next.focus(); next.click();
  } else if (event.target.closest("#panel, #side, #detail-waits, #detail-containers")) return; // these scroll
  else if (event.key === "ArrowDown") move(1);
  else if (event.key === "ArrowUp") move(-1);
  else if (event.key === "PageDown" || event.key === "PageUp") move((event.key === "PageDown" ? 1 : -1) * Math.max(1, Math.floor(seenHeight() / rowHeight()) - 1));
  else if (event.key === "Home" || event.key === "End") move(event.key === "Home" ? -items.length : items.length);
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const item = items.find((each) => each.key === view.active);
    if (item) { if (item.c) view.active = item.uid; toggle(item.uid, event.key === "ArrowRight"); }
  } else if (event.key === "Enter" && !event.target.closest("button")) openActive();
  else return;
  event.preventDefault();
});

function openActive() {
  const item = items.find((each) => each.key === view.active);
  if (item) open(item.uid, item.c && item.c.name);
}

$("search").oninput = (event) => { view.query = event.target.value.trim().toLowerCase(); $("list").scrollTop = 0; redraw("list"); };
for (const button of $("views").children) {
  button.onclick = () => {
    $("main").dataset.view = button.dataset.view;
    for (const other of $("views").children) other.setAttribute("aria-pressed", other === button);
    if (view.uid) close();
    redraw("all");
  };
}

// ---- Drawing: once a frame, and only what may be different -----------------------------------------------------

const wanted = new Set();
let frame = 0;

function redraw(what) {
  wanted.add(what);
  if (!frame) frame = requestAnimationFrame(drawWanted);
}

function draw(message) {
  if (message.life !== undefined || message.pods || message.gone) redraw("list");
  if (message.life !== undefined || message.events) redraw("events");
  if (message.life !== undefined || message.points) redraw("charts");
  if (message.use) redraw(byUse() ? "list" : "rows");
  if (view.uid) redraw("detail");
  if (document.hidden && wanted.has("list")) drawHead(); // no frame comes, but the title is seen
}

function drawWanted() {
  cancelAnimationFrame(frame);
  frame = 0;
  const all = wanted.has("all"), list = all || wanted.has("list");
  if (list) { arrange(); drawHead(); drawWaits(); }
  if (list || wanted.has("rows")) drawList();
  if (all || wanted.has("events")) keepFocus($("events-list"), drawEvents);
  if (all || wanted.has("charts")) drawCharts();
  if (all || list || wanted.has("rows") || wanted.has("detail")) drawDetail();
  wanted.clear();
}

for (const [event, is] of [["beforeprint", true], ["afterprint", false]]) addEventListener(event, () => { printed = is; drawList(); });
$("list").addEventListener("scroll", () => redraw("rows"), { passive: true });
new ResizeObserver(() => { measure(); redraw("list"); }).observe($("pods"));

setInterval(() => {
  if (link.due) sayLink("lost");
  // The clock goes on while a laptop sleeps, and with it the other one does not; it may be set back, too.
  if (link.socket && Math.abs(Date.now() - link.heard) > SILENCE) lost("the node is silent");
  if (document.hidden) return;
  redraw("rows");
  if (known.number >= 0) { drawWaits(); keepFocus($("events-list"), drawEvents); drawCharts(); }
}, 1000);

const first = setInterval(() => {
  if (known.number < 0) return;
  clearInterval(first);
  open(uidInAddress(), "", true);
}, 100);

measure();
connect();
