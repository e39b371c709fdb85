'use strict';
// The page around the picture: the stream of what is new, lists, search, and what is chosen. Names and reasons come from other
// nodes, so they become text only, never HTML.

const most = 200; // rows of a list; search finds the others
const staleAfter = 15000; // ms without a word: the server sends one every 5 s
const paths = ['none', 'relayed', 'punched', 'direct', 'vxlan', 'native']; // the ones to look at first
const tone = { native: 'good', vxlan: 'good', direct: 'good', punched: 'mid', relayed: 'poor', none: 'bad' };
const weight = ['broken', 'warning', 'unknown', 'affected', 'unasked', 'well', 'note'];
const stateTone = { broken: 'bad', warning: 'poor', unknown: 'unknown', affected: 'poor' };
const kinds = ['nodes', 'edges', 'relays', 'findings'];
const all = Object.fromEntries(kinds.map(k => [k, new Map()]));
const $ = id => document.getElementById(id);
let self = '', observer = false, target = null, first = true, listing = 0, heardAt = Date.now(), stale = true;

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

// The stream. What is shown is old when nothing comes any more: then nothing is green.
function listen() {
  const stream = new EventSource('events');
  stream.onmessage = e => { heard(); take(JSON.parse(e.data)); };
  stream.addEventListener('beat', heard);
  stream.onerror = old;
  setInterval(() => { if (Date.now() - heardAt > staleAfter) old(); }, 1000);
}

function heard() {
  heardAt = Date.now();
  if (stale) setStale(false);
}

function old() { if (!stale || first) setStale(true); }

function setStale(is) {
  stale = is;
  Draw.stale(is);
  list();
  if (target) show();
}

function take(news) {
  const changed = {}, gone = {};
  for (const kind of kinds) {
    changed[kind] = news[kind] || [];
    gone[kind] = (news.gone || {})[kind] || [];
    if (!news.full) continue;
    const now = new Set(changed[kind].map(x => x.id));
    for (const id of all[kind].keys()) if (!now.has(id)) gone[kind].push(id);
  }
  if (news.full) {
    self = news.self || '';
    observer = news.all || false;
  }
  for (const id of gone.edges) say(pairName(all.edges.get(id)), 'no longer in use');
  for (const id of gone.findings) if (isWrong(all.findings.get(id))) say(place(all.findings.get(id)), all.findings.get(id).kind + ' is over');
  for (const e of changed.edges) {
    const was = all.edges.get(e.id);
    if (!was || was.path !== e.path) say(pairName(e), (was ? was.path : 'not in use') + ' → ' + e.path);
  }
  for (const f of changed.findings) if (isWrong(f) && !all.findings.has(f.id)) say(place(f), f.severity + ': ' + f.text);
  for (const kind of kinds) {
    for (const id of gone[kind]) all[kind].delete(id);
    for (const x of changed[kind]) all[kind].set(x.id, x);
  }
  for (const n of changed.nodes) if (n.self) self = n.id;
  first = false;
  Draw.update(all);
  if (!listing) listing = setTimeout(list, news.full ? 0 : 500); // lists need not follow every message
  if (target && (changed.edges.some(e => e.id === target.edge) || changed.nodes.some(n => n.id === target.node) ||
    changed.relays.some(r => r.id === target.relay) || changed.findings.length || gone.findings.length)) show();
}

// say adds a line to the changes; list shows it.
const clock = new Intl.DateTimeFormat([], { timeStyle: 'medium' }); // toLocaleTimeString would make one for every line
let said = [];
function say(who, what) {
  if (!first) said.push(clock.format() + ' ' + who + ': ' + what);
}

