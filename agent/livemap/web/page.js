'use strict';
// The page around the picture: the stream of what is new, lists, search, and what is chosen. Names and reasons come from other
// nodes, so they become text only, never HTML.

const most = 200; // rows of a list; search finds the others
const paths = ['none', 'relayed', 'punched', 'direct', 'vxlan', 'native']; // the ones to look at first
const tone = { native: 'good', vxlan: 'good', direct: 'good', punched: 'mid', relayed: 'poor', none: 'bad' };
const states = { well: 'no trouble', wrong: 'trouble', silent: 'not heard', unasked: 'not queried' };
const all = { nodes: new Map(), edges: new Map(), relays: new Map() };
const $ = id => document.getElementById(id);
let self = '', observer = false, target = null, first = true, listing = 0;

const make = (tag, text, kind) => {
  const x = document.createElement(tag);
  if (text !== undefined) x.textContent = text;
  if (kind) x.className = kind;
  return x;
};
const button = (text, act) => {
  const b = make('button', text);
  b.type = 'button';
  b.addEventListener('click', act);
  return b;
};
const row = (...cells) => {
  const tr = make('tr');
  for (const c of cells) {
    const td = make('td');
    td.append(c);
    tr.append(td);
  }
  return tr;
};
const rate = v => v >= 10 ? String(Math.round(v)) : v ? String(Math.round(v * 100) / 100) : '0';
const ms = v => v === undefined || v === null ? '' : v + ' ms';
const bytes = n => {
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (n < 1000 || unit === 'TB') return (n >= 10 || unit === 'B' ? Math.round(n) : n.toFixed(1)) + ' ' + unit;
    n /= 1000;
  }
};
const ago = when => {
  let s = Math.max(0, Math.round((Date.now() - new Date(when)) / 1000));
  if (s < 60) return s + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min';
  if (s < 86400) return Math.floor(s / 3600) + ' h';
  return Math.floor(s / 86400) + ' d';
};

// The stream.
function listen() {
  const stream = new EventSource('events');
  stream.onmessage = e => take(JSON.parse(e.data));
  stream.onerror = () => { $('summary').textContent = 'No connection: has `edgemesh-agent map` ended? What is shown is old.'; };
}

function take(news) {
  const changed = { nodes: news.nodes || [], edges: news.edges || [], relays: news.relays || [], gone: news.gone || [], noRelay: news.noRelay || [] };
  if (news.full) {
    self = news.self || '';
    observer = news.all || false;
    for (const [kind, gone] of [['nodes', 'gone'], ['edges', 'gone'], ['relays', 'noRelay']]) {
      const now = new Set(changed[kind].map(x => x.id));
      for (const id of all[kind].keys()) if (!now.has(id)) changed[gone].push(id);
    }
  }
  for (const id of changed.gone) {
    const e = all.edges.get(id);
    if (e) say(e, 'no longer in use');
    all.edges.delete(id);
    all.nodes.delete(id);
  }
  for (const id of changed.noRelay) all.relays.delete(id);
  for (const n of changed.nodes) {
    all.nodes.set(n.id, n);
    if (n.self) self = n.id;
  }
  for (const r of changed.relays) all.relays.set(r.id, r);
  for (const e of changed.edges) {
    const was = all.edges.get(e.id);
    if (!was || was.path !== e.path) say(e, (was ? was.path : 'not in use') + ' → ' + e.path);
    all.edges.set(e.id, e);
  }
  first = false;
  Draw.update(all, changed);
  if (!listing) listing = setTimeout(list, news.full ? 0 : 500); // lists need not follow every message
  if (target && (changed.edges.some(e => e.id === target.edge) || changed.nodes.some(n => n.id === target.node))) show();
}

// say adds a line to the changes; list shows it.
const clock = new Intl.DateTimeFormat([], { timeStyle: 'medium' }); // toLocaleTimeString would make one for every line
let said = [];
function say(e, what) {
  if (!first) said.push(clock.format() + ' ' + e.a + ' – ' + e.b + ': ' + what);
}

// Lists and search.
function matches(words, ...texts) {
  const text = texts.join(' ').toLowerCase();
  return words.every(w => text.includes(w));
}

function list() {
  listing = 0;
  const log = $('changes');
  log.prepend(...said.slice(-50).reverse().map(x => make('li', x)));
  said = [];
  while (log.children.length > 50) log.lastChild.remove();
  const words = $('search').value.toLowerCase().split(/\s+/).filter(w => w);
  const count = {};
  let wrong = 0;
  const nodes = [...all.nodes.values()], edges = [...all.edges.values()];
  for (const e of edges) count[e.path] = (count[e.path] || 0) + 1;
  for (const n of nodes) wrong += n.class === 'wrong' || n.class === 'silent';
  const sites = new Set(nodes.map(n => n.site).filter(s => s)).size;
  $('summary').textContent = nodes.length + ' nodes at ' + sites + ' sites, ' + wrong + ' in trouble; ' + edges.length + ' pairs in use' +
    (observer ? '' : '. ' + self + ' is not an observer: only its own pairs are shown');
  document.title = 'EdgeMesh: ' + nodes.length + ' nodes' + (wrong ? ', ' + wrong + ' in trouble' : '');
  for (const box of document.querySelectorAll('[data-path]')) box.parentElement.querySelector('.n').textContent = count[box.dataset.path] || 0;

  const site = id => (all.nodes.get(id) || {}).site || '';
  const seenNodes = nodes.filter(n => matches(words, n.id, n.site, n.class === 'well' ? '' : states[n.class], n.relays || ''))
    .sort((a, b) => (b.class !== 'well') - (a.class !== 'well') || (a.id < b.id ? -1 : 1));
  const seenEdges = edges.filter(e => matches(words, e.a, e.b, site(e.a), site(e.b), e.path, e.relay || ''))
    .sort((a, b) => paths.indexOf(a.path) - paths.indexOf(b.path) || b.forth + b.back - a.forth - a.back || (a.id < b.id ? -1 : 1));
  fill('nodes', seenNodes, n => [n.id, n.site || '–', states[n.class] + (n.why ? ': ' + n.why : '')],
    (n, [name, at, state]) => row(button(name, () => choose({ node: n.id })), at, make('span', state, n.class === 'wrong' || n.class === 'silent' ? 'bad' : '')));
  fill('paths', seenEdges, e => [e.a + ' – ' + e.b, e.path, ms(e.rtt), rate(e.forth), rate(e.back)],
    (e, [name, path, ...numbers]) => row(button(name, () => choose({ edge: e.id })), make('span', path, tone[path]), ...numbers));
  Draw.dim(words.length ? new Set([...seenNodes, ...seenEdges, ...[...all.relays.values()].filter(r => matches(words, r.id, 'relay')).map(r => ({ id: 'relay ' + r.id }))].map(x => x.id)) : null);
}

// fill makes a list's rows, of which those that say the same as before stay, with the focus that may be on one.
const rows = { nodes: new Map(), paths: new Map() };
function fill(id, items, say, make) {
  const body = $(id), had = rows[id], focus = body.contains(document.activeElement) ? document.activeElement.textContent : null;
  const now = rows[id] = new Map(items.slice(0, most).map(x => {
    const texts = say(x), all = texts.join('\n'), old = had.get(x.id);
    return [x.id, old && old.all === all ? old : { all, tr: make(x, texts) }];
  }));
  for (const [id, old] of had) if (now.get(id) !== old) old.tr.remove();
  let at = body.firstChild;
  for (const { tr } of now.values()) {
    if (tr === at) at = at.nextSibling;
    else body.insertBefore(tr, at);
  }
  $(id + '-more').textContent = items.length > most ? (items.length - most) + ' more: search for them' : items.length ? '' : 'None.';
  if (focus !== null && !body.contains(document.activeElement)) {
    for (const b of body.querySelectorAll('button')) if (b.textContent === focus) { b.focus({ preventScroll: true }); break; }
  }
}

// What is chosen.
function choose(what) {
  target = what;
  Draw.choose(what && (what.edge || what.node));
  $('detail').hidden = !what;
  if (!what) return;
  show().then(() => $('detail').focus({ preventScroll: false }));
}

async function show() {
  const now = target;
  const parts = now.edge ? await pairParts(now.edge) : nodeParts(now.node);
  if (target !== now) return; // another one was chosen meanwhile
  const close = button('Close', () => choose(null));
  close.className = 'close';
  $('detail').replaceChildren(close, ...parts);
}

function terms(list) {
  const dl = make('dl');
  for (const [name, value] of list) {
    if (value === '' || value === undefined || value === null) continue;
    dl.append(make('dt', name), make('dd', value));
  }
  return dl;
}