// Names of things, and what is wrong with them. Members judge, and the map says where it is.
const pairName = e => e.a + ' – ' + e.b;
const relayName = r => r.name ? r.name + ' (' + r.id + ')' : r.id;
const isWrong = f => f.severity !== 'note';
const place = f => f.relay ? 'relay ' + relayName(all.relays.get(f.relay) || { id: f.relay }) : f.node;
const targetOf = f => f.relay ? { relay: f.relay } : { node: f.node };
const at = what => [...all.findings.values()].filter(f => what.relay ? f.relay === what.relay : f.node === what.node).sort(graver);
const graver = (a, b) => weight.indexOf(a.severity) - weight.indexOf(b.severity) || (a.id < b.id ? -1 : 1);
const state = x => stale ? 'unknown' : x.state;
const consequence = v => { const [kind, of] = v.split(/ (.*)/); return of ? of + ' (' + kind + ')' : kind; };
let concerned = new Map(); // where the causes are of what a node or relay is affected by
function concern() {
  concerned = new Map();
  for (const f of all.findings.values()) {
    if (!isWrong(f)) continue;
    for (const id of new Set([...f.by, ...(f.victims || []).map(v => v.split(/ (.*)/)[1])])) if (id) concerned.set(id, [...concerned.get(id) || [], f]);
  }
}
function words(x, what) {
  const is = state(x);
  if (stale) return 'unknown: the map gets no news';
  if (is === 'unknown') return 'unknown' + (x.why ? ': ' + x.why : '');
  if (is === 'unasked') return 'not queried';
  if (is === 'well') return what.node && !observer && what.node !== self ? 'answers' : 'no trouble';
  if (is === 'affected') return 'affected: ' + [...new Set((concerned.get(x.id) || []).map(place))].join(', ');
  return is + ': ' + at(what).filter(isWrong).map(f => f.text).join('; ');
}

// Lists and search.
function matches(words, ...texts) {
  const text = texts.join(' ').toLowerCase();
  return words.every(w => text.includes(w));
}
const plural = (n, one) => n + ' ' + one + (n === 1 ? '' : 's');