function nodeParts(id) {
  const n = all.nodes.get(id);
  if (!n) return [make('h2', id), make('p', 'It has left the membership.')];
  const ul = make('ul');
  for (const e of all.edges.values()) {
    if (e.a !== id && e.b !== id) continue;
    const li = make('li');
    li.append(button((e.a === id ? e.b : e.a) + ': ' + e.path + (e.rtt === undefined ? '' : ', ' + ms(e.rtt)), () => choose({ edge: e.id })));
    ul.append(li);
  }
  const parts = [make('h2', id), terms([['State', states[n.class]], ['Because', n.why], ['Site', n.site], ['Version', n.version],
    ['Running for', n.since && ago(n.since)], ['NAT', n.nat], ['Relays', n.relays], ['Left out', n.left && n.left + ' pairs with the least traffic']])];
  if (ul.children.length) parts.push(make('h3', 'Its pairs'), ul);
  return parts;
}

async function pairParts(id) {
  const [a, b] = id.split('|');
  const heading = make('h2', a + ' – ' + b);
  let pair;
  try {
    const answer = await fetch('pair?' + new URLSearchParams({ a, b }));
    if (!answer.ok) return [heading, make('p', 'It was not in use while this map ran.')];
    pair = await answer.json();
  } catch {
    return [heading, make('p', 'No connection to `edgemesh-agent map`.')];
  }
  const parts = [heading];
  for (const x of pair.ends) {
    const other = x.node === a ? b : a;
    parts.push(make('h3', x.node + ' → ' + other), terms([['Path', x.path + (x.transport ? ' over ' + x.transport : '') + (x.relay ? ', by relay ' + x.relay : '')],
      ['Since', x.since && ago(x.since) + ' ago'], ['Why not better', x.reason], ['Round trip', ms(x.rttMs)], ['Sends', rate(x.mbps) + ' Mbit/s'],
      ['Through the tunnel', bytes(x.tx) + ' sent, ' + bytes(x.rx) + ' received'], ['Past the tunnel', x.lanRx ? bytes(x.lanRx) + ' received' : ''],
      ['Waits', ms(x.queueMs)], ['Dropped', x.drops ? x.drops + ' packets' : '']]));
  }
  if (!pair.ends.length) parts.push(make('p', 'It is not in use now.'));
  const ol = make('ol');
  for (const c of pair.history) {
    ol.append(make('li', new Date(c.at).toLocaleTimeString() + ' ' + (c.path || 'no longer in use') + (c.relay ? ' by ' + c.relay : '') + (c.reason ? ': ' + c.reason : '')));
  }
  parts.push(make('h3', 'History, since the map was started'), ol);
  return parts;
}

// Controls.
const themes = ['system', 'light', 'dark'];
function theme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $('theme').textContent = 'Theme: ' + name;
  try { localStorage.setItem('theme', name); } catch { /* not kept */ }
  Draw.restyle();
}

history.replaceState(null, '', location.pathname); // the token is in the cookie now
window.cy = Draw.start($('graph'), choose);
let saved = 'system';
try { saved = localStorage.getItem('theme') || saved; } catch { /* not kept */ }
theme(themes.includes(saved) ? saved : 'system');
$('theme').addEventListener('click', () => theme(themes[(themes.indexOf($('theme').textContent.slice(7)) + 1) % 3]));
$('search').addEventListener('input', list);
$('in').addEventListener('click', () => Draw.zoom(1.3));
$('out').addEventListener('click', () => Draw.zoom(1 / 1.3));
$('fit').addEventListener('click', () => Draw.fit());
$('graph').addEventListener('keydown', e => {
  const act = { ArrowLeft: () => Draw.pan(60, 0), ArrowRight: () => Draw.pan(-60, 0), ArrowUp: () => Draw.pan(0, 60), ArrowDown: () => Draw.pan(0, -60),
    '+': () => Draw.zoom(1.3), '=': () => Draw.zoom(1.3), '-': () => Draw.zoom(1 / 1.3), 0: () => Draw.fit() }[e.key];
  if (act && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); act(); }
});
document.addEventListener('keydown', e => { if (e.key === 'Escape' && target) choose(null); });
for (const box of document.querySelectorAll('[data-path]')) {
  box.addEventListener('change', () => Draw.hide(new Set([...document.querySelectorAll('[data-path]')].filter(b => !b.checked).map(b => b.dataset.path))));
}
listen();