function list() {
  listing = 0;
  concern();
  const log = $('changes');
  log.prepend(...said.slice(-50).reverse().map(x => make('li', x)));
  said = [];
  while (log.children.length > 50) log.lastChild.remove();
  const find = $('search').value.toLowerCase().split(/\s+/).filter(w => w);
  const nodes = [...all.nodes.values()], edges = [...all.edges.values()], relays = [...all.relays.values()], wrong = [...all.findings.values()].filter(isWrong);
  const count = {};
  for (const e of edges) count['path-' + e.path] = (count['path-' + e.path] || 0) + 1;
  for (const x of [...nodes, ...relays]) count['state-' + state(x)] = (count['state-' + state(x)] || 0) + 1;
  count['path-relay'] = relays.length;
  for (const n of document.querySelectorAll('.n')) n.textContent = count[n.dataset.of] || 0;
  const broken = wrong.filter(f => f.severity === 'broken').length, unknown = nodes.filter(n => state(n) === 'unknown').length, unasked = nodes.filter(n => state(n) === 'unasked').length;
  const sites = new Set(nodes.map(n => n.site).filter(s => s)).size;
  const verdict = [broken && broken + ' broken', wrong.length - broken && plural(wrong.length - broken, 'warning'), unknown && plural(unknown, 'node') + ' unknown'].filter(x => x).join(', ');
  $('verdict').textContent = first ? 'Connecting …' : stale ? 'Old: no news since ' + clock.format(heardAt) + '. Has `edgemesh-agent map` ended?' : verdict || (unasked ? 'No trouble reported, ' + unasked + ' of ' + plural(nodes.length, 'node') + ' not queried' : 'No trouble');
  $('verdict').className = first ? '' : stale ? 'unknown' : broken ? 'bad' : verdict ? 'poor' : unasked ? '' : 'good';
  $('summary').textContent = first ? '' : plural(nodes.length, 'node') + ' at ' + plural(sites, 'site') + ', ' + plural(relays.length, 'relay') + ', ' + plural(edges.length, 'pair') + ' in use' +
    (observer ? '' : '. ' + self + ' is not an observer: only its own pairs and findings are shown');
  document.title = 'EdgeMesh: ' + (stale ? 'no news' : verdict || plural(nodes.length, 'node'));

  const site = id => (all.nodes.get(id) || {}).site || '';
  const heavier = (a, b) => weight.indexOf(state(a)) - weight.indexOf(state(b)) || (a.name || a.id).localeCompare(b.name || b.id, 'en', { numeric: true });
  const seenFindings = wrong.filter(f => matches(find, place(f), f.kind, f.text, ...f.by)).sort(graver);
  const seenNodes = nodes.filter(n => matches(find, n.id, n.site, n.state === 'well' ? '' : words(n, { node: n.id }), ...(n.relays || []).map(u => u.relay))).sort(heavier);
  const seenRelays = relays.filter(r => matches(find, 'relay', relayName(r), r.state === 'well' ? '' : words(r, { relay: r.id }))).sort(heavier);
  const seenEdges = edges.filter(e => matches(find, e.a, e.b, site(e.a), site(e.b), e.path, e.relay || ''))
    .sort((a, b) => paths.indexOf(a.path) - paths.indexOf(b.path) || b.forth + b.back - a.forth - a.back || (a.id < b.id ? -1 : 1));
  fill('findings', seenFindings, f => [f.severity, place(f), f.text, victims(f), f.since ? ago(f.since) : ''],
    (f, [severity, where, text, victims, since]) => {
      const what = make('div', text, 'text');
      const more = [victims, since && (f.source === 'doctor' ? 'Seen by doctor ' + since + ' ago' : 'For ' + since)].filter(x => x).join('. ');
      if (more) what.append(make('p', more, 'faint'));
      const at = make('div');
      at.append(make('p', stale ? 'unknown' : severity, stale ? 'unknown' : stateTone[severity]), button(where, () => choose(targetOf(f))));
      return row(at, what);
    });
  fill('nodes', seenNodes, n => [n.id, n.site || '–', words(n, { node: n.id }), stateTone[state(n)] || ''],
    (n, [name, at, text, tone]) => row(button(name, () => choose({ node: n.id })), at, make('span', text, 'text ' + tone)));
  fill('relays', seenRelays, r => [relayName(r), words(r, { relay: r.id }), r.nodes, stateTone[state(r)] || ''],
    (r, [name, text, nodes, tone]) => row(button(name, () => choose({ relay: r.id })), make('span', text, 'text ' + tone), nodes));
  fill('paths', seenEdges, e => [pairName(e), e.path, ms(e.rtt), rate(e.forth), rate(e.back), stale],
    (e, [name, path, ...numbers]) => row(button(name, () => choose({ edge: e.id })), make('span', path, stale ? 'unknown' : tone[path]), ...numbers.slice(0, 3)));
  Draw.dim(find.length ? new Set([...seenNodes.map(x => x.id), ...seenEdges.map(x => x.id), ...seenRelays.map(r => 'relay ' + r.id),
    ...seenFindings.map(f => f.relay ? 'relay ' + f.relay : f.node)]) : null);
}

// victims is what follows from a finding, apart from who reports it.
function victims(f) {
  const some = (of, what) => !of.length ? '' : what + of.slice(0, 3).join(', ') + (of.length > 3 ? ' and ' + (of.length - 3) + ' more' : '');
  return [some((f.victims || []).map(consequence), 'From it follows: '), some(f.by.filter(n => n !== f.node), 'Reported by ')].filter(x => x).join('. ');
}

// keepFocus does what replaces elements, and leaves the focus on what is called the same, else on the list around it.
function keepFocus(body, act) {
  const had = body.contains(document.activeElement) ? document.activeElement : null, name = had && had.textContent;
  act();
  if (!had || body.contains(document.activeElement)) return;
  ([...body.querySelectorAll('button')].find(b => b.textContent === name) || body.closest('[tabindex]')).focus({ preventScroll: true });
}

// fill makes a list's rows, of which those that say the same as before stay.
const rows = { findings: new Map(), nodes: new Map(), relays: new Map(), paths: new Map() };
function fill(id, items, say, make) {
  const body = $(id), had = rows[id];
  const now = rows[id] = new Map(items.slice(0, most).map(x => {
    const texts = say(x), all = texts.join('\n'), old = had.get(x.id);
    return [x.id, old && old.all === all ? old : { all, tr: make(x, texts) }];
  }));
  keepFocus(body, () => {
    for (const [id, old] of had) if (now.get(id) !== old) old.tr.remove();
    let at = body.firstChild;
    for (const { tr } of now.values()) {
      if (tr === at) at = at.nextSibling;
      else body.insertBefore(tr, at);
    }
  });
  $(id + '-more').textContent = items.length > most ? (items.length - most) + ' more: search for them' : items.length ? '' : 'None.';
}

// What is chosen.
function choose(what) {
  target = what;
  Draw.choose(what && (what.edge || what.node || 'relay ' + what.relay));
  $('detail').hidden = !what;
  if (!what) return;
  show().then(() => $('detail').focus({ preventScroll: false }));
}

async function show() {
  const now = target;
  const parts = now.edge ? await pairParts(now.edge) : now.relay ? relayParts(now.relay) : nodeParts(now.node);
  if (target !== now) return; // another one was chosen meanwhile
  const close = button('Close', () => choose(null));
  close.className = 'close';
  keepFocus($('detail'), () => $('detail').replaceChildren(close, ...parts));
}

function terms(list) {
  const dl = make('dl');
  for (const [name, value] of list) {
    if (value === '' || value === undefined || value === null) continue;
    dl.append(make('dt', name), make('dd', value));
  }
  return dl;
}

// findingParts are what is found somewhere, with what to do.
function findingParts(what) {
  const parts = [];
  for (const f of at(what)) {
    parts.push(make('h3', (f.subject ? f.subject + ': ' : '') + f.severity + ' (' + f.kind + ')', stale ? 'unknown' : stateTone[f.severity]), make('p', f.text),
      terms([['Do', f.remedy], ['Seen', f.since && (f.source === 'doctor' ? ago(f.since) + ' ago, by doctor' : 'for ' + ago(f.since))],
        ['Reported by', f.by.filter(n => n !== f.node).join(', ')], ['From it follows', (f.victims || []).map(consequence).join(', ')]]));
  }
  return parts;
}

function links(title, items) {
  if (!items.length) return [];
  const ul = make('ul');
  for (const [text, what] of items) {
    const li = make('li');
    li.append(button(text, () => choose(what)));
    ul.append(li);
  }
  return [make('h3', title), ul];
}

function nodeParts(id) {
  const n = all.nodes.get(id);
  if (!n) return [make('h2', id), make('p', 'It has left the membership.')];
  concern();
  const concerns = (concerned.get(id) || []).filter(f => f.node !== id);
  return [make('h2', id), terms([['State', state(n) === 'broken' || state(n) === 'warning' ? state(n) : words(n, { node: id })], ['Site', n.site], ['Version', n.version],
    ['Running for', n.since && ago(n.since)], ['NAT', n.nat], ['Left out', n.left && n.left + ' pairs with the least traffic']]), ...findingParts({ node: id }),
    ...links('Trouble elsewhere that concerns it', concerns.map(f => [place(f) + ': ' + f.kind, targetOf(f)])),
    ...links('Its relays', (n.relays || []).map(u => [relayName(all.relays.get(u.relay) || { id: u.relay }) + ': ' + u.state, { relay: u.relay }])),
    ...links('Its pairs', [...all.edges.values()].filter(e => e.a === id || e.b === id).map(e =>
      [(e.a === id ? e.b : e.a) + ': ' + e.path + (e.rtt === undefined ? '' : ', ' + ms(e.rtt)), { edge: e.id }]))];
}

function relayParts(id) {
  const r = all.relays.get(id);
  if (!r) return [make('h2', 'Relay ' + id), make('p', 'No node uses it now.')];
  const uses = [];
  for (const n of all.nodes.values()) for (const u of n.relays || []) if (u.relay === id) uses.push([n.id + ': ' + u.state, { node: n.id }]);
  return [make('h2', 'Relay ' + relayName(r)), terms([['State', words(r, { relay: id })], ['Reservations', String(r.nodes)]]), ...findingParts({ relay: id }),
    ...links('Nodes', uses.slice(0, most))];
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
      ['Through the tunnel', bytes(x.tx || 0) + ' sent, ' + bytes(x.rx || 0) + ' received'], ['Past the tunnel', x.lanRx ? bytes(x.lanRx) + ' received' : ''],
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
$('fold').addEventListener('click', () => Draw.foldAll());
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
